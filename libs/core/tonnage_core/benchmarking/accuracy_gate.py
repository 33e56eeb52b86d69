"""Does a faster endpoint still answer as well? Two endpoints' scores on the same tasks, and whether the drop is real.

Both answer the same tasks, so the difference is tested on the tasks where they differ (McNemar, exact binomial).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from tonnage_core.errors import BadInputError


@dataclass(frozen=True, slots=True)
class GateResult:
    """Shares of tasks answered rightly, tasks lost and won against the baseline, one-sided p of such a loss."""

    tasks: int
    baseline: float
    candidate: float
    lost: int
    won: int
    p_value: float
    passed: bool
    reason: str


def gate(
    baseline: Sequence[bool], candidate: Sequence[bool], *, allowed_drop: float = 0.01, alpha: float = 0.05
) -> GateResult:
    """The candidate fails when its score is more than `allowed_drop` (a share) lower, or a loss is significant.

    Raises `BadInputError` without tasks or when the two do not pair up.
    """
    if not baseline or len(baseline) != len(candidate):
        raise BadInputError("the accuracy gate needs the same tasks, at least one, answered by both endpoints")
    count = len(baseline)
    lost = sum(b and not c for b, c in zip(baseline, candidate, strict=True))
    won = sum(c and not b for b, c in zip(baseline, candidate, strict=True))
    before, after = sum(baseline) / count, sum(candidate) / count
    differing = lost + won
    p_value = sum(comb(differing, k) for k in range(lost, differing + 1)) / 2**differing
    if before - after > allowed_drop:
        reason = f"the score fell from {before:.1%} to {after:.1%}, more than the {allowed_drop:.1%} allowed"
    elif lost > won and p_value < alpha:
        reason = f"{lost} tasks lost and {won} won: a real loss (p {p_value:.3f})"
    else:
        return GateResult(count, before, after, lost, won, p_value, True, f"{after:.1%} against {before:.1%}")
    return GateResult(count, before, after, lost, won, p_value, False, reason)
