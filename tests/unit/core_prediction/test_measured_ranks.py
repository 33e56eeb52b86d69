"""Collectives and a tensor-parallel step measured over two H200s, predicted from other measurements of such cards."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.hardware.collectives import LIBRARY, ONE_SHOT, AllReduceCurve, all_reduce_curves
from tonnage_core.parallelism import Layout
from tonnage_core.prediction.profile_fit import profile_model
from tonnage_core.prediction.step_model import StepModel, step_model
from tonnage_runtime.catalogue import load_gpu, load_model

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
WAYS = {"nccl": LIBRARY, "one_shot": ONE_SHOT}


def measured(name: str) -> dict[str, Any]:
    gpus = json.loads((RESULTS / f"2026-11-30-h200-{name}.json").read_text())["gpus"]
    found: dict[str, Any] = max(gpus, key=lambda gpu: len(gpu["probes"]))
    return found


@pytest.mark.parametrize("kind", [LIBRARY, ONE_SHOT])
@pytest.mark.parametrize("half", [0, 1])
def test_half_the_measured_all_reduces_predict_the_other_half_within_15_percent(kind: str, half: int) -> None:
    (curve,) = all_reduce_curves(measured("two-gpus"), [kind])
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
    card = replace(one_card.gpu, all_reduces=all_reduce_curves(document, [WAYS[way]]))
    ours = step_model(shape, card, layout=Layout(tp=2), coefficients=one_card.coefficients)
    points = [p for p in document["curves"]["tensor_parallel_step"] if p["reduce"] == way]
    assert len(points) == 10
    for point in points:
        predicted = ours.decode_step_s(point["batch"], point["context"]) * 1e6
        assert predicted == pytest.approx(point["us"], rel=0.10), point


def test_a_probe_report_is_a_card_and_other_ranks_keep_the_formula() -> None:
    card = load_gpu(f"{RESULTS / '2026-11-30-h200-two-gpus.json'}#1")
    assert [curve.ranks for curve in card.all_reduces] == [2]
    shape = load_model("meta-llama/Llama-3.1-70B")
    two, four = (step_model(shape, card, layout=Layout(tp=tp)) for tp in (2, 4))
    plain = [step_model(shape, replace(card, all_reduces=()), layout=Layout(tp=tp)) for tp in (2, 4)]
    assert four.decode_step_s(32, 1024) == plain[1].decode_step_s(32, 1024)
    assert two.decode_step_s(32, 1024) != plain[0].decode_step_s(32, 1024)


@pytest.mark.parametrize("reference", ["", "#2", "#x", "#-1"])
def test_a_report_over_two_gpus_wants_one_of_them_named(reference: str) -> None:
    with pytest.raises(BadInputError, match="GPU"):
        load_gpu(f"{RESULTS / '2026-11-30-h200-two-gpus.json'}{reference}")


@pytest.mark.parametrize("where", ["report", "profile"])
def test_a_document_of_another_schema_is_refused(where: str, tmp_path: Path) -> None:
    document = json.loads((RESULTS / "2026-11-30-h200-probe-quick-warm.json").read_text())
    (document if where == "report" else document["gpus"][0])["schema"] += "0"
    (tmp_path / "one.json").write_text(json.dumps(document))
    with pytest.raises(BadInputError, match=r"is of schema 'tonnage.*/10'"):
        load_gpu(str(tmp_path / "one.json"))


def test_a_profile_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none.json: no such file"):
        load_gpu(str(tmp_path / "none.json"))


def test_a_curve_that_cannot_be_read_is_named() -> None:
    point = {"ranks": 2, "mode": "graph", "bytes": 1024, "us": "fast"}
    with pytest.raises(BadInputError, match="allreduce curve has 'fast'"):
        all_reduce_curves({"curves": {"allreduce": [point]}})
