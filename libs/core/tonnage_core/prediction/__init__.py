"""Time: how long steps take, and TTFT, TPOT and throughput of a model on a replica at a concurrency."""

from tonnage_core.prediction.coefficients import Coefficients, coefficients_for
from tonnage_core.prediction.predict import Prediction, predict
from tonnage_core.prediction.request import PredictError, PredictRequest
from tonnage_core.prediction.step_model import StepModel, step_model

__all__ = [
    "Coefficients",
    "PredictError",
    "PredictRequest",
    "Prediction",
    "StepModel",
    "coefficients_for",
    "predict",
    "step_model",
]
