"""What the load will be when a replica asked for now serves, from the past alone.

Point forecast: the larger of the last five minutes and the last minute (a surge counts within a minute, noise evens
out), plus a tenth of a rising trend; a pool too young for either, whose load surely rises, is taken at the rise; with a
whole season on record, what the season did from here on, if that is more.
The margin over it is learned: what past forecasts would have had to be multiplied by so that nobody waited longer than
the TTFT limit leaves room for, at the quantile asked for, together with a prior that a new pool starts from. So a
steady pool gets a small margin, a bursty one a large one, and nothing has to be tuned by hand.

What had to be there (`required`): of `W` replica-seconds that came within `d` seconds a fleet of `n` leaves `W - n d`
waiting, which takes it `(W - n d) / n` seconds. So `n >= W / (d + slack)`, for every `d` up to a minute back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

BUCKET_S = 15.0
LEVEL, RECENT, TREND = 20, 4, 20
"""Buckets of the level, of the recent mean, of the trend."""
LEAST_PAST = 4
"""Buckets that a forecast must have seen for what came of it to be evidence."""
BURST_S = 60.0
"""How far back a burst may have begun that is still worked off."""
KEPT_RATIOS = 240
"""Past forecasts that the margin is learned from: an hour."""
PRIOR = (1.1, 1.2, 1.3, 1.4)
PRIOR_WEIGHT = 4
"""The prior's ratios each count this often: an hour of evidence outweighs them."""
TREND_DAMPING = 0.1
YOUNG = 8
"""Buckets below which a trend over minutes is noise, and the mean of a minute lags behind a load that only begins."""
SURE = 2.0
"""Deviations of chance that a young pool's rise must be beyond."""
OVERSHOOT = 1.25
"""Most that a young pool's rise is followed to, over the load of the last bucket."""
LARGEST_SEASON = 3.0
"""Most that a season may multiply the level by."""
LARGEST_RATIO = 2.0
"""Most that one miss counts for: a single step up must not multiply the load of the hour after it."""


@dataclass(frozen=True, slots=True)
class History:
    """Mean load by bucket, oldest first; the open bucket's sum; how past forecasts turned out.

    `season_s` of 0 means that no season is looked for.
    """

    values: tuple[float, ...] = ()
    closed_at_s: float | None = None
    """End of the last closed bucket."""
    open_sum: float = 0.0
    open_count: int = 0
    open_required: float = 0.0
    """The most replicas that had to be there in the open bucket."""
    burst: tuple[tuple[float, float], ...] = ()
    """Measurements of the last minute: time, load."""
    ratios: tuple[float, ...] = ()
    """What had to be there over what had been forecast, by bucket."""
    season_s: float = 86_400.0
    kept_s: float = 2 * 86_400.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Loads at the horizon, in the unit of the history."""

    level: float
    """Of the last minute."""
    point: float
    upper: float
    """The point with the learned margin."""
    margin: float
    """What the point was multiplied by."""


def record(history: History, load: float, now_s: float, horizon_s: float, slack_s: float = 1.0) -> History:
    """The history with one more measurement; a pause leaves out the buckets it covers by repeating the last one.

    `slack_s` is how long a request may wait. A clock that went back starts an open bucket anew and loses nothing that
    was recorded.
    """
    if history.closed_at_s is None or now_s < history.closed_at_s:
        return _opened(history, load, now_s)
    while now_s - history.closed_at_s >= BUCKET_S:
        pause = (now_s - history.closed_at_s) // BUCKET_S
        if pause > TREND and not history.open_count:
            # Repeating a value for hours would invent evidence: the history goes on from here.
            return _opened(history, load, now_s)
        history = _close(history, horizon_s)
        assert history.closed_at_s is not None
    burst = (*(seen for seen in history.burst if now_s - seen[0] < BURST_S), (now_s, load))
    return replace(
        history,
        open_sum=history.open_sum + load,
        open_count=history.open_count + 1,
        open_required=max(history.open_required, required(burst, slack_s)),
        burst=burst,
    )


def _opened(history: History, load: float, now_s: float) -> History:
    return replace(history, closed_at_s=now_s, open_sum=load, open_count=1, open_required=load, burst=((now_s, load),))


def required(burst: Sequence[tuple[float, float]], slack_s: float) -> float:
    """Replicas without which the newest of the measurements (time, load) would have waited longer than `slack_s`.

    Each load holds since the measurement before it, the first one for as long as the second.
    """
    work = span = most = 0.0
    for index in range(len(burst) - 1, -1, -1):
        here = max(1, index)
        since = burst[here][0] - burst[here - 1][0] if len(burst) > 1 else BUCKET_S
        span += min(since, BUCKET_S)
        work += burst[index][1] * min(since, BUCKET_S)
        most = max(most, work / (span + max(0.1, slack_s)))
    return most


def _close(history: History, horizon_s: float) -> History:
    last = history.values[-1] if history.values else 0.0
    mean = history.open_sum / history.open_count if history.open_count else last
    kept = int(history.kept_s / BUCKET_S)
    values = (*history.values[-kept + 1 :], mean)
    ratios = history.ratios
    ahead = buckets(horizon_s)
    if history.open_count and len(values) > ahead + LEAST_PAST:
        ratios = (*ratios[-KEPT_RATIOS + 1 :], _turned_out(values, ahead, history.open_required))
    end = (history.closed_at_s or 0.0) + BUCKET_S
    return replace(
        history, values=values, closed_at_s=end, open_sum=0.0, open_count=0, open_required=0.0, ratios=ratios
    )


def buckets(horizon_s: float) -> int:
    """The horizon in buckets, at least one."""
    return max(1, math.ceil(horizon_s / BUCKET_S))


def _turned_out(values: Sequence[float], ahead: int, came: float) -> float:
    """The replicas that had to be there over those forecast `ahead` buckets before."""
    said = point(values[: len(values) - ahead], ahead)
    return min(LARGEST_RATIO, came / said) if said > 0 else 1.0


def point(values: Sequence[float], ahead: int, request_s: float = 0.0) -> float:
    """The load `ahead` buckets on, without margin; 0 for an empty history. `request_s` is what a request takes of a
    replica: with it a young pool's rise is told from chance."""
    if not values:
        return 0.0
    base = max(_mean(values[-LEVEL:]), _mean(values[-RECENT:]))
    if len(values) < YOUNG:
        return base + rise(values[-RECENT:], request_s)
    return base + max(0.0, slope(values[-TREND:])) * ahead * TREND_DAMPING


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def slope(values: Sequence[float]) -> float:
    """Least-squares rise a bucket; 0 for fewer than `YOUNG` values, which is noise."""
    return _fitted(values) if len(values) >= YOUNG else 0.0


