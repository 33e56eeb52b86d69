"""The forecast: from the past alone, with a margin that it learns from its own misses."""

import math

import pytest

from tonnage_core.autoscaling.forecast import (
    BUCKET_S,
    History,
    chance,
    forecast,
    margin_of,
    point,
    record,
    required,
    seasonal,
    slope,
)


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
    assert before.margin > 1.2 and 0.9 < after.margin <= 1.0, "nothing beyond the load itself was ever needed"


def test_a_rise_is_followed_and_a_fall_is_not_taken_ahead() -> None:
    rising, falling = [float(n) for n in range(30)], [float(30 - n) for n in range(30)]
    assert point(rising, 10) > sum(rising[-4:]) / 4, "beyond the last minute"
    assert point(falling, 10) >= falling[-1]
    assert slope(rising[-20:]) == pytest.approx(1.0)
    assert slope([1.0] * 5) == 0.0


def test_a_surge_counts_within_a_minute() -> None:
    assert point([1.0] * 30 + [9.0, 9.0], 10) >= 5.0
    assert point([1.0] * 30 + [9.0] * 4, 10) >= 9.0


def test_noise_evens_out_over_five_minutes() -> None:
    noise = [5.0 + (2.0 if index % 2 else -2.0) for index in range(40)]
    assert point(noise, 10) == pytest.approx(5.0, rel=0.02)


@pytest.mark.parametrize(("slack", "least"), [(0.0, 5.0), (5.0, 4.0)])
def test_what_had_to_be_there_is_the_worst_backlog_of_the_last_minute(slack: float, least: float) -> None:
    steady = [(float(at), 4.0) for at in range(0, 60, 5)]
    burst = [*steady, (60.0, 8.0), (65.0, 8.0)]
    assert required(steady, slack) == pytest.approx(4 * 60 / (60 + max(0.1, slack)))
    assert least < required(burst, slack) <= 8.0
    assert required(burst, slack) >= max(8 * 5 / (5 + slack + 0.1), 8 * 10 / (10 + slack + 0.1))
    assert required(burst, slack) > required([*burst, (70.0, 0.0), (75.0, 0.0), (80.0, 0.0)], slack)


def test_a_longer_wait_that_is_allowed_needs_fewer_replicas() -> None:
    burst = [(0.0, 2.0), (5.0, 9.0), (10.0, 1.0)]
    needs = [required(burst, slack) for slack in (0.0, 1.0, 4.0)]
    assert needs == sorted(needs, reverse=True)
    assert required([], 1.0) == 0.0
    assert required([(0.0, 3.0)], 0.0) == pytest.approx(3.0, rel=0.01)


def test_a_step_up_is_one_miss_and_multiplies_no_more_than_twice() -> None:
    history = recorded([1.0] * 60 + [8.0] * 20)
    assert max(history.ratios) == 2.0


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


def test_a_young_pool_is_taken_at_a_sure_rise_and_an_older_one_by_its_margin() -> None:
    ramp = [0.3, 0.8, 1.3, 2.2]
    assert point(ramp, 7, request_s=0.4) == pytest.approx(1.25 * 2.2), "no further than a quarter beyond the last"
    assert point(ramp, 7, request_s=4.0) == pytest.approx(sum(ramp) / 4), "ten times longer requests: it may be chance"
    assert point(ramp, 7) == pytest.approx(sum(ramp) / 4), "nothing is known of a request yet"
    assert point([1.0, 1.0, 1.0, 1.0], 7, request_s=0.01) == 1.0
    old = [0.3] * 20 + ramp
    assert point(old, 7, request_s=0.4) == pytest.approx(point(old, 7))


def test_chance_falls_with_the_length_of_the_window_and_grows_with_the_root_of_the_load() -> None:
    assert chance(2.0, 0.5) == pytest.approx(math.sqrt(2 * 2.0 * 0.5 / 60))
    assert chance(8.0, 0.5) == pytest.approx(2 * chance(2.0, 0.5))
    assert chance(2.0, 0.5, 15.0) == pytest.approx(2 * chance(2.0, 0.5))


def test_nothing_recorded_is_nothing_forecast() -> None:
    assert forecast(History(), 150, 0.9) is None
