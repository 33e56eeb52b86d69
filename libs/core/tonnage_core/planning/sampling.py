"""How many requests a trial runs: enough for its percentiles, and no more work than a person waits for.

What a trial costs grows with the tokens it generates, and a little with those it reads. The engine model takes about a
second of one core for a million of the former, so long answers are sampled by fewer requests, and answers so long that
even the least sample is too much are refused.
"""

from dataclasses import dataclass
from math import ceil

from tonnage_core.planning.errors import PlanSpecError
from tonnage_core.planning.traffic import Traffic

MEASURED = 200
"""Requests whose latencies count, after as many as are in flight at once, which fill the engine."""
LEAST_MEASURED = 60
MOST_FILLING = 500
LONGEST_REPLAY = 320
"""Requests of a trace replayed in one trial."""
USUAL_TOKENS = 600_000
"""Beyond so many generated tokens the sample shrinks to `LEAST_MEASURED` …"""
MOST_TOKENS = 2_000_000
"""… and beyond so many a trial is not run."""
MOST_WORK = 1_500_000
"""Work of all trials of a plan, after which the search begins no other configuration and loosens no further target."""
PROMPT_WEIGHT = 0.1
"""What a prompt's token costs to follow, in generated ones: a list of its blocks and a few steps."""


@dataclass(slots=True)
class Work:
    """What the trials of one plan have taken so far, in generated tokens, and what was left out when that was much."""

    tokens: float = 0.0
    left_out: int = 0
    shortened: int = 0

    def shorten(self, measured: int) -> int:
        """The requests to measure in the next trial: the least once there was much work."""
        if self.tokens <= MOST_WORK or measured <= LEAST_MEASURED:
            return measured
        self.shortened += 1
        return LEAST_MEASURED

    def ends(self) -> bool:
        """Whether to leave out what comes next, and counts it."""
        if self.tokens <= MOST_WORK:
            return False
        self.left_out += 1
        return True


@dataclass(frozen=True, slots=True)
class Sample:
    """`count` requests, of which the first `filling` fill the engine and the next `measured` count; `tokens`: the work
    of following them, in generated tokens."""

    count: int
    filling: int
    measured: int
    tokens: float


def sample_for(traffic: Traffic, in_flight: float, measured: int = MEASURED) -> Sample:
    """The sample of one trial with about `in_flight` requests at once. `tokens` may be above `MOST_TOKENS`."""
    filling = min(MOST_FILLING, ceil(1.5 * in_flight) + 10)
    each = traffic.outputs.mean + PROMPT_WEIGHT * traffic.mean_input
    spare = int(USUAL_TOKENS / each) - filling - filling // 2
    measured = max(min(measured, LEAST_MEASURED), min(measured, spare))
    count = filling + measured + filling // 2
    if traffic.requests:
        count = min(count, len(traffic.requests), LONGEST_REPLAY)
        filling = min(filling, count // 4)
        measured = max(1, min(measured, count - filling))
    return Sample(count, filling, measured, count * each)


def affordable(sample: Sample, traffic: Traffic) -> Sample:
    """The sample. Raises `PlanSpecError` when following it takes longer than anyone waits."""
    if sample.tokens <= MOST_TOKENS:
        return sample
    raise PlanSpecError(
        f"traffic of {traffic.outputs.mean:,.0f} tokens out and {traffic.mean_input:,.0f} in takes {sample.count:,}"
        f" requests a trial, {sample.tokens / 1e6:,.1f} million tokens of work where {MOST_TOKENS / 1e6:g} are most;"
        " plan for shorter answers, or ask `tonnage predict` for the closed loop"
    )
