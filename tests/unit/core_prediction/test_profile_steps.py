"""Steps that the agent measured on one H200, fitted on half of them and predicted on the rest."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.prediction.profile_fit import MeasuredStep, check_profile, measured_steps, profile_model
from tonnage_runtime.catalogue import load_model

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
RUNS = ("2026-11-30-h200-probe-full-run1.json", "2026-11-30-h200-probe-full-run2.json")


def profile(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())["gpus"][0]
    return found


def held_out(document: dict[str, Any], half: int) -> list[tuple[MeasuredStep, float]]:
    steps = measured_steps(document)
    model = profile_model(document, load_model("meta-llama/Llama-3.1-8B"), steps[half::2])
    return [(step, abs(step.predicted(model) / step.seconds - 1)) for step in steps[1 - half :: 2]]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("half", [0, 1])
def test_half_of_the_steps_predict_the_rest(run: str, half: int) -> None:
    found = held_out(profile(run), half)
    decode = [error for step, error in found if step.rows]
    prompt = [error for step, error in found if step.tokens]
    assert len(decode) == 18 and len(prompt) >= 4
    assert median(decode) <= 0.08
    assert max(prompt) <= 0.10


def test_the_steps_reach_from_one_row_to_256_and_from_1k_to_32k() -> None:
    decode = [step for step in measured_steps(profile(RUNS[0])) if step.rows]
    assert {step.rows for step in decode} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert {step.context for step in decode} == {1024, 4096, 16384, 32768}


@pytest.mark.parametrize(
    "curves",
    [
        {},
        {"decode_step": [{"batch": 0, "context": 1, "us": 1.0}]},
        {"decode_step": [{"batch": 1, "context": 1, "us": -1}]},
        {"decode_step": ["x"]},
        None,
    ],
)
def test_a_profile_without_usable_steps_is_refused(curves: Any) -> None:
    document = {"name": "H200-SXM-141GB", "curves": curves}
    with pytest.raises(BadInputError, match="tonnage probe"):
        profile_model(document, load_model("meta-llama/Llama-3.1-8B"))


def test_the_check_of_a_profile_covers_every_step_once() -> None:
    checked = check_profile(profile(RUNS[0]), load_model("meta-llama/Llama-3.1-8B")).document()
    assert checked["decode"]["n"] == 36 and checked["prefill"]["n"] == 9
    assert checked["decode"]["median_pct"] <= 8 and checked["prefill"]["max_pct"] <= 10
