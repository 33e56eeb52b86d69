"""Latencies count from the intended instant; unknown is never zero."""

from dataclasses import replace
from typing import Any

import pytest

from tonnage_core.slo import RequestRecord, Slo, percentile, prefix, span_s, summarise

RECORD = RequestRecord(
    index=0,
    prompt_tokens=1000,
    intended_s=1.0,
    dispatched_s=1.01,
    sent_s=1.02,
    first_s=1.5,
    last_s=2.5,
    gaps_s=(0.5, 0.5),
    output_tokens=3,
    cached_tokens=400,
)


def record(index: int = 0, **changes: Any) -> RequestRecord:
    return replace(RECORD, index=index, **changes)


def test_times_count_from_the_intended_instant_not_from_the_sending() -> None:
    one = record()
    assert one.ttft_s == pytest.approx(0.5)
    assert one.e2e_s == pytest.approx(1.5)
    assert one.tpot_s == pytest.approx(0.5)
    assert one.lateness_s == pytest.approx(0.01)


def test_a_request_of_one_token_has_no_time_per_output_token() -> None:
    assert record(output_tokens=1).tpot_s is None
    assert record(output_tokens=None).tpot_s is None
    assert record(output_tokens=1).meets(Slo(ttft_ms=600, tpot_ms=0.001))


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([4.0], 99, 4.0), ([1.0, 2.0], 50, 1.5), ([0.0, 10.0, 20.0], 90, 18.0), ([1.0, 2.0], 100, 2.0)],
)
def test_a_percentile_lies_between_its_neighbours(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


@pytest.mark.parametrize(
    ("tokens", "name"), [(1, "short"), (1023, "short"), (1024, "medium"), (8191, "medium"), (8192, "long")]
)
def test_classes_split_at_one_and_eight_thousand_tokens(tokens: int, name: str) -> None:
    assert record(prompt_tokens=tokens).length_class == name


def test_a_limit_may_grow_with_the_prompt() -> None:
    grown = Slo(ttft_ms=400, tpot_ms=600, ttft_ms_per_prompt_token=0.125)
    assert grown.ttft_limit_ms(1000) == 525.0
    assert record().meets(grown)
    assert not record(prompt_tokens=799).meets(grown)
    assert grown.document()["ttft_ms_per_prompt_token"] == 0.125
    assert "ttft_ms_per_prompt_token" not in Slo().document()


def test_engine_time_is_wall_time_times_the_scale() -> None:
    document = summarise([record()], Slo(), time_scale=10.0, duration_s=4.0)
    assert document["ttft_ms"]["p50"] == pytest.approx(5000.0)
    assert document["itl_ms"]["p99"] == pytest.approx(5000.0)
    assert document["duration_s"] == 40.0
    assert document["slo_attainment"] == 0.0


def test_a_failed_request_misses_the_slo_and_leaves_the_latencies_alone() -> None:
    document = summarise([record(), record(1, outcome="http_503", first_s=None, last_s=None)], Slo(1000, 600))
    assert document["requests"] == {"sent": 2, "ok": 1, "errors": 1}
    assert document["errors_by_kind"] == {"http_503": 1}
    assert document["slo_attainment"] == 0.5
    assert document["goodput_rps"] == pytest.approx(1 / 1.5, abs=1e-6)
    assert document["output_tokens"] == 3


def test_nothing_measured_is_null_everywhere() -> None:
    empty = {"p50": None, "p90": None, "p99": None, "mean": None}
    document = summarise([], Slo())
    for key in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert document[key] == empty
    for key in ("slo_attainment", "goodput_rps", "output_tokens", "duration_s"):
        assert document[key] is None
    assert document["classes"]["long"] == {"requests": 0, "ttft_ms": empty, "tpot_ms": empty}


def test_hits_are_unknown_when_no_request_reports_them() -> None:
    found = prefix([record(cached_tokens=None), record(1, cached_tokens=None)])
    assert found == {"prompt_tokens": 2000, "hit_tokens": None, "hit_rate": None, "ceiling_hit_rate": None}


def test_a_missing_report_of_hits_is_none_of_them_when_others_report() -> None:
    found = prefix([record(cached_tokens=None), record(1, cached_tokens=500)])
    assert (found["hit_tokens"], found["hit_rate"]) == (500, 0.25)


def test_the_run_ends_with_its_last_event_even_of_a_failed_request() -> None:
    assert span_s([record(), record(1, outcome="timeout", first_s=None, last_s=None, sent_s=9.0)]) == pytest.approx(8.0)
