"""How many warm replicas are worth their idle time.

A warm replica (asleep, or started and not routed to) serves in seconds where a cold one takes minutes. Without it a
surge that no forecast saw is late for as long as a start lasts. What it saves a day is how often such surges come,
times the requests that one replica would have served in time; what it costs is its idle hours. Both are printed, and
the number at which the next one costs more than it saves is the advice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tonnage_core.autoscaling.forecast import BUCKET_S, History, buckets, margin_of, point
from tonnage_core.autoscaling.outlook import Outlook
from tonnage_core.autoscaling.policy import ScalingPolicy


@dataclass(frozen=True, slots=True)
class WarmAdvice:
    """Replicas to keep warm, with the idle dollars an hour and the requests an hour that would else be late."""

    replicas: int
    idle_usd_per_hour: float
    saved_misses_per_hour: float


@dataclass(frozen=True, slots=True)
class WarmChoice:
    """One size of a warm pool: what it costs idle (None: no price is known), and the requests an hour that it leaves
    late."""

    replicas: int
    idle_usd_per_hour: float | None
    misses_per_hour: float


def shortfalls(history: History, horizon_s: float, quantile: float, fill: float) -> tuple[float, ...]:
    """Replicas that the load kept full beyond those the forecast with its margin gave, one a bucket of the history.

    The margin is the one learned by now; buckets before the first forecast are left out.
    """
    ahead, values = buckets(horizon_s), history.values
    margin = max(margin_of(history.ratios, quantile), 1 / fill)
    # A point forecast looks back by less than this many buckets.
    span = 32
    return tuple(
        max(0.0, values[index] - point(values[max(0, index - ahead - span) : index - ahead], ahead) * margin)
        for index in range(ahead + 4, len(values))
    )


def choices(
    missing: Sequence[float],
    *,
    interval_s: float,
    start_s: float,
    replica_rps: float,
    usd_per_hour: float | None,
    most: int = 8,
) -> tuple[WarmChoice, ...]:
    """Every size up to the first that leaves nothing late, with what it costs and leaves. Empty without a past."""
    hours = len(missing) * interval_s / 3600
    found: list[WarmChoice] = []
    for size in range(most + 1 if hours > 0 else 0):
        late = sum(_late(missing, above, interval_s, start_s) for above in range(size, size + 64)) * replica_rps / hours
        found.append(WarmChoice(size, None if usd_per_hour is None else size * usd_per_hour, late))
        if not late:
            break
    return tuple(found)


def _late(missing: Sequence[float], above: int, interval_s: float, start_s: float) -> float:
    """Seconds for which the replica after `above` warm ones was missing; one that is asked for comes after a start."""
    used_s = sum(interval_s for one in missing if one > above)
    return min(used_s, _episodes(missing, above) * start_s)


def warm_replicas(
    missing: Sequence[float],
    *,
    interval_s: float,
    start_s: float,
    replica_rps: float,
    usd_per_hour: float,
    usd_per_miss: float,
    idle_share: float = 1.0,
    most: int = 8,
) -> WarmAdvice:
    """The number that pays. `missing` are the replicas that past forecasts fell short by, one every `interval_s`.

    `replica_rps` is what one serves, `idle_share` what a warm one costs of a full replica (a sleeping one still holds
    its GPU: 1). With no past there is no advice: 0.
    """
    hours = len(missing) * interval_s / 3600
    chosen, saved = 0, 0.0
    while hours > 0 and chosen < most:
        # Each interval in which one more warm replica would have served is late for at most the time of a start.
        misses = _late(missing, chosen, interval_s, start_s) * replica_rps / hours
        if misses * usd_per_miss <= usd_per_hour * idle_share:
            break
        chosen, saved = chosen + 1, saved + misses
    return WarmAdvice(chosen, chosen * usd_per_hour * idle_share, saved)


def _episodes(missing: Sequence[float], above: float) -> int:
    """How many separate times the shortfall went above."""
    return sum(now > above and (index == 0 or missing[index - 1] <= above) for index, now in enumerate(missing))


@dataclass(frozen=True, slots=True)
class WarmTable:
    """Sizes of a warm pool with their idle dollars and late requests, and the size that pays (None: no price is
    known)."""

    choices: tuple[WarmChoice, ...]
    advice: WarmAdvice | None
    hours: float
    """Hours of forecasts it is drawn from."""


def warm_table(
    history: History, outlook: Outlook, policy: ScalingPolicy, usd_per_miss: float | None
) -> WarmTable | None:
    """The table of a pool from its own past forecasts; None before there is one."""
    demand, fill = outlook.demand, outlook.fill
    if demand is None or fill is None or demand.request_s <= 0:
        return None
    missing = shortfalls(history, outlook.horizon_s, policy.forecast_quantile, fill)
    if not missing:
        return None
    rps, price = fill / demand.request_s, policy.usd_per_replica_hour
    table = choices(missing, interval_s=BUCKET_S, start_s=outlook.horizon_s, replica_rps=rps, usd_per_hour=price)
    advice = None
    if price is not None and usd_per_miss is not None:
        advice = warm_replicas(
            missing,
            interval_s=BUCKET_S,
            start_s=outlook.horizon_s,
            replica_rps=rps,
            usd_per_hour=price,
            usd_per_miss=usd_per_miss,
        )
    return WarmTable(table, advice, len(missing) * BUCKET_S / 3600)
