"""A replica as the cluster shows it, and as its engine tells of itself."""

from collections.abc import Iterable
from dataclasses import dataclass

from tonnage_operator.kinds import MODEL, PART_LABEL, labels_of, meta, name_of
from tonnage_runtime.kube import Object


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a ModelServer."""

    name: str
    uid: str
    part: str
    node: str
    url: str
    """Of its engine; empty before it has an address."""
    ready: bool
    going: bool
    routed: bool
    created: str
    version: str
    unschedulable: str = ""
    """What the scheduler says while there is no place for it."""

    @property
    def serves(self) -> bool:
        """Whether it answers and stays."""
        return self.ready and not self.going


@dataclass(frozen=True, slots=True)
class EngineView:
    """What an engine said at the last look; None: not known."""

    adapters: frozenset[str] | None = None
    busy_adapters: frozenset[str] | None = None
    """Adapters with requests in flight."""
    requests: float | None = None
    """Running and waiting."""
    sleeping: bool | None = None


UNKNOWN_ENGINE = EngineView()


def pod_view(pod: Object, port: int, scheme: str = "http") -> PodView:
    """The pod, read from its object."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    address = str(status.get("podIP") or "")
    host = f"[{address}]" if ":" in address else address
    conditions = {str(c.get("type")): c for c in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled") or {}
    stuck = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return PodView(
        name=name_of(pod),
        uid=str(meta(pod).get("uid") or ""),
        part=str(labels_of(pod).get(PART_LABEL) or ""),
        node=str(spec.get("nodeName") or ""),
        url=f"{scheme}://{host}:{port}" if address else "",
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        going=bool(meta(pod).get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
        routed=MODEL in labels_of(pod),
        created=str(meta(pod).get("creationTimestamp") or ""),
        version=str(meta(pod).get("resourceVersion") or ""),
        unschedulable=str(scheduled.get("message") or "no node has room") if stuck else "",
    )


def of_part(pods: Iterable[PodView], part: str) -> list[PodView]:
    """The pods of one part that stay, oldest first."""
    return sorted((pod for pod in pods if pod.part == part and not pod.going), key=lambda pod: (pod.created, pod.uid))
