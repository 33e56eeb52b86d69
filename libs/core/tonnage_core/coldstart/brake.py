"""One brake an endpoint: additive increase, multiplicative decrease of the requests in flight.

A refusal (503, 429) halves the limit and pauses the endpoint with jitter; each full window of successes adds one. It is
the rule of TCP's congestion avoidance (RFC 5681), with requests in the place of segments.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Brake:
    """`limit` requests may be in flight, none before `paused_until_s`; `refusals` counts those in a row."""

    limit: int
    ceiling: int
    successes: int = 0
    refusals: int = 0
    paused_until_s: float = 0.0


def succeeded(brake: Brake) -> Brake:
    """After a request that was served: one more in flight once a whole window went well."""
    if brake.limit >= brake.ceiling:
        return replace(brake, refusals=0, successes=0)
    if brake.successes + 1 < brake.limit:
        return replace(brake, refusals=0, successes=brake.successes + 1)
    return replace(brake, refusals=0, successes=0, limit=brake.limit + 1)


def refused(brake: Brake, now_s: float, rng: "Random", retry_after_s: float | None = None) -> Brake:
    """After a 503, a 429 or a time-out at `now_s`.

    Refusals of requests that were in flight when the brake was pulled count once: they tell nothing new.
    """
    if now_s < brake.paused_until_s:
        return brake
    pause = backoff_s(brake.refusals, rng)
    if retry_after_s is not None:
        pause = min(max(pause, retry_after_s), LONGEST_PAUSE_S)
    return replace(
        brake,
        limit=max(1, brake.limit // 2),
        successes=0,
        refusals=brake.refusals + 1,
        paused_until_s=now_s + pause,
    )


def backoff_s(attempt: int, rng: "Random", first_s: float = FIRST_PAUSE_S) -> float:
    """Seconds before attempt `attempt + 1`: doubles from `first_s` to 60 s, times 0.5 to 1.5."""
    return min(first_s * 2.0 ** min(attempt, 16), LONGEST_PAUSE_S) * rng.uniform(0.5, 1.5)


def may_start(brake: Brake, in_flight: int, now_s: float) -> bool:
    """Whether one more request may go out."""
    return in_flight < brake.limit and now_s >= brake.paused_until_s
