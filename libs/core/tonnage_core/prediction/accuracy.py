"""Score the time model on latency rows of a truth file, uncalibrated or calibrated on a few points of each curve."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tonnage_core.errors import BadInputError
from tonnage_core.memory.accuracy import Answer, Case
from tonnage_core.memory.intervals import Interval
from tonnage_core.memory.truth import TruthError
from tonnage_core.prediction.calibrate import Calibration, calibrate, chosen, predict_calibrated
from tonnage_core.prediction.closed_loop import burst_seconds
from tonnage_core.prediction.intervals import Estimate, widths
from tonnage_core.prediction.predict import Prediction, load_of, model_of, predict
from tonnage_core.prediction.request import PredictRequest
from tonnage_core.prediction.slots import slots_of
from tonnage_core.prediction.truth import CLOSED_LOOP, LATENCY, Point, points_of, request_of, run_of, series_of

FULL_BATCH = 1024
"""Requests of an offline prefill run: enough to fill every step."""


@dataclass
class LatencyScores:
    """Answers of latency rows. With calibration, `answers` are those of curves with enough points that were not used
    to calibrate, `uncalibrated` the rest; `used` counts the rows that calibrated."""

    answers: list[Answer] = field(default_factory=list)
    uncalibrated: list[Answer] = field(default_factory=list)
    used: int = 0
    curves: int = 0


def latency_scores(cases: Iterable[Case], points: int = 0) -> LatencyScores:
    """Answer every latency row; with `points`, refit the coefficients on so many points of each curve first.

    A row that cannot be read is the file's fault and raises `TruthError`.
    """
    scored = [case for case in cases if case.row.metric in LATENCY and not case.row.excluded]
    curves = _calibrations(scored, points) if points else {}
    found = LatencyScores(curves=len(curves))
    answered: dict[tuple[str, ...], Prediction] = {}
    for case in scored:
        calibration = curves.get(series_of(case.row)) if case.row.metric in CLOSED_LOOP else None
        if calibration is None:
            (found.uncalibrated if points else found.answers).append(_answer(case, answered))
        elif _level(case) in {point.request.concurrency for point in calibration.points}:
            found.used += 1
        else:
            found.answers.append(_calibrated(case, calibration))
    return found


def _level(case: Case) -> int | None:
    return case.row.whole("concurrency")


def _calibrations(cases: Sequence[Case], count: int) -> dict[tuple[str, ...], Calibration]:
    """A calibration for each curve that has points left to score."""
    by_curve: dict[tuple[str, ...], list[Point]] = {}
    for point in points_of([(case.row, case.shape, case.gpu) for case in cases if case.shape and case.gpu]):
        by_curve.setdefault(point.series, []).append(point)
    found = {}
    for series, points in by_curve.items():
        if len({point.request.concurrency for point in points}) > count:
            found[series] = calibrate(chosen(points, count))
    return found


def _question(case: Case) -> PredictRequest | str:
    """The request of a row, or why there is none."""
    if case.shape is None:
        return f"no config {(case.row.config or case.row.model)[:80]!r}"
    if case.gpu is None:
        return f"no GPU {case.row.gpu[:80]!r} in the catalogue" if case.row.gpu else "no GPU named"
    return request_of(case.row, case.shape, case.gpu)


def _answer(case: Case, answered: dict[tuple[str, ...], Prediction]) -> Answer:
    try:
        request = _question(case)
        if isinstance(request, str):
            return Answer(case, reason=request)
        if case.row.metric not in CLOSED_LOOP:
            return _rate(case, request)
        run = run_of(case.row)
        if run not in answered:
            answered[run] = predict(request)
        return _of(case, answered[run])
    except TruthError:
        raise
    except BadInputError as error:
        return Answer(case, reason=str(error)[:200])


def _calibrated(case: Case, calibration: Calibration) -> Answer:
    request = _question(case)
    assert not isinstance(request, str), "a curve has a model and a card"
    return _of(case, predict_calibrated(request, calibration))


def _of(case: Case, found: Prediction) -> Answer:
    estimates = {"ttft_ms": found.ttft_ms, "tpot_ms": found.tpot_ms, "output_tok_s": found.output_tok_s}
    return _scored(case, estimates[case.row.metric], found.kind)


def _scored(case: Case, estimate: Estimate, kind: str) -> Answer:
    return Answer(case, estimate.value, Interval(estimate.lo90, estimate.hi90, kind))


def _rate(case: Case, request: PredictRequest) -> Answer:
    """Tokens a second and GPU of one phase alone, every step full."""
    slots = slots_of(request)
    model, load = model_of(request, slots), load_of(request, slots)
    gpus, sure = request.layout.gpus, widths(request, slots)
    if case.row.metric == "prefill_tok_s_gpu":
        full = type(load)(load.isl, load.osl, load.prefix, FULL_BATCH, FULL_BATCH)
        return _scored(case, sure.estimate(load.fresh / burst_seconds(model, full) / gpus), sure.kind)
    if case.row.whole("concurrency") is None:
        return Answer(case, reason="a decode rate needs a concurrency")
    rate = load.running / model.decode_step_s(load.running, load.context) / gpus
    return _scored(case, sure.estimate(rate), sure.kind)
