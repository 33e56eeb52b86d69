"""Bench points kept here, put to use: they calibrate answers, and what they say against the answer is the drift."""

import contextlib
import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec, find_gpu
from tonnage_core.memory.truth import TruthRow, truth_row
from tonnage_core.models import ModelShape
from tonnage_core.planning.calibrated import offered_rows, with_points
from tonnage_core.planning.spec import PlanSpec
from tonnage_core.prediction.drift import drifts, informed
from tonnage_core.prediction.truth import Point, points_of, rows_about
from tonnage_planner.documents import VERSION
from tonnage_planner.metrics import PlanMetrics
from tonnage_planner.predict import PredictQuestion, request_of
from tonnage_runtime.catalogue import load_model, model_names


def measured_points(rows: Iterable[Mapping[str, str]]) -> list[Point]:
    """Closed-loop points among `rows`; a row of a model or card that is not in the catalogue says nothing here."""
    known = []
    names = set(model_names())
    for row in _readable(rows):
        if row.model in names and row.gpu:
            with contextlib.suppress(BadInputError):
                known.append((row, load_model(row.model), find_gpu(row.gpu)))
    return _points(known)


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
    request = request_of(question)
    rows = _readable(csv.DictReader(io.StringIO(text)))
    names = (question.model, request.shape.name)
    points = _points(rows_about(rows, names, request.shape, [request.gpu]))
    return informed(request, points).document(VERSION)


def plan_by_points(spec: PlanSpec, rows: Rows) -> PlanSpec:
    """The specification with the kept points that speak for its model, engine and offers."""
    return with_points(spec, _points(offered_rows(spec, _readable(rows.values()))))


Known = tuple[TruthRow, ModelShape, GpuSpec]


def _readable(rows: Iterable[Mapping[str, str]]) -> list[TruthRow]:
    found = []
    for row in rows:
        with contextlib.suppress(BadInputError):
            found.append(truth_row(row))
    return found


def _points(rows: list[Known]) -> list[Point]:
    """Run by run, so that one that cannot be read spoils no other."""
    runs: dict[tuple[str, str], list[Known]] = {}
    for each in rows:
        runs.setdefault((each[0].id.rpartition(".")[0] or each[0].id, each[0].gpu), []).append(each)
    points: list[Point] = []
    for one in runs.values():
        with contextlib.suppress(BadInputError):
            points += points_of(one)
    return points
