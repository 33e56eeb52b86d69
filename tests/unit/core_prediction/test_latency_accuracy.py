"""The time model against public measurements: the gates, on the copy in tests/golden/planner."""

import csv
from collections.abc import Sequence
from math import exp
from pathlib import Path

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import UnknownGpuError, find_gpu
from tonnage_core.memory.accuracy import Answer, Case, summarise
from tonnage_core.memory.truth import TruthError, truth_row
from tonnage_core.prediction.accuracy import LatencyScores, latency_scores
from tonnage_core.prediction.calibrate import UnfitError, calibrate, chosen, predict_calibrated
from tonnage_core.prediction.truth import Point, points_of, request_of
from tonnage_runtime.catalogue import load_model

ROWS = Path(__file__).parents[2] / "golden" / "planner" / "latency_rows.csv"


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    with ROWS.open(newline="", encoding="utf-8") as file:
        rows = [truth_row(columns) for columns in csv.DictReader(file)]
    return [Case(row, load_model(row.config), find_gpu(row.gpu)) for row in rows]


@pytest.fixture(scope="module")
def scores(cases: list[Case]) -> LatencyScores:
    return latency_scores(cases)


@pytest.fixture(scope="module")
def points(cases: list[Case]) -> list[Point]:
    return points_of([(case.row, case.shape, case.gpu) for case in cases if case.shape and case.gpu])


def median(answers: Sequence[Answer], metric: str) -> float:
    found = summarise(answers)[metric]["median_pct"]
    assert found is not None
    return float(found)


def test_every_row_is_answered(cases: list[Case], scores: LatencyScores) -> None:
    assert len(scores.answers) == len(cases) == 450
    assert [one.reason for one in scores.answers if one.predicted is None] == []


def test_times_of_the_shipped_coefficients_are_near(scores: LatencyScores) -> None:
    """Over the rows that also fitted them; `benchmarks/planner` holds the figures of rows left out."""
    assert median(scores.answers, "tpot_ms") <= 11
    assert median(scores.answers, "ttft_ms") <= 20


@pytest.mark.parametrize("metric", ["tpot_ms", "ttft_ms"])
def test_intervals_cover_what_they_say(scores: LatencyScores, metric: str) -> None:
    found = summarise(scores.answers)[metric]
    assert 0.85 <= (found["coverage90"] or 0.0) <= 0.97
    assert (found["half_width_pct"] or 100) <= 40


@pytest.mark.parametrize(("count", "tpot", "ttft", "least"), [(2, 8.0, 20.0, 20), (3, 4.5, 20.0, 10)])
def test_a_few_measured_points_calibrate(cases: list[Case], count: int, tpot: float, ttft: float, least: int) -> None:
    found = latency_scores(cases, count)
    assert found.curves > 4 and found.used > 0
    assert (summarise(found.answers)["tpot_ms"]["n"] or 0) >= least
    assert median(found.answers, "tpot_ms") <= tpot
    assert median(found.answers, "ttft_ms") <= ttft
    assert {one.bounds.kind for one in found.answers if one.bounds} == {"calibrated"}
    assert len(found.answers) + len(found.uncalibrated) + found.used == len(cases)


def test_the_model_alone_is_within_the_gates_before_any_fit(points: list[Point]) -> None:
    """With the prior, which no row of the file has touched."""
    from math import log

    from tonnage_core.prediction.coefficients import PRIOR
    from tonnage_core.prediction.fit import state_of
    from tonnage_core.prediction.truth import sample_of

    errors: dict[str, list[float]] = {"tpot": [], "ttft": []}
    for point in points:
        state = state_of(sample_of(point), PRIOR)
        errors["tpot"].append(abs(exp(log(state.tpot_s * 1e3 / (point.tpot_ms or 1))) - 1))
        errors["ttft"].append(abs(exp(log(state.ttft_s * 1e3 / (point.ttft_ms or 1))) - 1))
    assert len(errors["tpot"]) == 220
    assert sorted(errors["tpot"])[110] <= 0.20
    assert sorted(errors["ttft"])[110] <= 0.45


def curve(points: list[Point], clients: int) -> list[Point]:
    one = next(point for point in points if point.ids[0].startswith("NIM70"))
    return [point for point in points if point.series == one.series and point.request.concurrency <= clients]


def test_points_of_a_curve_are_spread_over_it(points: list[Point]) -> None:
    nim = curve(points, 250)
    levels = [[point.request.concurrency for point in chosen(nim, count)] for count in (1, 2, 3, 9)]
    assert levels == [[100], [1, 250], [1, 100, 250], []]


