"""Statistics of one run: warm-up, steady state, percentiles with intervals, how many requests a percentile needs.

Latencies of successive requests go together (they share queues), so intervals count a run for fewer requests than it
has. The share of requests above a percentile is a mean; its variance comes from means of `BATCHES` batches in order of
time (Student's t for so few), and the interval of the percentile is the values at the shares this leaves possible
(quantile estimation by batch means, as in Law, Simulation Modeling and Analysis, ch. 9). Warm-up: MSER-5 (White 1997),
the cut that minimises the standard error of what is kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tonnage_core.slo import percentile

BATCHES = 10
T95 = 2.262
"""Student's t at 97.5 % for BATCHES - 1 = 9 degrees of freedom."""
MSER_GROUP = 5
DRIFT_SHARE = 0.15
"""A mean that moves by less over the run than this share of itself is steady for a reader of latencies."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A percentile with its 95 % interval. `high` None: the run is too short to bound it from above."""

    value: float
    low: float
    high: float | None
    effective: float
    """Independent requests the run is worth for this percentile."""

    def holds(self, truth: float) -> bool:
        """The interval contains `truth`."""
        return self.low <= truth and (self.high is None or truth <= self.high)


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Whether the kept part of a run drifts: the mean's change from its first to its last half, and its t value."""

    steady: bool
    change_share: float | None
    t_value: float | None
    reason: str


def needed_for(percent: float) -> int:
    """Independent requests from which a percentile's 95 % interval has an upper end: log(0.025) / log(p).

    368 for p99, 3,688 for p99.9: with fewer the largest value seen may lie below the percentile.
    """
    if not 0 < percent < 100:
        raise ValueError(f"percentile {percent:g} is outside 0..100")
    share = max(percent, 100 - percent) / 100
    return math.ceil(math.log(0.025) / math.log(share))


def more_needed(interval: Interval | None, have: int, percent: float) -> int:
    """Further requests like those seen until the percentile can be bounded; 0 when it can be."""
    need = needed_for(percent)
    if interval is None or have == 0:
        return max(0, need - have)
    worth = min(1.0, max(interval.effective, 1.0) / have)
    return max(0, math.ceil(need / worth) - have)


def interval_of(values: Sequence[float], percent: float) -> Interval | None:
    """The percentile of `values`, given in order of time, with its 95 % interval; None for no value."""
    ordered = sorted(values)
    value = percentile(ordered, percent)
    if value is None:
        return None
    share, count = percent / 100, len(values)
    error = math.sqrt(share * (1 - share) / count)
    batched = _batched_error([x > value for x in values])
    error = max(error, batched or 0.0)
    effective = share * (1 - share) / error**2 if error else float(count)
    low = percentile(ordered, 100 * max(0.0, share - T95 * error)) or ordered[0]
    top = share + T95 * error
    unbounded = top >= 1 or effective < needed_for(percent)
    return Interval(value, min(low, value), None if unbounded else percentile(ordered, 100 * top), effective)


def _batched_error(flags: Sequence[bool]) -> float | None:
    """Standard error of the mean of `flags` by batch means; None for too few."""
    size = len(flags) // BATCHES
    if size < 2:
        return None
    means = [sum(flags[n * size : (n + 1) * size]) / size for n in range(BATCHES)]
    centre = sum(means) / BATCHES
    return math.sqrt(sum((m - centre) ** 2 for m in means) / (BATCHES - 1) / BATCHES)


def warmup_end(values: Sequence[float]) -> int | None:
    """How many of the first values are warm-up; None when no more than half may go and the best cut is later."""
    groups = [sum(values[n : n + MSER_GROUP]) / MSER_GROUP for n in range(0, len(values) - MSER_GROUP + 1, MSER_GROUP)]
    if len(groups) < 4:
        return 0
    best, cut = math.inf, 0
    total = squares = 0.0
    shift = groups[-1]
    for start in range(len(groups) - 1, -1, -1):
        total += groups[start] - shift
        squares += (groups[start] - shift) ** 2
        kept = len(groups) - start
        if kept < 4:
            continue
        score = max(0.0, squares - total * total / kept) / kept**2
        if score <= best:
            best, cut = score, start
    return None if cut > len(groups) // 2 else cut * MSER_GROUP


def steadiness(values: Sequence[float]) -> Steadiness:
    """Do the values (in order of time) drift? Batch means of both halves are compared by Welch's t."""
    size = len(values) // BATCHES
    if size < 2:
        return Steadiness(False, None, None, f"{len(values)} requests are too few to tell; {2 * BATCHES} are needed")
    means = [sum(values[n * size : (n + 1) * size]) / size for n in range(BATCHES)]
    half = BATCHES // 2
    first, last = sum(means[:half]) / half, sum(means[half:]) / half
    spread = sum((m - first) ** 2 for m in means[:half]) + sum((m - last) ** 2 for m in means[half:])
    error = math.sqrt(spread / (half - 1) / half)
    change = (last - first) / first if first else 0.0
    t_value = (last - first) / error if error else (0.0 if last == first else math.copysign(math.inf, last - first))
    if abs(change) <= DRIFT_SHARE or abs(t_value) <= T95:
        return Steadiness(True, change, t_value, "the halves of the run agree")
    word = "grew" if change > 0 else "fell"
    return Steadiness(False, change, t_value, f"latency {word} by {abs(change):.0%} from the first half to the second")
