"""Fitting: known coefficients are found again, wrong rows do not bend the rest, and equations are solved."""

from dataclasses import replace
from math import log

import pytest

from tonnage_core.hardware import find_gpu
from tonnage_core.parallelism import Layout
from tonnage_core.prediction import PredictRequest
from tonnage_core.prediction.calibrate import NOISE, spread
from tonnage_core.prediction.coefficients import BY_NAME, PRIOR, Coefficients, coefficients_for, family, from_table
from tonnage_core.prediction.fit import Noise, Sample, applied, fit, state_of
from tonnage_core.prediction.linear import solve
from tonnage_core.prediction.truth import Point, sample_of
from tonnage_runtime.catalogue import load_model

TIGHT = Noise(0.01, 0.01, robust=False)


def request(concurrency: int, isl: float = 1000, tp: int = 2) -> PredictRequest:
    return PredictRequest(
        load_model("meta-llama/Llama-3.1-70B"), find_gpu("H200"), isl, 500, concurrency, layout=Layout(tp)
    )


def measured(truth: Coefficients, *asked: PredictRequest) -> list[Sample]:
    """Samples whose times are exactly those of other coefficients."""
    found = []
    for one in asked:
        sample = sample_of(Point(one, tpot_ms=1.0, ttft_ms=1.0))
        state = state_of(sample, truth)
        found.append(replace(sample, tpot_ms=state.tpot_s * 1e3, ttft_ms=state.ttft_s * 1e3))
    return found


def test_a_known_coefficient_is_found_again() -> None:
    truth = replace(PRIOR, memory=0.6, request_s=0.01)
    samples = measured(truth, *(request(clients) for clients in (1, 8, 64)))
    found = applied(PRIOR, fit(samples, ("memory", "request_s"), lambda _: 1.0, TIGHT))
    assert found.memory == pytest.approx(0.6, rel=0.02)
    assert found.request_s == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("truth", [
    PRIOR,
    replace(PRIOR, memory=0.6, gemm=0.45, request_s=0.008),
    replace(PRIOR, step_s=0.02, growth=0.1),
    replace(PRIOR, step_s=0.03, row_s=1e-4, growth=0.15),
])  # fmt: skip
def test_the_two_ends_of_a_curve_predict_its_middle(truth: Coefficients) -> None:
    """An engine whose step grows with each doubling of its rows is fitted as well as one whose step does not."""
    clients = (1, 2, 4, 8, 16, 32)
    samples = measured(truth, *(replace(request(n), coefficients=PRIOR) for n in clients))
    found = applied(PRIOR, fit([samples[0], samples[-1]], BY_NAME, spread, NOISE, rounds=8))
    errors = [abs(state_of(one, found).tpot_s * 1e3 / (one.tpot_ms or 1.0) - 1) for one in samples[1:-1]]
    assert sum(errors) / len(errors) < 0.05
    assert found.growth >= 0


def test_without_measurements_the_prior_stays() -> None:
    assert fit([], ("memory", "cache"), lambda _: 0.3, TIGHT) == {"memory": 0.0, "cache": 0.0}


def test_one_wrong_row_does_not_bend_the_rest() -> None:
    samples = measured(PRIOR, *(request(clients) for clients in (1, 4, 16, 32, 64)))
    wrong = [replace(samples[0], tpot_ms=10 * (samples[0].tpot_ms or 0.0)), *samples[1:]]
    plain = fit(wrong, ("memory",), lambda _: 1.0, Noise(0.1, 0.2, robust=False))["memory"]
    robust = fit(wrong, ("memory",), lambda _: 1.0, Noise(0.1, 0.2, robust=True))["memory"]
    assert abs(robust) < 0.2 * abs(plain)


def test_a_factor_counts_for_its_engine_and_generation_only() -> None:
    table = {"memory": 0.9, "memory@vllm": 0.8, "memory@blackwell": 0.5}
    assert from_table(table, "vllm", find_gpu("H100")).memory == pytest.approx(PRIOR.memory * 0.72)
    assert from_table(table, "sglang", find_gpu("H100")).memory == pytest.approx(PRIOR.memory * 0.9)
    assert from_table(table, "vllm", find_gpu("B200")).memory == pytest.approx(PRIOR.memory * 0.36)


@pytest.mark.parametrize(
    ("name", "expected"), [("H100", "hopper"), ("H20", "hopper"), ("B200", "blackwell"), ("L40S", ""), ("A100", "")]
)
def test_a_generation_is_told_by_what_the_card_has(name: str, expected: str) -> None:
    assert family(find_gpu(name)) == expected


def test_nim_serves_with_tensorrt_llm() -> None:
    assert coefficients_for("nim", find_gpu("H100")) == coefficients_for("trtllm", find_gpu("H100"))


def test_no_share_passes_its_peak() -> None:
    assert from_table({"memory": 5.0}, "vllm", find_gpu("H100")).memory == 0.95
    assert applied(PRIOR, {"cache": log(9), "step_s": log(9)}).cache == 0.95


def test_equations_are_solved() -> None:
    assert solve([[4.0, 2.0], [2.0, 3.0]], [10.0, 8.0]) == pytest.approx([1.75, 1.5])
    with pytest.raises(ValueError, match="positive definite"):
        solve([[1.0, 2.0], [2.0, 1.0]], [1.0, 1.0])
