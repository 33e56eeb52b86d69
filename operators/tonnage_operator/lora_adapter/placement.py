"""Which replicas hold an adapter. Those that have it keep it; new ones are chosen by rendezvous hashing, so that a
replica more or fewer moves nothing else (Thaler and Ravishankar, "Using name-based mappings", 1998)."""

import hashlib
from collections.abc import Mapping, Sequence

from tonnage_operator.pods import PodView


def weight(adapter: str, uid: str) -> bytes:
    """The pod's rank for the adapter."""
    return hashlib.sha256(f"{adapter}\0{uid}".encode()).digest()


def place(
    adapter: str,
    replicas: int | None,
    pods: Sequence[PodView],
    held: frozenset[str],
    free: Mapping[str, int],
) -> list[PodView]:
    """The pods that should hold it, at most `replicas`. `held` are uids that were chosen before; `free` are adapter
    slots left by uid, where a pod without a slot is taken only if it holds the adapter already."""
    usable = [pod for pod in pods if pod.serves and (pod.uid in held or free.get(pod.uid, 0) > 0)]
    ranked = sorted(usable, key=lambda pod: (pod.uid not in held, weight(adapter, pod.uid)))
    return ranked if replicas is None else ranked[:replicas]
