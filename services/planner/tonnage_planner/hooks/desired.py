"""What every hook publishes: a pool's desired replicas, or why it is not known."""

from collections.abc import Callable
from dataclasses import dataclass

from tonnage_core.errors import TonnageError
from tonnage_planner.fleet import Fleet

METRIC = "tonnage-desired-replicas"
"""The metric's name in the hooks; its target a replica is 1, so its value is the number of replicas."""


class UnknownTargetError(TonnageError):
    """The target cannot be told now; ask again. Never answered as zero."""


@dataclass(frozen=True)
class DesiredReplicas:
    """Looks targets up; one that is older than `stale_after_s` is unknown, since the loop that makes it stands."""

    fleet: Fleet
    now_s: Callable[[], float]
    stale_after_s: float

    def pools(self) -> tuple[str, ...]:
        """Pools with a target."""
        return tuple(sorted(self.fleet.decided))

    def of(self, pool: str, namespace: str = "") -> int:
        """The pool's target; `namespace/pool` is looked up first. Raises `UnknownTargetError`."""
        decided = self.fleet.decided.get(f"{namespace}/{pool}") or self.fleet.decided.get(pool)
        if decided is None:
            raise UnknownTargetError(f"pool {pool!r} has no target yet: check the name, or ask again")
        age = self.now_s() - decided.at_s
        if age > self.stale_after_s:
            raise UnknownTargetError(f"the target of pool {pool!r} is {age:.0f} s old: the planner's loop stands still")
        return decided.decision.target
