"""The forecast: from the past alone, with a margin that it learns from its own misses."""

import math

import pytest

from tonnage_core.autoscaling.forecast import BUCKET_S, History, forecast, margin_of, point, record, seasonal, slope


def recorded(loads: list[float], horizon_s: float = 150.0, history: History | None = None) -> History:
    """A history fed one load a bucket."""
    history = history or History()
    start = history.closed_at_s or 0.0
    for index, load in enumerate(loads):
        history = record(history, load, start + index * BUCKET_S, horizon_s)
    return record(history, loads[-1], start + len(loads) * BUCKET_S, horizon_s)


def test_a_constant_load_is_forecast_as_itself_and_the_margin_goes() -> None:
    young, old = recorded([5.0] * 20), recorded([5.0] * 400)
    before, after = forecast(young, 150, 0.9), forecast(old, 150, 0.9)
    assert before is not None and after is not None
    assert before.point == after.point == pytest.approx(5.0)
    assert before.margin > after.margin == pytest.approx(1.0)


def test_a_rise_is_followed_and_a_fall_is_not_taken_ahead() -> None:
    rising, falling = [float(n) for n in range(30)], [float(30 - n) for n in range(30)]
    assert point(rising, 10) > rising[-1]
    assert point(falling, 10) >= falling[-1]
    assert slope(rising[-20:]) == pytest.approx(1.0)
    assert slope([1.0] * 5) == 0.0


def test_a_burst_counts_at_once() -> None:
    assert point([1.0] * 30 + [9.0, 9.0], 10) >= 9.0


def test_a_bursty_pool_learns_a_larger_margin_than_a_steady_one() -> None:
    bursts = [1.0 if index % 37 < 25 else 3.0 for index in range(300)]
    assert margin_of(recorded(bursts).ratios, 0.9) > margin_of(recorded([2.0] * 300).ratios, 0.9)


def test_a_season_on_record_is_seen_before_it_comes() -> None:
    season = 3600.0
    wave = [2 + math.sin(2 * math.pi * index * BUCKET_S / season) for index in range(int(2.25 * season / BUCKET_S))]
    trough = wave[: int(1.75 * season / BUCKET_S)]
    history = recorded(trough, history=History(season_s=season))
    ahead = int(900 / BUCKET_S)
    later = seasonal(history, ahead)
    assert later == pytest.approx(2.0, rel=0.25), "a quarter of the season after its trough"
    assert trough[-1] == pytest.approx(1.0, rel=0.05)
    assert seasonal(recorded(trough), ahead) is None, "no whole day is on record"


def test_a_pause_repeats_nothing_for_hours_and_a_clock_set_back_loses_nothing() -> None:
    history = recorded([5.0] * 40)
    paused = record(history, 7.0, (history.closed_at_s or 0) + 6 * 3600, 150)
    assert len(paused.values) <= len(history.values) + 1
    back = record(history, 7.0, 0.0, 150)
    assert back.values == history.values


def test_nothing_recorded_is_nothing_forecast() -> None:
    assert forecast(History(), 150, 0.9) is None
