"""Predicted against seen: how far new measurements lie from what the model, with the points it had, says of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from tonnage_core.errors import BadInputError
from tonnage_core.prediction.calibrate import (
    MOST_POINTS,
    Calibration,
    UnfitError,
    calibrate,
    distance,
    predict_calibrated,
)
from tonnage_core.prediction.predict import Prediction, predict
from tonnage_core.prediction.request import PredictRequest
from tonnage_core.prediction.truth import CLOSED_LOOP, Point


@dataclass(frozen=True, slots=True)
class Drift:
    """One metric of one point: predicted over seen. `calibrated`: points held before spoke for it."""

    metric: str
    ratio: float
    calibrated: bool


def speaking_for(request: PredictRequest, points: Sequence[Point]) -> list[Point]:
    """Points of the same model, card, engine and layout, the nearest first, at most as many as calibrate."""
    same = [
        point
        for point in points
        if (point.request.shape.name, point.request.gpu.name, point.request.engine, point.request.layout)
        == (request.shape.name, request.gpu.name, request.engine, request.layout)
        and (point.tpot_ms or point.ttft_ms)
    ]
    near = sorted(same, key=lambda point: distance(point, request.isl, request.osl, request.concurrency))
    return near[:MOST_POINTS]


def informed(request: PredictRequest, points: Sequence[Point]) -> Prediction:
    """The answer with the points that speak for it; without one, or where they are unfit, the model's own."""
    known = speaking_for(request, points)
    try:
        return predict_calibrated(request, calibrate(known)) if known else predict(request)
    except UnfitError as error:
        found = predict(request)
        return replace(found, notes=(*found.notes, f"not calibrated: {error}"))


def drifts(fresh: Sequence[Point], held: Sequence[Point]) -> list[Drift]:
    """Each metric of each fresh point against what `held` points say; a point that no engine takes is left out.

    A held point that is the fresh one, measured before, counts: its repeat is the plainest sign of a drift.
    """
    found: list[Drift] = []
    fitted: dict[frozenset[tuple[str, ...]], Calibration | None] = {}
    for point in fresh:
        calibration = _fitted(speaking_for(point.request, held), fitted)
        try:
            asked = point.request
            answer = predict_calibrated(asked, calibration) if calibration else predict(asked)
        except BadInputError:
            continue
        for metric in sorted(CLOSED_LOOP):
            seen = getattr(point, metric)
            if seen and isfinite(ratio := getattr(answer, metric).value / seen):
                found.append(Drift(metric, ratio, calibration is not None))
    return found


def _fitted(known: Sequence[Point], fitted: dict[frozenset[tuple[str, ...]], Calibration | None]) -> Calibration | None:
    """What the points come to, None without one or where they are unfit; those of one deployment are fitted once."""
    name = frozenset(point.ids for point in known)
    if name not in fitted:
        try:
            fitted[name] = calibrate(known) if known else None
        except BadInputError:
            fitted[name] = None
    return fitted[name]
