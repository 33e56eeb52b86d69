"""What a policy may see of a simulated pool: the gauges an engine exposes, replicas that start, the router's queue."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tonnage_core.autoscaling.simulation.fleet import Phase, SimulatedFleet


@dataclass(frozen=True, slots=True)
class ReplicaGauges:
    """One serving replica: requests running and waiting, share of KV in use (0 to 1)."""

    running: int
    waiting: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool at one time; `wanted` counts serving and starting replicas."""

    now_s: float
    wanted: int
    starting: int
    held: int
    """Requests that wait in the router."""
    serving: tuple[ReplicaGauges, ...]

    @property
    def waiting(self) -> int:
        """Requests that wait, in engines and in the router."""
        return self.held + sum(replica.waiting for replica in self.serving)

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""
        return self.waiting + sum(replica.running for replica in self.serving)


def view_of(fleet: SimulatedFleet, now_s: float) -> PoolView:
    """The pool as its gauges show it."""
    gauges = tuple(
        ReplicaGauges(replica.engine.rows, len(replica.engine.waiting), replica.engine.kv_usage)
        for replica in fleet.of(Phase.SERVING)
    )
    return PoolView(now_s, fleet.wanted, len(fleet.of(Phase.STARTING)), len(fleet.held), gauges)


class TargetPolicy(Protocol):
    """Gives a number of replicas for what it sees."""

    @property
    def interval_s(self) -> float:
        """Time between its looks, seconds."""
        ...

    def target(self, view: PoolView) -> int:
        """Replicas that should be kept."""
        ...


class TargetScaler:
    """Lets a target policy act, within limits."""

    def __init__(self, policy: TargetPolicy, *, min_replicas: int, max_replicas: int) -> None:
        self._policy = policy
        self._least, self._most = min_replicas, max_replicas
        self.interval_s = policy.interval_s

    def act(self, fleet: SimulatedFleet, now_s: float, starts: Iterator[float]) -> None:
        """Bring the fleet to the policy's target."""
        target = self._policy.target(view_of(fleet, now_s))
        fleet.scale_to(max(self._least, min(self._most, target)), now_s, starts)
