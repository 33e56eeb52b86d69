"""What the load will be when a replica asked for now serves, from the past alone.

Point forecast: the larger of the last minute and the last half minute (a burst counts at once and leaves slowly), plus
a rising trend over five minutes; with a whole season on record, what the season did from here on, if that is more.
The margin over it is learned: how far past forecasts fell short of what came, at the quantile asked for, together with
a prior that a new pool starts from. So a steady pool gets a small margin, a bursty one a large one, and nothing has to
be tuned by hand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

BUCKET_S = 15.0
LEVEL, RECENT, TREND = 4, 2, 20
"""Buckets of the level, of the recent mean, of the trend."""
KEPT_RATIOS = 240
"""Past forecasts that the margin is learned from: an hour."""
PRIOR = (0.9, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3)
PRIOR_WEIGHT = 3
"""The prior's ratios each count this often: an hour of evidence outweighs them."""
TREND_DAMPING = 0.25
LARGEST_RATIO = 3.0


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
    ratios: tuple[float, ...] = ()
    season_s: float = 86_400.0
    kept_s: float = 2 * 86_400.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Loads at the horizon, in the unit of the history."""

    level: float
    """Now."""
    point: float
    upper: float
    """The point with the learned margin."""
    margin: float
    """What the point was multiplied by."""


def record(history: History, load: float, now_s: float, horizon_s: float) -> History:
    """The history with one more measurement; a pause leaves out the buckets it covers by repeating the last one.

    A clock that went back starts an open bucket anew and loses nothing that was recorded.
    """
    if history.closed_at_s is None or now_s < history.closed_at_s:
        return replace(history, closed_at_s=now_s, open_sum=load, open_count=1)
    while now_s - history.closed_at_s >= BUCKET_S:
        pause = (now_s - history.closed_at_s) // BUCKET_S
        if pause > TREND and not history.open_count:
            # Repeating a value for hours would invent evidence: the history goes on from here.
            return replace(history, closed_at_s=now_s, open_sum=load, open_count=1)
        history = _close(history, horizon_s)
        assert history.closed_at_s is not None
    return replace(history, open_sum=history.open_sum + load, open_count=history.open_count + 1)


def _close(history: History, horizon_s: float) -> History:
    last = history.values[-1] if history.values else 0.0
    mean = history.open_sum / history.open_count if history.open_count else last
    kept = int(history.kept_s / BUCKET_S)
    values = (*history.values[-kept + 1 :], mean)
    ratios = history.ratios
    ahead = buckets(horizon_s)
    if len(values) > ahead + LEVEL:
        ratios = (*ratios[-KEPT_RATIOS + 1 :], _turned_out(values, ahead))
    end = (history.closed_at_s or 0.0) + BUCKET_S
    return replace(history, values=values, closed_at_s=end, open_sum=0.0, open_count=0, ratios=ratios)


def buckets(horizon_s: float) -> int:
    """The horizon in buckets, at least one."""
    return max(1, math.ceil(horizon_s / BUCKET_S))


def _turned_out(values: Sequence[float], ahead: int) -> float:
    """What came `ahead` buckets after the forecast of then, over that forecast."""
    then = values[: len(values) - ahead]
    came = sum(values[-RECENT:]) / RECENT
    said = point(then, ahead)
    return min(LARGEST_RATIO, came / said) if said > 0 else 1.0


def point(values: Sequence[float], ahead: int) -> float:
    """The load `ahead` buckets on, without margin; 0 for an empty history."""
    if not values:
        return 0.0
    level = _mean(values[-LEVEL:])
    base = max(level, _mean(values[-RECENT:]))
    return base + max(0.0, slope(values[-TREND:])) * ahead * TREND_DAMPING


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def slope(values: Sequence[float]) -> float:
    """Least-squares rise a bucket; 0 for fewer than eight values, which is noise."""
    count = len(values)
    if count < 8:
        return 0.0
    middle = (count - 1) / 2
    spread = count * (count * count - 1) / 12
    return sum((index - middle) * value for index, value in enumerate(values)) / spread


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
    return _mean(history.values[-LEVEL:]) * min(LARGEST_RATIO, max(later) / then)


def margin_of(ratios: Sequence[float], quantile: float) -> float:
    """The quantile (0 to 1) of past ratios and the prior together."""
    ordered = sorted((*ratios, *PRIOR * PRIOR_WEIGHT))
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


def forecast(history: History, horizon_s: float, quantile: float) -> Forecast | None:
    """The load at the horizon; None before the first bucket is closed."""
    if not history.values:
        return None
    ahead = buckets(horizon_s)
    level = _mean(history.values[-LEVEL:])
    said = max(point(history.values, ahead), seasonal(history, ahead) or 0.0)
    margin = margin_of(history.ratios, quantile)
    return Forecast(level, said, said * margin, margin)
