"""Capacity: the highest rate whose percentile meets the SLO, found by bracketing with repeats.

`next_move` is pure: from the trials so far to the next rate or the answer. Rates double (or halve) until a pass stands
below a failure, then the bracket is cut at its geometric middle until its ends are within the tolerance; both ends must
have as many agreeing trials as `repeats` asks for, so that one lucky run does not decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tonnage_core.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Trial:
    """One run at a rate (requests/s): whether the SLO was met; None when the run was void and says nothing."""

    rate: float
    met: bool | None


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Where to begin, how near the bracket's ends must come, how many runs may be spent, how many must agree."""

    start: float
    tolerance: float = 0.05
    most_runs: int = 12
    repeats: int = 1
    lowest: float = 0.01
    highest: float = 1e6

    def __post_init__(self) -> None:
        """Raises `BadInputError` for a search that cannot end."""
        if not 0 < self.lowest <= self.start <= self.highest < math.inf:
            raise BadInputError(
                f"a search cannot start at {self.start:g} requests/s, outside {self.lowest:g}..{self.highest:g}"
            )
        if not 0 < self.tolerance < 1 or self.most_runs < 1 or self.repeats < 1:
            raise BadInputError("a search needs a tolerance between 0 and 1, at least 1 run and 1 repeat")


@dataclass(frozen=True, slots=True)
class Try:
    """Run this rate next."""

    rate: float
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """The end: `capacity` is the highest rate that passed (None: none did), `failing` the lowest above that failed."""

    capacity: float | None
    failing: float | None
    complete: bool
    reason: str


def next_move(trials: Sequence[Trial], settings: SearchSettings) -> Try | Found:
    """The next rate, or the answer."""
    votes = _votes(trials)
    low, high = _bracket(votes)
    if _voids_in_a_row(trials) >= 2:
        return Found(low, high, False, f"two void runs at {trials[-1].rate:g} requests/s: the generator cannot go on")
    if trials and trials[-1].met is None:
        return _within(trials, settings, low, high, Try(trials[-1].rate, "the last run was void"))
    if high is None:
        if low is None:
            return _within(trials, settings, low, high, Try(settings.start, "the first guess"))
        if low >= settings.highest:
            return Found(low, None, False, "the highest rate allowed still meets the SLO")
        return _within(trials, settings, low, high, Try(min(2 * low, settings.highest), "passed: look higher"))
    if low is None:
        if high <= settings.lowest:
            return Found(None, high, True, "not even the lowest rate meets the SLO")
        return _within(trials, settings, low, high, Try(max(high / 2, settings.lowest), "failed: look lower"))
    if high / low > 1 + settings.tolerance:
        return _within(trials, settings, low, high, Try(math.sqrt(low * high), "halve the bracket"))
    for rate, word in ((low, "pass"), (high, "failure")):
        if abs(votes[rate]) < settings.repeats:
            return _within(trials, settings, low, high, Try(rate, f"repeat the {word}"))
    return Found(low, high, True, f"bracketed within {settings.tolerance:.0%}")


def _within(
    trials: Sequence[Trial], settings: SearchSettings, low: float | None, high: float | None, step: Try
) -> Try | Found:
    if len(trials) < settings.most_runs:
        return step
    return Found(low, high, False, f"{settings.most_runs} runs are spent; next would have been: {step.reason}")


def _votes(trials: Sequence[Trial]) -> dict[float, int]:
    """Passes minus failures of each rate; a tie counts as a failure."""
    votes: dict[float, int] = {}
    for trial in trials:
        if trial.met is not None:
            votes[trial.rate] = votes.get(trial.rate, 0) + (1 if trial.met else -1)
    return votes


def _bracket(votes: dict[float, int]) -> tuple[float | None, float | None]:
    """The highest passing rate below every failing one, and the lowest failing rate."""
    high = min((rate for rate, vote in votes.items() if vote <= 0), default=None)
    low = max((rate for rate, vote in votes.items() if vote > 0 and (high is None or rate < high)), default=None)
    return low, high


def _voids_in_a_row(trials: Sequence[Trial]) -> int:
    count = 0
    for trial in reversed(trials):
        if trial.met is not None:
            break
        count += 1
    return count
