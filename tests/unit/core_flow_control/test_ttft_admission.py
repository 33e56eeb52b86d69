"""Which requests can still begin in time, and when to come back for those that cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_core.flow_control.ttft_admission import Forecast, Reach, judge, paces


def test_a_first_token_waits_for_the_queue_the_prompts_ahead_and_its_own() -> None:
    forecast = Forecast("e", ahead_tokens=3000, uncached_tokens=1000, tokens_per_s=2000.0, queued_s=0.5)
    assert forecast.ttft_s == 0.5 + 2.0
    assert forecast.compute_s == 0.5


def test_one_endpoint_in_time_is_enough() -> None:
    verdict = judge([Forecast("busy", 90_000, 1000, 1000.0), Forecast("free", 500, 1000, 1000.0)], 2.0)
    assert (verdict.reach, verdict.retry_after_s) == (Reach.IN_TIME, None)
    assert verdict.best is not None and verdict.best.endpoint == "free"


def test_a_cached_prefix_brings_a_prompt_in_time_where_it_is_cached() -> None:
    assert judge([Forecast("cold", 1500, 4000, 1000.0)], 2.0).reach is Reach.LATE
    assert judge([Forecast("cold", 1500, 4000, 1000.0), Forecast("warm", 1500, 100, 1000.0)], 2.0).admitted


def test_late_everywhere_is_refused_until_the_soonest_is_in_time_again() -> None:
    verdict = judge([Forecast("a", 9000, 1000, 1000.0), Forecast("b", 5300, 1000, 1000.0)], 2.0)
    assert (verdict.reach, verdict.retry_after_s) == (Reach.LATE, 5)
    assert not verdict.admitted


def test_a_prompt_longer_than_the_limit_is_not_refused_for_its_own_length() -> None:
    assert judge([Forecast("idle", 0, 50_000, 1000.0)], 2.0).reach is Reach.IN_TIME
    assert judge([Forecast("busy", 3000, 50_000, 1000.0)], 2.0).retry_after_s == 3


def test_what_a_request_has_waited_counts_but_refuses_none_that_would_be_first() -> None:
    waited = Forecast("e", 1500, 300, 1000.0, queued_s=0.1, waited_s=0.5)
    assert waited.ttft_s == pytest.approx(2.4)
    assert judge([waited], 2.5).admitted and not judge([waited], 2.3).admitted
    assert judge([Forecast("idle", 0, 300, 1000.0, waited_s=60.0)], 2.0).reach is Reach.IN_TIME


def test_an_endpoint_of_unknown_pace_refuses_nobody() -> None:
    late, unknown = Forecast("late", 90_000, 1000, 1000.0), Forecast("new", 90_000, 1000, None)
    assert judge([late, unknown], 2.0).reach is Reach.UNKNOWN
    assert judge([unknown], 2.0).admitted
    assert judge([], 2.0).admitted


@given(
    ahead=st.lists(st.tuples(st.integers(0, 10**6), st.floats(10.0, 1e5)), min_size=1, max_size=5),
    own=st.integers(1, 10**6),
    limit_s=st.floats(0.01, 100.0),
)
def test_whoever_comes_back_as_told_is_in_time_if_nothing_else_came(
    ahead: list[tuple[int, float]], own: int, limit_s: float
) -> None:
    verdict = judge([Forecast(str(i), tokens, own, pace) for i, (tokens, pace) in enumerate(ahead)], limit_s)
    if verdict.retry_after_s is None:
        assert verdict.reach is Reach.IN_TIME
        return
    later = verdict.retry_after_s + 1e-6
    drained = [
        Forecast(str(i), max(0, int(tokens - later * pace)), own, pace) for i, (tokens, pace) in enumerate(ahead)
    ]
    assert judge(drained, limit_s).reach is Reach.IN_TIME


def test_paces_not_measured_follow_the_gpus_relative_speed_or_stay_unknown() -> None:
    speeds = {"measured": 1.0, "half as fast": 0.5, "no profile": None}
    found = paces({"measured": 8000.0}, speeds)
    assert found == {"measured": 8000.0, "half as fast": 4000.0, "no profile": None}
    assert paces({}, speeds) == dict.fromkeys(speeds)
    assert paces({"no profile": 500.0}, speeds) == {"measured": None, "half as fast": None, "no profile": 500.0}


def test_a_measured_pace_beats_what_the_profile_says() -> None:
    found = paces({"a": 1000.0, "b": 100.0}, {"a": 1.0, "b": 1.0})
    assert (found["a"], found["b"]) == (1000.0, 100.0)
    assert paces({"a": 1000.0, "b": 100.0}, {"a": 1.0, "b": 1.0, "c": 0.5})["c"] == pytest.approx(275.0)
