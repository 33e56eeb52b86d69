"""Collectives and a tensor-parallel step measured over two H200s, predicted from other measurements of such cards."""

import json
from pathlib import Path
from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.parallelism import Layout
from tonnage_core.prediction.collectives import LIBRARY, ONE_SHOT, AllReduceCurve, all_reduce_curve
from tonnage_core.prediction.profile_fit import profile_model
from tonnage_core.prediction.step_model import StepModel, step_model
from tonnage_runtime.catalogue import load_model

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
WAYS = {"nccl": LIBRARY, "one_shot": ONE_SHOT}


def measured(name: str) -> dict[str, Any]:
    gpus = json.loads((RESULTS / f"2026-11-29-h200-{name}.json").read_text())["gpus"]
    found: dict[str, Any] = max(gpus, key=lambda gpu: len(gpu["probes"]))
    return found


@pytest.mark.parametrize("kind", [LIBRARY, ONE_SHOT])
@pytest.mark.parametrize("half", [0, 1])
def test_half_the_measured_all_reduces_predict_the_other_half_within_15_percent(kind: str, half: int) -> None:
    curve = all_reduce_curve(measured("two-gpus"), 2, [kind])
    assert curve is not None
    fitted = AllReduceCurve(2, curve.points[half::2])
    for size, seconds in curve.points[1 - half :: 2]:
        assert fitted.seconds(size) == pytest.approx(seconds, rel=0.15), size


@pytest.fixture(scope="module")
def one_card() -> StepModel:
    """Fitted to the steps of an 8-billion model on one card."""
    return profile_model(measured("probe-full-run1"), load_model("meta-llama/Llama-3.1-8B"))


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_70b_step_over_two_cards_is_predicted_within_10_percent_from_one_card_and_the_curve(
    one_card: StepModel, way: str
) -> None:
    document = measured("two-gpus")
    shape = load_model("meta-llama/Llama-3.1-70B")
    layout, rates = Layout(tp=2), one_card.coefficients
    model = step_model(shape, one_card.gpu, layout=layout, coefficients=rates, profile=document)
    ours = StepModel(
        model.operators, model.gpu, rates, model.chunk, all_reduce=all_reduce_curve(document, 2, [WAYS[way]])
    )
    points = [p for p in document["curves"]["tensor_parallel_step"] if p["reduce"] == way]
    assert len(points) == 10
    for point in points:
        predicted = ours.decode_step_s(point["batch"], point["context"]) * 1e6
        assert predicted == pytest.approx(point["us"], rel=0.10), point


def test_a_profile_over_other_ranks_leaves_the_formula_in_place(one_card: StepModel) -> None:
    shape = load_model("meta-llama/Llama-3.1-70B")
    four = step_model(shape, one_card.gpu, layout=Layout(tp=4), profile=measured("two-gpus"))
    assert four.all_reduce is None
    assert four == step_model(shape, one_card.gpu, layout=Layout(tp=4))


def test_a_curve_that_cannot_be_read_is_named() -> None:
    point = {"ranks": 2, "mode": "graph", "bytes": 1024, "us": "fast"}
    with pytest.raises(BadInputError, match="allreduce curve has 'fast'"):
        all_reduce_curve({"curves": {"allreduce": [point]}}, 2)
