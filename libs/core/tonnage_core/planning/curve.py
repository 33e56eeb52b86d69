"""The latency-throughput curve of one replica, its knee, and what queueing formulas make of the same loads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_core.cost import usd_per_million_tokens
from tonnage_core.planning.evaluate import PATIENCE, Checked, load_of, steady, try_load, work_of
from tonnage_core.planning.spec import PlanSpec, Target
from tonnage_core.planning.trial import Trial
from tonnage_core.queueing import gg1_wait, mm1_time
from tonnage_core.slo import percentile

SHARES = (0.3, 0.6, 1.3, 1.6)
"""Loads tried besides those that the search has tried, over the load at which the plan was tested."""
QUICK = 140
"""Requests measured a point."""


@dataclass(frozen=True)
class CurvePoint:
    """One load of one replica. `utilisation` is the rate over the largest that a full batch carries."""

    trial: Trial
    utilisation: float
    mm1_ttft_ms: float | None
    mg1_ttft_ms: float | None
    meets: bool


@dataclass(frozen=True)
class Curve:
    """Points by rising rate. `knee` is the index where more load begins to cost more latency than it brings tokens."""

    points: tuple[CurvePoint, ...]
    knee: int | None
    saturation_rps: float
    capacity_rps: float
    """The largest rate tried at which every target is met."""


def curve_of(spec: PlanSpec, best: Checked) -> Curve:
    """The engine model at rising loads, beside M/M/1 and M/G/1 with the same idle time and the same saturation."""
    base = load_of(spec, best.replicas or 1)
    trials = {trial.rate_rps: trial for trial in best.trials.values()}
    for share in SHARES:
        if work_of(trials.values()) > PATIENCE:
            break
        if not any(abs(rate / base - share) < 0.12 for rate in trials):
            trials[share * base] = try_load(spec, best.ranked, share * base, QUICK)
    ordered = [trials[rate] for rate in sorted(trials)]
    formulas = steady(spec, best.ranked)
    held = min(best.ranked.sized.rows, best.ranked.sized.pool_tokens / formulas.context)
    saturation = formulas.at(held).rate_rps
    idle = formulas.ttft_s(formulas.at(1e-3), 50.0) * 1e3
    points = tuple(_point(spec, trial, saturation, idle) for trial in ordered)
    met = [point.trial.rate_rps for point in points if point.meets]
    return Curve(
        points, knee_of([(p.trial.rate_rps, _mean(p.trial.ttft_ms)) for p in points]), saturation, max(met, default=0.0)
    )


def _point(spec: PlanSpec, trial: Trial, saturation: float, idle_ms: float) -> CurvePoint:
    share, traffic = trial.rate_rps / saturation, spec.traffic
    single = general = None
    if share < 1:
        single = mm1_time(idle_ms, share)
        general = idle_ms + gg1_wait(idle_ms, traffic.inputs.cv, traffic.arrival_cv, share)
    return CurvePoint(trial, share, single, general, trial.broken(spec.call_targets) is None)


def knee_of(points: Sequence[tuple[float, float]]) -> int | None:
    """Index of the point farthest below the straight line from the first to the last (Satopaa et al. 2011); None for
    fewer than three points or a curve that does not rise."""
    if len(points) < 3 or points[-1][1] <= points[0][1] or points[-1][0] <= points[0][0]:
        return None
    (x0, y0), (x1, y1) = points[0], points[-1]
    below = [(x - x0) / (x1 - x0) - (y - y0) / (y1 - y0) for x, y in points]
    index = max(range(len(points)), key=below.__getitem__)
    return index if below[index] > 0 else None


def curve_document(spec: PlanSpec, best: Checked, curve: Curve) -> dict[str, Any]:
    """The curve as JSON; rates are of one replica."""
    usd = best.config.usd_per_hour
    return {
        "points": [_row(spec, point, usd) for point in curve.points],
        "knee_rps": None if curve.knee is None else round(curve.points[curve.knee].trial.rate_rps, 4),
        "capacity_rps": round(curve.capacity_rps, 4),
        "saturation_rps": round(curve.saturation_rps, 4),
        "why_not_full": _why(spec, curve),
    }


def _row(spec: PlanSpec, point: CurvePoint, usd: float) -> dict[str, Any]:
    trial = point.trial
    tokens = trial.rate_rps * spec.traffic.outputs.mean
    return {
        "rate_rps": round(trial.rate_rps, 4),
        "utilisation": round(point.utilisation, 4),
        "ttft_ms": percentiles(trial.ttft_ms),
        "tpot_ms": percentiles(trial.tpot_ms),
        "attainment": round(trial.attainment, 4),
        "goodput_rps": round(trial.goodput_rps, 4),
        "output_tok_s": round(trial.output_tok_s, 1),
        "usd_per_mtok": round(usd_per_million_tokens(usd, tokens), 4),
        "meets_slo": point.meets,
        "ttft_mean_ms_mm1": _rounded(point.mm1_ttft_ms),
        "ttft_mean_ms_mg1": _rounded(point.mg1_ttft_ms),
        "preemptions": trial.preemptions,
    }


def _why(spec: PlanSpec, curve: Curve) -> str:
    """One sentence on the distance between what a replica could do and what it may."""
    share = curve.capacity_rps / curve.saturation_rps if curve.saturation_rps else 0.0
    over = next((point for point in curve.points if not point.meets), None)
    text = f"the SLO holds up to {share:.0%} of the {curve.saturation_rps:.2f} requests/s that a full batch would carry"
    if over is not None and (broken := over.trial.broken(spec.call_targets)) is not None:
        text += f"; at {over.trial.rate_rps / curve.saturation_rps:.0%} {_said(*broken)}"
    return f"{text}. M/M/1 stretches the idle time 20-fold at 95 %"


def _said(target: Target, value: float) -> str:
    return f"{target.name} is {value:,.0f} ms, above {target.limit_ms:g}"


def percentiles(ordered: Sequence[float]) -> dict[str, float | None]:
    """p50, p90, p99 and mean of sorted milliseconds; None without any."""
    if not ordered:
        return dict.fromkeys(("p50", "p90", "p99", "mean"))
    found = {f"p{percent:g}": round(percentile(ordered, percent) or 0.0, 2) for percent in (50.0, 90.0, 99.0)}
    return {**found, "mean": round(_mean(ordered), 2)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
