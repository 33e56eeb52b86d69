"""The numbers a pool is scaled by, each with its unit and the reason for its default."""

from dataclasses import dataclass

from tonnage_core.errors import BadInputError


@dataclass(frozen=True)
class ScalingPolicy:
    """One pool's limits and targets; raises `BadInputError` for values that contradict each other."""

    min_replicas: int = 1
    max_replicas: int = 16
    target_kv_usage: float = 0.8
    """KV blocks in use a replica, 0 to 1. Above it preemptions begin: growing sequences need the rest."""
    target_waiting_per_replica: float = 3.0
    """Queued requests a replica. A few only wait for the next step; more is a queue that grows."""
    target_running_per_replica: float | None = None
    """Requests in flight a replica at the SLO; None when nobody has measured it, and then it is not used."""
    max_growth: float = 2.0
    """Most replicas a queue may ask for, as a multiple of those that serve: pending ones never multiply."""
    scale_down_after_s: float = 300.0
    """The load must have fitted fewer replicas for this long: longer than a cold start and a burst's echo."""
    scale_down_margin: float = 0.9
    """Share of each target that fewer replicas may reach: without the gap a pool goes 2, 1, 2, 1."""
    unknown_hold_s: float = 120.0
    """An endpoint whose load is unknown stops every scale-down for this long."""
    safe_replicas: int = 0
    """Fewest replicas once nothing has been known for `unknown_hold_s`; the last target stays if it is larger."""

    def __post_init__(self) -> None:
        """Refuse what cannot be followed."""
        _check(0 <= self.min_replicas <= self.max_replicas, "min_replicas must be from 0 to max_replicas")
        _check(self.max_replicas >= 1, "max_replicas must be at least 1")
        _check(0 < self.target_kv_usage <= 1, "target_kv_usage must be above 0 and at most 1")
        _check(self.target_waiting_per_replica > 0, "target_waiting_per_replica must be above 0")
        running = self.target_running_per_replica
        _check(running is None or running > 0, "target_running_per_replica must be above 0")
        _check(self.max_growth > 1, "max_growth must be above 1")
        _check(0 < self.scale_down_margin <= 1, "scale_down_margin must be above 0 and at most 1")
        _check(self.scale_down_after_s >= 0, "scale_down_after_s must be at least 0")
        _check(self.unknown_hold_s >= 0, "unknown_hold_s must be at least 0")
        _check(0 <= self.safe_replicas <= self.max_replicas, "safe_replicas must be from 0 to max_replicas")

    def clamp(self, replicas: int) -> int:
        """`replicas` within the limits."""
        return max(self.min_replicas, min(self.max_replicas, replicas))


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise BadInputError(f"scaling policy: {message}")
