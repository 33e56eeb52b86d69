"""Replicas that start, serve, drain and go; requests routed to the one with the least work before it.

A replica costs from the moment it is asked for until its last stream has ended. One that drains gets no new requests;
streams that outlive the drain's time are cut and counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tonnage_core.autoscaling.simulation.lean_engine import Job, LeanEngine

ROW_TOKENS = 16
"""What a running request weighs in routing, in prompt tokens not yet computed."""


class Phase(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True, eq=False)
class Replica:
    """One GPU group with an engine on it."""

    name: str
    asked_s: float
    ready_s: float
    engine: LeanEngine
    phase: Phase = Phase.STARTING
    drain_until_s: float = float("inf")

    @property
    def work(self) -> int:
        """What stands before a new request, in prompt tokens."""
        return self.engine.waiting_tokens + ROW_TOKENS * self.engine.in_flight


class SimulatedFleet:
    """The replicas of one pool; `new_engine(now_s)` makes an engine that is ready at that time."""

    def __init__(self, new_engine: Callable[[float], LeanEngine], *, drain_s: float) -> None:
        self._new_engine = new_engine
        self._drain_s = drain_s
        self._made = 0
        self.replicas: list[Replica] = []
        self.held: list[Job] = []
        """Requests that wait in the router: nobody serves."""
        self.replica_seconds = 0.0
        self.cut_streams = 0
        self.finished: list[Job] = []

    def of(self, phase: Phase) -> list[Replica]:
        """Replicas in a phase, oldest first."""
        return [replica for replica in self.replicas if replica.phase is phase]

    @property
    def wanted(self) -> int:
        """Replicas that are kept: those that start and those that serve."""
        return sum(replica.phase is not Phase.DRAINING for replica in self.replicas)

    def start(self, now_s: float, start_s: float) -> None:
        """Ask for one more replica, which serves after `start_s`."""
        ready = now_s + start_s
        name = f"replica-{self._made}"
        self._made += 1
        phase = Phase.SERVING if start_s <= 0 else Phase.STARTING
        self.replicas.append(Replica(name, now_s, ready, self._new_engine(ready), phase))

    def release(self, now_s: float, *, keep_starting: bool = False) -> None:
        """Give one replica up: the newest that still starts, else the one with the least work, which drains."""
        starting = [] if keep_starting else self.of(Phase.STARTING)
        if starting:
            self.replicas.remove(starting[-1])
            return
        serving = self.of(Phase.SERVING)
        if serving:
            chosen = min(serving, key=lambda replica: replica.work)
            chosen.phase = Phase.DRAINING
            chosen.drain_until_s = now_s + self._drain_s

    def scale_to(self, target: int, now_s: float, starts: Iterator[float]) -> None:
        """Start or release until `target` replicas are kept."""
        while self.wanted < target:
            self.start(now_s, next(starts))
        while self.wanted > max(target, 0):
            self.release(now_s)

    def route(self, jobs: list[Job], now_s: float) -> None:
        """Give each request to the replica with the least work; with none serving they wait in the router."""
        for replica in self.replicas:
            if replica.phase is Phase.STARTING and replica.ready_s <= now_s:
                replica.phase = Phase.SERVING
        serving = [replica.engine for replica in self.replicas if replica.phase is Phase.SERVING]
        if not serving:
            self.held += jobs
            return
        if self.held:
            jobs, self.held = self.held + jobs, []
        loads = [engine.waiting_tokens + ROW_TOKENS * engine.in_flight for engine in serving]
        for job in jobs:
            least = min(loads)
            chosen = loads.index(least)
            serving[chosen].submit(job)
            loads[chosen] = least + job.prompt + ROW_TOKENS

    def run_until(self, until_s: float, from_s: float) -> None:
        """Bring every engine to `until_s`, count the time, let drained replicas go."""
        self.replica_seconds += len(self.replicas) * (until_s - from_s)
        for replica in self.replicas:
            engine = replica.engine
            if engine.now_s < until_s:
                engine.run_until(until_s)
                if engine.ended:
                    self.finished += engine.ended
                    engine.ended.clear()
        if any(replica.phase is Phase.DRAINING for replica in self.replicas):
            self.replicas = [replica for replica in self.replicas if not self._gone(replica, until_s)]

    def _gone(self, replica: Replica, now_s: float) -> bool:
        if replica.phase is not Phase.DRAINING:
            return False
        if replica.engine.in_flight == 0:
            return True
        if now_s < replica.drain_until_s:
            return False
        self.cut_streams += replica.engine.in_flight
        return True
