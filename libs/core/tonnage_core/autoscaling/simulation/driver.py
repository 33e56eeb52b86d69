"""One run: arrivals, routing, engines, and the policy asked at its own pace; what came of it.

Time moves in quanta: requests that come within one are routed on what was known at its start, as a live router works
on gauges that are a moment old. The engines themselves keep exact times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tonnage_core.autoscaling.simulation.fleet import Phase, SimulatedFleet
from tonnage_core.autoscaling.simulation.lean_engine import Job, LeanEngine
from tonnage_core.slo import Slo, percentile

QUANTUM_S = 0.1


class Autoscaler(Protocol):
    """What decides in a run. `interval_s` is the time between its decisions."""

    interval_s: float

    def act(self, fleet: SimulatedFleet, now_s: float, starts: Iterator[float]) -> None:
        """Look at the fleet and change it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What all policies share: engine maker, SLO, replicas at the start, limits, drain time; seconds."""

    new_engine: Callable[[float], LeanEngine]
    slo: Slo
    initial: int
    drain_s: float = 300.0
    sample_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one time, for plots; `misses` and `arrivals` since the sample before."""

    at_s: float
    serving: int
    starting: int
    draining: int
    waiting: int
    kv_usage: float
    arrivals: int
    misses: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a policy made of a trace."""

    requests: int
    met: int
    gpu_hours: float
    """From the first to the last arrival, starting and draining replicas included."""
    cut_streams: int
    direction_changes: int
    peak_serving: int
    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    samples: tuple[Sample, ...]

    @property
    def slo_attainment(self) -> float:
        """Share of requests that met both limits."""
        return self.met / self.requests if self.requests else 1.0


@dataclass(slots=True)
class _Turns:
    """Counts changes of direction of the number of replicas kept."""

    last: int
    direction: int = 0
    changes: int = 0

    def see(self, wanted: int) -> None:
        """The number now."""
        step = (wanted > self.last) - (wanted < self.last)
        if step and self.direction and step != self.direction:
            self.changes += 1
        self.direction = step or self.direction
        self.last = wanted


@dataclass(slots=True)
class _Score:
    """Requests met and missed so far, and the samples."""

    slo: Slo
    met: int = 0
    seen: int = 0
    misses_before: int = 0
    arrived_before: int = 0
    samples: list[Sample] = field(default_factory=list)

    def count(self, finished: Sequence[Job]) -> None:
        """Judge the requests that finished since the last call."""
        for job in finished[self.seen :]:
            self.met += meets(job, self.slo)
        self.seen = len(finished)

    def sample(self, fleet: SimulatedFleet, now_s: float, arrived: int) -> None:
        """Note the fleet as it is."""
        serving = fleet.of(Phase.SERVING)
        misses = self.seen - self.met
        kv = sum(replica.engine.kv_usage for replica in serving) / len(serving) if serving else 0.0
        self.samples.append(
            Sample(
                at_s=now_s,
                serving=len(serving),
                starting=len(fleet.of(Phase.STARTING)),
                draining=len(fleet.of(Phase.DRAINING)),
                waiting=len(fleet.held) + sum(len(replica.engine.waiting) for replica in fleet.replicas),
                kv_usage=round(kv, 4),
                arrivals=arrived - self.arrived_before,
                misses=misses - self.misses_before,
            )
        )
        self.misses_before, self.arrived_before = misses, arrived


def meets(job: Job, slo: Slo) -> bool:
    """The request's TTFT and TPOT are within the limits."""
    return job.ttft_s * 1e3 <= slo.ttft_ms and job.tpot_s * 1e3 <= slo.tpot_ms


def run(jobs: Sequence[Job], scaler: Autoscaler, config: RunConfig, starts: Iterator[float]) -> RunResult:
    """Serve `jobs` (in order of arrival) under `scaler`; `starts` gives the seconds each start takes."""
    fleet = SimulatedFleet(config.new_engine, drain_s=config.drain_s)
    for _ in range(config.initial):
        fleet.start(0.0, 0.0)
    turns, score = _Turns(fleet.wanted), _Score(config.slo)
    now, index, act_at, sample_at, peak = 0.0, 0, 0.0, 0.0, 0
    end = jobs[-1].arrival_s if jobs else 0.0
    while now <= end:
        if now >= act_at:
            scaler.act(fleet, now, starts)
            turns.see(fleet.wanted)
            act_at += scaler.interval_s
        if now >= sample_at:
            score.count(fleet.finished)
            score.sample(fleet, now, index)
            sample_at += config.sample_s
        until, first = now + QUANTUM_S, index
        while index < len(jobs) and jobs[index].arrival_s < until:
            index += 1
        fleet.route(list(jobs[first:index]), now)
        fleet.run_until(until, now)
        peak = max(peak, sum(replica.phase is Phase.SERVING for replica in fleet.replicas))
        now = until
    hours = fleet.replica_seconds / 3600
    _finish(fleet, now, starts)
    score.count(fleet.finished)
    return _result(jobs, fleet, score, hours, turns.changes, peak)


def _finish(fleet: SimulatedFleet, now_s: float, starts: Iterator[float]) -> None:
    """Let every request end after the last arrival; a fleet at zero is started once for those that wait."""
    if fleet.held and not fleet.wanted:
        fleet.start(now_s, next(starts))
    while fleet.held or any(replica.engine.in_flight for replica in fleet.replicas):
        fleet.route([], now_s)
        fleet.run_until(now_s + 1.0, now_s)
        now_s += 1.0


def _result(
    jobs: Sequence[Job], fleet: SimulatedFleet, score: _Score, hours: float, changes: int, peak: int
) -> RunResult:
    ttft = percentile(sorted(job.ttft_s for job in fleet.finished), 99)
    tpot = percentile(sorted(job.tpot_s for job in fleet.finished if job.output > 1), 99)
    return RunResult(
        requests=len(jobs),
        met=score.met,
        gpu_hours=hours,
        cut_streams=fleet.cut_streams,
        direction_changes=changes,
        peak_serving=peak,
        ttft_p99_ms=None if ttft is None else ttft * 1e3,
        tpot_p99_ms=None if tpot is None else tpot * 1e3,
        samples=tuple(score.samples),
    )
