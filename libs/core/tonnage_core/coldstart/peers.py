"""Which nodes have a snapshot, as a document that nodes share, and which of them to ask first."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

MAX_PEERS = 256


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that has a snapshot and serves it at `url` until `until_s` (seconds since the epoch).

    `place` goes from the large to the small, as `zone/rack`; nodes with a longer common beginning are nearer.
    """

    node: str
    url: str
    place: str
    until_s: float


def nearest(peers: Iterable[Peer], own_node: str, own_place: str, now_s: float, rng: "Random") -> tuple[Peer, ...]:
    """The other nodes that are alive, nearest first, equally near ones in random order so that load spreads."""
    alive = [peer for peer in peers if peer.until_s > now_s and peer.node != own_node]
    rng.shuffle(alive)
    return tuple(sorted(alive, key=lambda peer: -shared_levels(own_place, peer.place)))


def shared_levels(one: str, other: str) -> int:
    """Levels that two places have in common from the left; none for an unknown place."""
    count = 0
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if not left or left != right:
            break
        count += 1
    return count


def announced(raw: bytes | None, peer: Peer, now_s: float) -> bytes:
    """The shared document with `peer` in it, itself renewed and those whose time is over gone."""
    others = [one for one in parse_peers(raw) if one.node != peer.node and one.until_s > now_s]
    kept = sorted(others, key=lambda one: -one.until_s)[: MAX_PEERS - 1]
    return _dumped([*kept, peer])


def withdrawn(raw: bytes | None, node: str, now_s: float) -> bytes:
    """The shared document without `node`."""
    return _dumped([one for one in parse_peers(raw) if one.node != node and one.until_s > now_s])


def parse_peers(raw: bytes | None) -> tuple[Peer, ...]:
    """The peers of a shared document; what is not one is left out, as another version may have written it."""
    try:
        document = json.loads(raw or b"[]")
    except ValueError:
        return ()
    found = [_peer(one) for one in document] if isinstance(document, list) else []
    return tuple(peer for peer in found if peer is not None)


def _peer(one: Any) -> Peer | None:
    if not isinstance(one, dict):
        return None
    node, url, place, until = (one.get(name) for name in ("node", "url", "place", "until_s"))
    if not isinstance(node, str) or not isinstance(url, str) or not isinstance(place, str):
        return None
    if not isinstance(until, int | float) or not url.startswith(("http://", "https://")):
        return None
    return Peer(node, url, place, float(until))


def _dumped(peers: Iterable[Peer]) -> bytes:
    fields = ("node", "url", "place", "until_s")
    return json.dumps([{name: getattr(peer, name) for name in fields} for peer in peers]).encode()