def _fitted(values: Sequence[float]) -> float:
    count = len(values)
    middle = (count - 1) / 2
    spread = count * (count * count - 1) / 12
    return sum((index - middle) * value for index, value in enumerate(values)) / spread


def rise(values: Sequence[float], request_s: float) -> float:
    """What a young pool's load is beyond the mean of `values`, its last minute, if it goes on as it surely rose.

    The line fitted, less `SURE` deviations of its slope by chance, from the middle of the values to as long after them
    as they took; 0 for fewer than three values or no known request.
    """
    count = len(values)
    if count < 3 or request_s <= 0:
        return 0.0
    mean, spread = _mean(values), count * (count * count - 1) / 12
    sure = _fitted(values) - SURE * chance(mean, request_s, BUCKET_S) / math.sqrt(spread)
    return max(0.0, min(sure * ((count - 1) / 2 + count), OVERSHOOT * values[-1] - mean))


def chance(load: float, request_s: float, seconds: float = RECENT * BUCKET_S) -> float:
    """Deviation of the mean load of `seconds` by Poisson arrivals of requests of exponential size."""
    return math.sqrt(2 * load * request_s / seconds)


def seasonal(history: History, ahead: int) -> float | None:
    """The level scaled by what the season did from this time on; None without a whole season on record."""
    season = int(history.season_s / BUCKET_S)
    if season < 1 or len(history.values) < season + LEVEL:
        return None
    start = len(history.values) - season
    then = _mean(history.values[max(0, start - LEVEL) : start])
    later = history.values[start : start + ahead + 1]
    if then <= 0 or not later:
        return None
    return _mean(history.values[-LEVEL:]) * min(LARGEST_SEASON, max(later) / then)


def margin_of(ratios: Sequence[float], quantile: float) -> float:
    """The quantile (0 to 1) of past ratios and the prior together."""
    ordered = sorted((*ratios, *PRIOR * PRIOR_WEIGHT))
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


def forecast(history: History, horizon_s: float, quantile: float, request_s: float = 0.0) -> Forecast | None:
    """The load at the horizon; None before the first bucket is closed. `request_s` as for `point`."""
    if not history.values:
        return None
    ahead = buckets(horizon_s)
    level = _mean(history.values[-RECENT:])
    said = max(point(history.values, ahead, request_s), seasonal(history, ahead) or 0.0)
    margin = margin_of(history.ratios, quantile)
    return Forecast(level, said, said * margin, margin)