def test_a_measured_question_is_answered_with_the_measurement(points: list[Point]) -> None:
    used = chosen(curve(points, 50), 2)
    found = predict_calibrated(used[0].request, calibrate(used))
    assert found.kind == "measured"
    assert (found.tpot_ms.value, found.ttft_ms.value) == (used[0].tpot_ms, used[0].ttft_ms)


def test_an_answer_between_points_comes_from_the_refitted_model(points: list[Point]) -> None:
    nim = curve(points, 50)
    inside = next(point for point in nim if point.request.concurrency == 25)
    found = predict_calibrated(inside.request, calibrate(chosen(nim, 2)))
    assert found.kind == "calibrated"
    assert found.tpot_ms.lo90 <= (inside.tpot_ms or 0.0) <= found.tpot_ms.hi90


def test_intervals_widen_away_from_the_points(points: list[Point]) -> None:
    nim = curve(points, 50)
    fitted = calibrate(chosen(nim, 2))
    near, far = (predict_calibrated(nim[0].request.at(5000, 500, n), fitted).tpot_ms for n in (25, 500))
    assert far.hi90 / far.value > near.hi90 / near.value


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({250: {"tpot_ms": 0.25}}, r"tpot_ms is \S+ at 250 requests in flight \(row \S+tpot_ms\), and"),
        ({1: {"tpot_ms": 40.0}}, "tpot_ms"),
        ({100: {"ttft_ms": 1000.0}}, r"ttft_ms is \S+ at 100"),
        ({1: {"tpot_ms": 1e15}, 100: {"tpot_ms": 1e-300}}, "the points do not fit"),
    ],
)
def test_points_that_no_engine_can_show_together_are_refused(
    points: list[Point], change: dict[int, dict[str, float]], says: str
) -> None:
    """A token that gets faster with more users, one run among others' load, nonsense: not a poor fit without a word."""
    from dataclasses import replace

    used = chosen(curve(points, 250), 3)
    calibrate(used)

    def changed(each: Point) -> Point:
        factors = change.get(each.request.concurrency, {})
        return replace(each, **{name: factor * getattr(each, name) for name, factor in factors.items()})

    with pytest.raises(UnfitError, match=says):
        calibrate([changed(each) for each in used])


def test_a_poor_fit_says_so_and_is_no_surer_than_it_is(points: list[Point]) -> None:
    from dataclasses import replace

    used = chosen(curve(points, 250), 3)
    good, asked = calibrate(used), used[0].request.at(5000, 500, 50)
    poor = calibrate([used[0], replace(used[1], tpot_ms=1.8 * (used[1].tpot_ms or 0)), used[2]])
    plain, noted = predict_calibrated(asked, good), predict_calibrated(asked, poor)
    assert not any("poor" in note for note in plain.notes)
    assert "a poor calibration: tpot_ms is" in noted.notes[-1]
    assert noted.tpot_ms.hi90 / noted.tpot_ms.value >= exp(poor.widest("tpot_ms")) > exp(0.2)
    assert plain.tpot_ms.hi90 / plain.tpot_ms.value < 1.2
    late = calibrate([used[0], replace(used[1], ttft_ms=5 * (used[1].ttft_ms or 0)), used[2]])
    noted = predict_calibrated(asked, late)
    assert "a poor calibration: ttft_ms is" in noted.notes[-1]
    assert noted.ttft_ms.hi90 / noted.ttft_ms.value >= exp(late.widest("ttft_ms")) > exp(0.4)


def test_points_of_two_cards_do_not_mix(points: list[Point]) -> None:
    from dataclasses import replace

    one = points[0]
    other = replace(one, request=replace(one.request, gpu=find_gpu("L40S")))
    with pytest.raises(BadInputError, match="several engines or cards"):
        calibrate([one, other])
    with pytest.raises(BadInputError, match="no point"):
        calibrate([])


def test_what_is_not_known_is_refused_by_name(cases: list[Case]) -> None:
    from dataclasses import replace

    known = next(case for case in cases if case.row.metric == "tpot_ms")
    no_model = Case(replace(known.row, config="org--none"), None, known.gpu)
    no_card = Case(replace(known.row, gpu="X1"), known.shape, None)
    reasons = [one.reason for one in latency_scores([no_model, no_card]).answers]
    assert reasons == ["no config 'org--none'", "no GPU 'X1' in the catalogue"]
    with pytest.raises(UnknownGpuError):
        find_gpu("X1")


@pytest.mark.parametrize("column", ["isl", "osl", "concurrency"])
def test_a_row_without_its_question_is_the_files_fault(cases: list[Case], column: str) -> None:
    case = next(case for case in cases if case.row.metric == "tpot_ms")
    row = truth_row({**case.row.columns, column: ""})
    assert case.shape is not None and case.gpu is not None
    with pytest.raises(TruthError, match=column):
        request_of(row, case.shape, case.gpu)
