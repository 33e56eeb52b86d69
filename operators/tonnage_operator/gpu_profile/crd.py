"""A GpuProfile's status as the operator reads it: the agent's document."""

from dataclasses import dataclass

from tonnage_operator.kinds import name_of
from tonnage_runtime.kube import Object

VERDICTS = ("OK", "UNKNOWN", "WARN", "FAIL")
"""From best to worst, as far as a node goes: nothing known is worse than good and no reason to act."""


@dataclass(frozen=True, slots=True)
class ProfileView:
    """One GPU."""

    name: str
    node: str
    index: int
    gpu_class: str
    verdict: str
    reasons: tuple[str, ...]


def read(item: Object) -> ProfileView | None:
    """The GPU; None for a profile whose agent has not written yet, or not on a node."""
    status = item.get("status") or {}
    verdict = status.get("verdict") or {}
    node, index = status.get("node"), status.get("index")
    if not isinstance(node, str) or not node:
        return None
    word = str(verdict.get("status") or "UNKNOWN")
    return ProfileView(
        name=name_of(item),
        node=node,
        index=index if isinstance(index, int) else 0,
        gpu_class=str(status.get("name") or ""),
        verdict=word if word in VERDICTS else "UNKNOWN",
        reasons=tuple(str(reason) for reason in verdict.get("reasons") or []),
    )
