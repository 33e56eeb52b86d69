"""Step times from a profile: fitted on half of the H200's measured points, right on the other half."""

import json
from pathlib import Path
from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.gpu_health.step_fit import LLAMA_8B, GemmCurve, fit_steps, held_out_errors, least_squares

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def profile(run: int) -> dict[str, Any]:
    path = RESULTS / f"2026-11-29-h200-probe-full-run{run}.json"
    found: dict[str, Any] = json.loads(path.read_text())["gpus"][0]
    return found


@pytest.mark.parametrize("run", [1, 2])
@pytest.mark.parametrize("kind, median, worst", [("decode", 5.0, 8.0), ("prefill", 5.0, 10.0)])
def test_half_the_measured_steps_predict_the_other_half(run: int, kind: str, median: float, worst: float) -> None:
    errors = held_out_errors(profile(run), kind)
    assert errors["median_pct"] < median
    assert errors["max_pct"] < worst


def test_one_run_predicts_another() -> None:
    fit = fit_steps(profile(1), "decode")
    for point in profile(2)["curves"]["decode_step"]:
        assert fit.us(LLAMA_8B, point["batch"], point["context"]) == pytest.approx(point["us"], rel=0.08)


def test_a_profile_without_its_curves_is_refused_with_the_command_that_makes_them() -> None:
    with pytest.raises(BadInputError, match="tonnage probe"):
        fit_steps({"curves": {}}, "decode")
    bare = {"curves": {"gemm_bf16": [{"batch": 1, "us": 34}, {"batch": 64, "us": 37}]}}
    with pytest.raises(BadInputError, match="too few"):
        fit_steps(bare, "decode")


def test_the_product_curve_meets_its_points_and_rises_between_them() -> None:
    curve = GemmCurve(((1.0, 34.0), (64.0, 37.0), (256.0, 50.0)))
    assert [curve.us(rows) for rows in (1, 64, 256)] == [34.0, 37.0, pytest.approx(50.0)]
    assert 37.0 < curve.us(128) < 50.0
    assert curve.us(512) == pytest.approx(100.0)


def test_least_squares_finds_the_coefficients_of_exact_data() -> None:
    rows = [[1.0, float(x), float(x * x)] for x in range(1, 8)]
    targets = [3.0 + 2.0 * x - 0.5 * x * x for x in range(1, 8)]
    assert least_squares(rows, targets) == pytest.approx((3.0, 2.0, -0.5))
