"""How many warm replicas are worth their idle time.

A warm replica (asleep, or started and not routed to) serves in seconds where a cold one takes minutes. Without it a
surge that no forecast saw is late for as long as a start lasts. What it saves a day is how often such surges come,
times the requests that one replica would have served in time; what it costs is its idle hours. Both are printed, and
the number at which the next one costs more than it saves is the advice.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WarmAdvice:
    """Replicas to keep warm, with the idle dollars an hour and the requests an hour that would else be late."""

    replicas: int
    idle_usd_per_hour: float
    saved_misses_per_hour: float


def warm_replicas(
    shortfalls: Sequence[float],
    *,
    interval_s: float,
    start_s: float,
    replica_rps: float,
    usd_per_hour: float,
    usd_per_miss: float,
    idle_share: float = 1.0,
    most: int = 8,
) -> WarmAdvice:
    """The number that pays. `shortfalls` are the replicas that past forecasts fell short by, one every `interval_s`.

    `replica_rps` is what one serves, `idle_share` what a warm one costs of a full replica (a sleeping one still holds
    its GPU: 1). With no past there is no advice: 0.
    """
    hours = len(shortfalls) * interval_s / 3600
    chosen, saved = 0, 0.0
    while hours > 0 and chosen < most:
        # Each interval in which one more warm replica would have served is late for at most the time of a start.
        used_s = sum(interval_s for missing in shortfalls if missing > chosen)
        misses = min(used_s, _episodes(shortfalls, chosen) * start_s) * replica_rps / hours
        if misses * usd_per_miss <= usd_per_hour * idle_share:
            break
        chosen, saved = chosen + 1, saved + misses
    return WarmAdvice(chosen, chosen * usd_per_hour * idle_share, saved)


def _episodes(shortfalls: Sequence[float], above: float) -> int:
    """How many separate times the shortfall went above."""
    return sum(now > above and (index == 0 or shortfalls[index - 1] <= above) for index, now in enumerate(shortfalls))
