"""`POST /v1/predict`: the answer of `tonnage predict`, and what is refused."""

from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import find_gpu
from tonnage_core.prediction import PredictRequest, predict
from tonnage_planner.predict import MeasuredPoint, PredictAnswer, PredictQuestion, predict_answer
from tonnage_runtime.catalogue import load_model

LLAMA = "meta-llama/Llama-3.1-8B"


def question(**changes: Any) -> PredictQuestion:
    asked = {"model": LLAMA, "gpu": "H100", "engine": "vllm:0.19.0", "isl": 1000, "osl": 200, "concurrency": 16}
    return PredictQuestion.model_validate(asked | changes)


def test_the_answer_is_that_of_the_command() -> None:
    asked = PredictRequest(load_model(LLAMA), find_gpu("H100"), 1000, 200, 16, engine_version="0.19.0")
    found = PredictAnswer.model_validate(predict_answer(question()))
    assert found.tpot_ms.value == predict(asked).document()["tpot_ms"]["value"]
    assert found.class_ == "derived" and found.fits


def test_measured_points_calibrate() -> None:
    points = [MeasuredPoint(isl=1000, osl=200, concurrency=n, tpot_ms=t) for n, t in ((1, 14.0), (64, 30.0))]
    found = PredictAnswer.model_validate(predict_answer(question(points=points)))
    assert found.class_ == "calibrated"
    assert 14.0 < found.tpot_ms.value < 30.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": None}, "give gpu or gpu_profile"),
        ({"gpu": "X1"}, "X1"),
        ({"model": "nobody/none"}, "send its config.json"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"tp": 3}, "tp 3 does not divide"),
        ({"points": [{"isl": 1, "osl": 1, "concurrency": 1}]}, "no point to calibrate with"),
    ],
)
def test_what_no_engine_takes_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        predict_answer(question(**changes))
