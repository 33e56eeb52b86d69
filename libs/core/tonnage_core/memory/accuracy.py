"""Score the planner against a truth file: errors by metric, coverage of the intervals, false fits and refusals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec
from tonnage_core.memory.intervals import Interval, interval
from tonnage_core.memory.plan import MemoryPlan, plan_memory
from tonnage_core.memory.request import MemoryRequest
from tonnage_core.memory.truth import MEMORY, TruthError, TruthRow, predict, request_of, start_result
from tonnage_core.models import ModelShape

SCHEMA = "tonnage.accuracy/1"
BY_FORMULA = frozenset({"kv_bytes_per_token", "kv_gib_per_sequence"})


@dataclass(frozen=True, slots=True)
class Case:
    """A row with the model and the card it names; `shape` is None when the configs do not hold it."""

    row: TruthRow
    shape: ModelShape | None
    gpu: GpuSpec | None


@dataclass(frozen=True, slots=True)
class Answer:
    """One prediction beside its truth. `predicted` is None where the planner does not answer, with the reason."""

    case: Case
    predicted: float | None = None
    bounds: Interval | None = None
    verdict: str | None = None
    reason: str = ""

    @property
    def error_pct(self) -> float | None:
        """Signed error of a number in percent of the truth."""
        truth = self.case.row.value
        if self.predicted is None or truth is None or truth == 0:
            return None
        return (self.predicted - truth) / abs(truth) * 100


def answer(case: Case, *, use_pool: bool = True) -> Answer:
    """Ask the planner one row's question; what it refuses to answer is counted with the reason.

    A row that cannot be read is the file's fault and raises `TruthError`.
    """
    row = case.row
    if row.metric not in MEMORY:
        return Answer(case, reason=f"metric {row.metric[:40]} is not answered")
    if case.shape is None:
        return Answer(case, reason=f"no config {(row.config or row.model)[:80]!r}")
    try:
        return _ask(case, case.shape, use_pool)
    except TruthError:
        raise
    except BadInputError as error:
        return Answer(case, reason=str(error)[:200])


def _ask(case: Case, shape: ModelShape, use_pool: bool) -> Answer:
    row = case.row
    if row.metric == "start_result":
        # A pool on such a row stands for an unknown card only.
        verdict = start_result(request_of(row, shape, case.gpu, use_pool=case.gpu is None))
        return Answer(case, verdict=verdict, reason="" if verdict else "no card and no pool")
    request = request_of(row, shape, case.gpu, use_pool=use_pool)
    plan = None if row.metric in BY_FORMULA else plan_memory(request)
    return _number(case, request, plan)


def _number(case: Case, request: MemoryRequest, plan: MemoryPlan | None) -> Answer:
    predicted = predict(case.row, request, plan)
    if predicted is None:
        return Answer(case, reason="no card and no pool")
    return Answer(case, predicted, interval(case.row.metric, predicted, plan))


def evaluate(cases: Iterable[Case], *, use_pool: bool = True) -> list[Answer]:
    """An answer for every row that is to be scored."""
    return [answer(case, use_pool=use_pool) for case in cases if not case.row.excluded]


def summarise(answers: Sequence[Answer]) -> dict[str, dict[str, float | int | None]]:
    """Error statistics by metric; percentages of the truth."""
    by_metric: dict[str, list[Answer]] = {}
    for one in answers:
        if one.error_pct is not None:
            by_metric.setdefault(one.case.row.metric, []).append(one)
    return {metric: _statistics(found) for metric, found in sorted(by_metric.items())}


def _statistics(answers: Sequence[Answer]) -> dict[str, float | int | None]:
    errors = [one.error_pct or 0.0 for one in answers]
    sizes = sorted(abs(error) for error in errors)
    inside = [_covered(one) for one in answers]
    widths = sorted(_half_width_pct(one) for one in answers)
    return {
        "n": len(errors),
        "mae_pct": round(sum(sizes) / len(sizes), 4),
        "median_pct": round(_quantile(sizes, 0.5), 4),
        "p90_pct": round(_quantile(sizes, 0.9), 4),
        "max_pct": round(sizes[-1], 4),
        "bias_pct": round(sum(errors) / len(errors), 4),
        "coverage90": round(sum(inside) / len(inside), 4),
        "half_width_pct": round(_quantile(widths, 0.5), 4),
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _covered(one: Answer) -> bool:
    """Whether the interval holds the truth; a printed truth may be off by its own rounding."""
    truth = one.case.row.value
    if one.bounds is None or truth is None:
        return False
    slack = 1e-9 + abs(truth) * 1e-9
    return one.bounds.low - slack <= truth <= one.bounds.high + slack


def _half_width_pct(one: Answer) -> float:
    if one.bounds is None or not one.predicted:
        return 0.0
    return abs((one.bounds.high - one.bounds.low) / 2 / one.predicted) * 100


def start_errors(answers: Sequence[Answer]) -> tuple[list[str], list[str]]:
    """(ids of false fits, ids of false refusals) among start/fail rows."""
    judged = [one for one in answers if one.verdict is not None]
    fits = [one.case.row.id for one in judged if one.verdict == "start" and one.case.row.text == "fail"]
    refusals = [one.case.row.id for one in judged if one.verdict == "fail" and one.case.row.text == "start"]
    return fits, refusals


def accuracy_document(
    cases: Sequence[Case], *, version: str = "", others: Sequence[Answer] = (), skipped: int = 0
) -> dict[str, Any]:
    """The `tonnage.accuracy/1` document. `from_flags` answers the rows that give a pool without it.

    `others`: answers of rows of other kinds than `cases`, `skipped`: such rows that are not to be scored.
    """
    own = evaluate(cases)
    answers = [*own, *others]
    fits, refusals = start_errors(answers)
    pooled = [case for case in cases if case.row.columns.get("pool_gib") and case.row.metric != "start_result"]
    return {
        "schema": SCHEMA,
        "version": version,
        "rows": len(answers),
        "answered": sum(one.predicted is not None or one.verdict is not None for one in answers),
        "excluded": len(cases) - len(own) + skipped,
        "summary": summarise(answers),
        "given_pool": summarise([one for one in own if one.case.row.columns.get("pool_gib")]),
        "from_flags": summarise(
            [one for one in own if not one.case.row.columns.get("pool_gib")]
            + [one for one in evaluate(_with_card(pooled), use_pool=False)]
        ),
        "start": {
            "start": sum(one.case.row.text == "start" for one in answers if one.verdict),
            "fail": sum(one.case.row.text == "fail" for one in answers if one.verdict),
        },
        "false_fits": len(fits),
        "false_refusals": len(refusals),
        "false_fit_ids": fits,
        "false_refusal_ids": refusals,
        "not_answered": _reasons(answers),
        "answers": answers,
    }


def _with_card(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.gpu is not None or case.row.columns.get("gpu_mem_gib")]


def _reasons(answers: Sequence[Answer]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in answers:
        if one.reason:
            counts[one.reason] = counts.get(one.reason, 0) + 1
    return dict(sorted(counts.items()))


ROW_FIELDS = ("id", "metric", "truth", "predicted", "lo90", "hi90", "error_pct", "class")


def row_record(one: Answer) -> Mapping[str, str]:
    """One line of the rows file; empty cells where there is no answer."""
    bounds = one.bounds
    cells = (
        one.case.row.id,
        one.case.row.metric,
        one.case.row.text,
        one.verdict or _plain(one.predicted),
        _plain(bounds.low if bounds else None),
        _plain(bounds.high if bounds else None),
        _plain(one.error_pct),
        bounds.kind if bounds else "derived" if one.verdict else "",
    )
    return dict(zip(ROW_FIELDS, cells, strict=True))


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
