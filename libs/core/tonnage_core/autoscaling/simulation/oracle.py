"""The fewest replica-hours that can be found with arrivals and start times known beforehand.

The work of every slot is known, so the replicas it needs are too; a level that would be given up for less time than a
start takes is kept, since a start costs its own time. Each start is asked for as much earlier as it will take. What is
left to choose, the share of each replica that is used and the slots one looks over, is searched by running the same
simulation (`search`), least replica-hours first. It is the best plan found, which no policy without foresight has to
reach; the true optimum may lie a little below.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tonnage_core.autoscaling.simulation.driver import RunResult
from tonnage_core.autoscaling.simulation.fleet import SimulatedFleet
from tonnage_core.autoscaling.simulation.lean_engine import Job


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One replica: asked for at `asked_s`, serving from `ready_s` to `release_s`."""

    asked_s: float
    ready_s: float
    release_s: float


def slot_work(jobs: Sequence[Job], cost_s: Callable[[Job], float], slot_s: float) -> list[float]:
    """Replica-seconds a second that each slot of `slot_s` brings."""
    if not jobs:
        return []
    work = [0.0] * (int(jobs[-1].arrival_s // slot_s) + 1)
    for job in jobs:
        work[int(job.arrival_s // slot_s)] += cost_s(job) / slot_s
    return work


def replicas_needed(work: Sequence[float], used: float, look: int) -> list[int]:
    """Replicas a slot: the mean work of `look` slots around it over the share `used`; at least 1."""
    totals = [0.0]
    for value in work:
        totals.append(totals[-1] + value)
    needed = []
    for index in range(len(work)):
        low, high = max(0, index - look // 2), min(len(work), index + look // 2 + 1)
        needed.append(max(1, math.ceil((totals[high] - totals[low]) / (high - low) / used)))
    return needed


def lifetimes(needed: Sequence[int], slot_s: float, initial: int, starts: Iterator[float]) -> list[Lifetime]:
    """The replicas' lives, level by level: gaps shorter than the start they would save are bridged.

    `initial` replicas are there at 0 without a start, and given up at once where the plan does without them.
    """
    spans: list[tuple[float, float, int]] = []
    for level in range(1, max(needed, default=0) + 1):
        spans += [(a * slot_s, b * slot_s, level) for a, b in _runs(needed, level)]
    lives = [Lifetime(0.0, 0.0, 0.0) for _ in range(initial)]
    latest = {level: level - 1 for level in range(1, initial + 1)}
    for begin, end, level in sorted(spans):
        start = 0.0 if begin <= 0 else next(starts)
        before = latest.get(level)
        if before is not None and begin - lives[before].release_s <= start:
            lives[before] = replace(lives[before], release_s=end)
            continue
        latest[level] = len(lives)
        lives.append(Lifetime(max(0.0, begin - start), max(begin, start), end))
    return lives


def _runs(needed: Sequence[int], level: int) -> Iterator[tuple[int, int]]:
    begin: int | None = None
    for index, count in enumerate(needed):
        if count >= level and begin is None:
            begin = index
        if count < level and begin is not None:
            yield begin, index
            begin = None
    if begin is not None:
        yield begin, len(needed)


class OracleScaler:
    """Follows lifetimes that were planned with foresight."""

    interval_s = 1.0

    def __init__(self, lives: Sequence[Lifetime]) -> None:
        self._starts = sorted((life for life in lives if life.ready_s > 0), key=lambda life: life.asked_s)
        self._ends = sorted(life.release_s for life in lives)

    def act(self, fleet: SimulatedFleet, now_s: float, starts: Iterator[float]) -> None:
        """Ask for what is due and give up what is over."""
        while self._starts and self._starts[0].asked_s <= now_s:
            fleet.start(now_s, self._starts.pop(0).ready_s - now_s)
        while self._ends and self._ends[0] <= now_s:
            self._ends.pop(0)
            fleet.release(now_s, keep_starting=True)


@dataclass(frozen=True, slots=True)
class OraclePlan:
    """The best plan found and its run."""

    used: float
    look: int
    peak: int
    result: RunResult


Attempt = Callable[[float, int], tuple[Sequence[int], RunResult]]
"""(share of a replica used, slots looked over) -> replicas a slot, and what came of them."""


def search(attempt: Attempt, *, attainment: float, looks: Sequence[int], rounds: int = 6) -> OraclePlan | None:
    """The cheapest plan that meets `attainment`: for each of `looks`, the largest share used, by bisection."""
    best: OraclePlan | None = None
    for look in looks:
        low, high = 0.7, 1.3
        for _ in range(rounds):
            used = (low + high) / 2
            needed, result = attempt(used, look)
            if result.slo_attainment < attainment:
                high = used
                continue
            low = used
            if best is None or result.gpu_hours < best.result.gpu_hours:
                best = OraclePlan(used, look, max(needed, default=0), result)
    return best
