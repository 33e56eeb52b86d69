"""Widths of intervals: classes known before an answer, quantiles of errors on what was left out, and nothing of it."""

from dataclasses import replace
from math import log

import pytest

from tonnage_core.hardware import find_gpu
from tonnage_core.parallelism import Layout
from tonnage_core.prediction import PredictRequest
from tonnage_core.prediction.intervals import HALF, LEVELS, classes
from tonnage_core.prediction.learn import NAMES, learn, learned_widths, relearn, slopes_at, spread
from tonnage_core.prediction.slots import slots_of
from tonnage_core.prediction.truth import Point, sample_of
from tonnage_runtime.catalogue import load_model


def request(**changes: object) -> PredictRequest:
    asked = PredictRequest(load_model("meta-llama/Llama-3.1-70B"), find_gpu("H200"), 1000, 500, 8, layout=Layout(2))
    return replace(asked, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, ("drawn", "clear")),
    ({"length_spread": 0}, ("alike", "open")),
    ({"concurrency": 4096}, ("drawn", "open")),
    ({"engine": "sglang"}, ("drawn", "eager")),
    ({"engine": "sglang", "isl": 8000}, ("drawn", "clear")),
    ({"engine": "sglang", "isl": 8000, "prefix": 7000}, ("drawn", "eager")),
])  # fmt: skip
def test_a_question_is_classed_by_what_is_known_before_its_answer(
    changes: dict[str, object], expected: tuple[str, str]
) -> None:
    asked = request(**changes)
    found = classes(asked, slots_of(asked))
    assert (found["tpot"], found["ttft"]) == expected


def test_every_class_has_a_width_and_a_level() -> None:
    assert {metric: set(each) for metric, each in HALF.items()} == {m: set(each) for m, each in LEVELS.items()}


def test_a_width_holds_its_share_of_the_errors_and_more_where_groups_are_few() -> None:
    errors = [("clear", (-1) ** index * index / 100) for index in range(100)] + [("open", 2.0)]
    assert learned_widths(errors, {"clear": 0.78, "open": 0.95}, 2) == pytest.approx({"clear": 1.17, "open": 3.0})


def test_a_class_that_was_never_seen_is_as_wide_as_the_worst_error() -> None:
    assert learned_widths([("clear", 0.3), ("clear", -0.7)], {"open": 0.9}, 7) == pytest.approx({"open": 0.8})
    assert learned_widths([], {"open": 0.9}, 1) == {}


def test_what_all_engines_share_moves_less_than_what_is_their_own() -> None:
    assert spread("memory") < spread("memory@vllm")
    assert spread("layer_s") < spread("layer_s@vllm")
    assert all(spread(name) > 0 for name in NAMES)


def test_learning_again_owes_nothing_to_what_is_left_out() -> None:
    """Whatever the rows left out say, the table learned without them is the same."""
    asked = [request(concurrency=clients) for clients in (2, 8, 32)]
    samples = [sample_of(Point(one, tpot_ms=20.0, ttft_ms=200.0)) for one in asked]
    table = learn(samples[:2])
    slopes = slopes_at(samples, table)
    wrong = [*samples[:2], replace(samples[2], tpot_ms=900.0, ttft_ms=9000.0)]
    assert relearn(samples, {2}, table, slopes) == relearn(wrong, {2}, table, slopes)


def test_learning_again_with_all_stays_where_learning_ended() -> None:
    samples = [sample_of(Point(request(concurrency=clients), tpot_ms=25.0, ttft_ms=250.0)) for clients in (2, 16)]
    table = learn(samples)
    again = relearn(samples, set(), table, slopes_at(samples, table))
    for name, value in table.items():
        assert log(again[name]) == pytest.approx(log(value), abs=0.02)
