"""Bench points kept here, put to use: they calibrate answers, and what they say against the answer is the drift."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import find_gpu
from tonnage_core.memory.truth import truth_row
from tonnage_core.prediction.drift import drifts, informed
from tonnage_core.prediction.truth import Point, points_of
from tonnage_planner.documents import VERSION
from tonnage_planner.metrics import PlanMetrics
from tonnage_planner.predict import PredictQuestion, request_of
from tonnage_runtime.catalogue import load_model, model_names


def measured_points(rows: Iterable[Mapping[str, str]]) -> list[Point]:
    """Closed-loop points among `rows`; a row of a model or card that is not in the catalogue says nothing here."""
    known = []
    names = set(model_names())
    for row in rows:
        try:
            found = truth_row(row)
            if found.model in names and found.gpu:
                known.append((found, load_model(found.model), find_gpu(found.gpu)))
        except BadInputError:
            continue
    points: list[Point] = []
    for one in _by_run(known):
        try:
            points += points_of(one)
        except BadInputError:
            continue
    return points


MOST_COMPARED = 64
"""Runs of one request that are compared; the fit of each takes a moment."""
Rows = Mapping[str, Mapping[str, str]]


def note_drift(fresh: Rows, held: Rows, metrics: PlanMetrics) -> None:
    """Compare new rows with what the rows held before say of them."""
    points = measured_points(fresh.values())[:MOST_COMPARED]
    for drift in drifts(points, measured_points(held.values())):
        metrics.drift.labels(drift.metric).observe(drift.ratio)
    compared = {name for point in points for name in point.ids} & set(fresh)
    metrics.points.labels("compared").inc(len(compared))
    metrics.points.labels("unknown").inc(len(fresh) - len(compared))


def answer_by_points(question: PredictQuestion, text: str) -> dict[str, Any]:
    """The `tonnage.predict/1` document, calibrated by the kept points of `text` that speak for the question."""
    if question.points:
        raise BadInputError("points are given and kept ones asked for: use /v1/predict with points of your own")
    rows = csv.DictReader(io.StringIO(text))
    return informed(request_of(question), measured_points(rows)).document(VERSION)


def _by_run(rows: list[Any]) -> Iterable[list[Any]]:
    """Rows of one run together, so that one that cannot be read spoils no other run."""
    runs: dict[tuple[str, str], list[Any]] = {}
    for each in rows:
        runs.setdefault((each[0].id.rpartition(".")[0] or each[0].id, each[0].gpu), []).append(each)
    return runs.values()
