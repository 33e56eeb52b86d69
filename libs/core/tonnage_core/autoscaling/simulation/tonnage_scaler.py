"""The live decision in the simulation: the same tracks, observations and `decide`, fed from simulated engines.

Every replica is scraped at each decision, as the planner does; a replica that drains has left the endpoint list, and
one that starts is listed and does not answer.
"""

import math
from collections import deque
from collections.abc import Iterator

from tonnage_core.autoscaling.engine_metrics import EngineReading, Signal
from tonnage_core.autoscaling.observation import Attempt, Outcome, Track, advance, observe
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.signals import RouterQueue
from tonnage_core.autoscaling.simulation.fleet import Phase, Replica, SimulatedFleet
from tonnage_core.autoscaling.simulation.lean_engine import Job
from tonnage_core.autoscaling.state_machine import Decision, PoolState, decide
from tonnage_core.autoscaling.warm import WarmTable, warm_table

STALE_AFTER_S = 20.0
START_GRACE_S = 600.0


class TonnageScaler:
    """Decides every `interval_s` with the planner's own code; `decisions` keeps what was decided, with times."""

    def __init__(self, policy: ScalingPolicy, *, interval_s: float = 5.0) -> None:
        self.interval_s = interval_s
        self.decisions: deque[tuple[float, Decision]] = deque(maxlen=10_000)
        self._policy = policy
        self._state = PoolState()
        self._tracks: dict[str, Track] = {}
        self._late: dict[str, list[float]] = {}
        """First tokens and those in time, by replica."""

    def warm(self, usd_per_miss: float | None) -> WarmTable | None:
        """What warm replicas would have cost and saved on this trace; None before a forecast was held against it."""
        last = self.decisions[-1][1].outlook if self.decisions else None
        return None if last is None else warm_table(self._state.outlook.history, last, self._policy, usd_per_miss)

    def act(self, fleet: SimulatedFleet, now_s: float, starts: Iterator[float]) -> None:
        """Scrape, decide, scale."""
        listed = [replica for replica in fleet.replicas if replica.phase is not Phase.DRAINING]
        self._count_first_tokens(fleet)
        first = not self._tracks
        self._tracks = {one.name: self._scraped(one, now_s, joined=not first) for one in listed}
        seen = [
            observe(track, now_s, stale_after_s=STALE_AFTER_S, start_grace_s=START_GRACE_S)
            for track in self._tracks.values()
        ]
        router = RouterQueue(float(len(fleet.held)))
        self._state, decision = decide(self._state, seen, now_s, self._policy, router)
        self.decisions.append((now_s, decision))
        fleet.scale_to(decision.target, now_s, starts)

    def _scraped(self, replica: Replica, now_s: float, *, joined: bool) -> Track:
        track = self._tracks.get(replica.name) or Track(replica.name, "pool", now_s, joined=joined)
        if replica.phase is Phase.STARTING:
            return advance(track, Attempt(now_s, Outcome.UNREACHABLE))
        return advance(track, Attempt(now_s, Outcome.OK, self._reading(replica)))

    def _reading(self, replica: Replica) -> EngineReading:
        engine = replica.engine
        begun, in_time = self._late.get(replica.name, (0.0, 0.0))
        limit = self._policy.capacity.slo_ttft_s if self._policy.capacity else 2.0
        counters: dict[str, float | None] = {
            "prompt_tokens": float(engine.counters.prompt_tokens),
            "generation_tokens": float(engine.counters.generation_tokens),
            "finished_requests": float(engine.counters.finished),
            "first_tokens": float(engine.counters.begun),
            "prefix_hits": 0.0,
        }
        gauges: dict[Signal, float | None] = {
            Signal.RUNNING: float(engine.rows),
            Signal.WAITING: float(len(engine.waiting)),
            Signal.KV_USAGE: engine.kv_usage,
        }
        return EngineReading(
            engine="vllm",
            gauges=gauges,
            counters=counters,
            names={},
            missing=(),
            never_sent=(),
            ttft_buckets={limit: in_time, math.inf: begun},
        )

    def _count_first_tokens(self, fleet: SimulatedFleet) -> None:
        limit = self._policy.capacity.slo_ttft_s if self._policy.capacity else 2.0
        for replica in fleet.replicas:
            engine = replica.engine
            counts = self._late.setdefault(replica.name, [0.0, 0.0])
            for job in engine.started:
                counts[0] += 1
                counts[1] += _in_time(job, limit)
            engine.started.clear()


def _in_time(job: Job, limit_s: float) -> bool:
    return job.ttft_s <= limit_s
