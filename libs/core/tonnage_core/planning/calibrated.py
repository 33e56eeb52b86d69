"""Bench points in a plan: which speak for a configuration, the step times they give it, how sure those are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Any

from tonnage_core.hardware import GpuSpec
from tonnage_core.memory.truth import TruthRow
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.planning.spec import PlanSpec
from tonnage_core.prediction.calibrate import Calibration, UnfitError, calibrate, distance
from tonnage_core.prediction.coefficients import Coefficients
from tonnage_core.prediction.drift import speaking_for
from tonnage_core.prediction.intervals import calibrated_widths, widths
from tonnage_core.prediction.request import PredictRequest
from tonnage_core.prediction.slots import slots_of
from tonnage_core.prediction.truth import Point, rows_about

MIDDLE = 32
"""Requests in flight of the question that chooses points, where there are more of them than a fit takes."""


def offered_rows(spec: PlanSpec, rows: Sequence[TruthRow]) -> list[tuple[TruthRow, ModelShape, GpuSpec]]:
    """Rows about the plan's model on a card that is offered."""
    return rows_about(rows, (spec.model, spec.shape.name), spec.shape, [offer.gpu for offer in spec.offers])


def with_points(spec: PlanSpec, points: Sequence[Point]) -> PlanSpec:
    """The specification, to be planned with what was measured of its engine; points of other engines say nothing."""
    return replace(spec, points=tuple(point for point in points if point.request.engine == spec.engine))


def coefficients_of(spec: PlanSpec, gpu: GpuSpec, layout: Layout) -> Coefficients | None:
    """Refitted to the points of the same card and layout, whatever the format of their weights; None without one."""
    found = _calibration(spec, gpu, layout)
    return None if found is None else found.coefficients


def step_times(
    spec: PlanSpec, gpu: GpuSpec, layout: Layout, rows: float, precision: str = "auto", kv_dtype: str = "auto"
) -> dict[str, Any]:
    """Where a configuration's step times come from, with `rows` requests in flight.

    `half_width_pct` are of the 90 % intervals of a closed loop's means there, upwards; `points` are the runs behind it.
    Refitted coefficients count for every format, but only one that was run is as sure as `calibrated` says.
    """
    asked = _question(spec, gpu, layout, max(1, round(rows)))
    request = replace(asked, precision=precision, kv_dtype=kv_dtype)
    slots, found = slots_of(request), _calibration(spec, gpu, layout)
    sure = widths(request, slots)
    ran = [each for each in found.points if _formats(spec, each.request) == _formats(spec, request)] if found else []
    if found is not None and ran:
        apart = min(distance(each, request.isl, request.osl, request.concurrency) for each in ran)
        sure = calibrated_widths(request, slots, found, apart)
    wide = {"tpot_ms": round(100 * (exp(sure.tpot) - 1), 1), "ttft_ms": round(100 * (exp(sure.ttft) - 1), 1)}
    return {"class": sure.kind, "points": len(found.points) if found else 0, "half_width_pct": wide}


def _formats(spec: PlanSpec, request: PredictRequest) -> tuple[object, str]:
    """Of weights and cache; a plain checkpoint's own formats by whatever name."""
    kv = "auto" if request.kv_dtype in ("bf16", "fp16") else request.kv_dtype
    return spec.shape_in(request.precision).quantization, kv


def calibration_document(spec: PlanSpec) -> list[dict[str, Any]]:
    """What was refitted for this plan: the card, the layout, the ids of the rows; `unfit` says why none were."""
    return [
        {
            "gpu": gpu,
            **{name: getattr(layout, name) for name in ("tp", "pp", "ep", "dp")},
            "points": len(found.points) if found else 0,
            "ids": sorted(name for point in found.points for name in point.ids) if found else [],
            "unfit": spec.unfit.get((gpu, layout)),
        }
        for (gpu, layout), found in spec.calibrations.items()
        if found is not None or (gpu, layout) in spec.unfit
    ]


def calibration_lines(document: Mapping[str, Any]) -> list[str]:
    """The winner's step times in words, and which measured layouts stand behind the plan."""
    lines = []
    if document["best"] is not None:
        times = document["best"]["step_times"]
        wide = ", ".join(f"{name[:4].upper()} +{value:.0f} %" for name, value in times["half_width_pct"].items())
        lines.append(f"step times of the best: {times['class']}, 90 % within {wide}")
    for one in document["calibration"]:
        sizes = " ".join(f"{name}{one[name]}" for name in ("tp", "pp", "ep", "dp") if one[name] > 1) or "tp1"
        if one["unfit"] is None:
            lines.append(f"calibrated: {one['gpu']} {sizes} by {one['points']} measured runs")
        else:
            lines.append(f"not calibrated: {one['gpu']} {sizes}: {one['unfit']}")
    return lines


def _question(spec: PlanSpec, gpu: GpuSpec, layout: Layout, concurrency: int) -> PredictRequest:
    traffic = spec.traffic
    prompt = max(1.0, traffic.mean_input)
    return PredictRequest(
        spec.shape,
        gpu,
        prompt,
        max(1.0, traffic.outputs.mean),
        concurrency,
        prefix=min(prompt, traffic.mean_cached),
        layout=layout,
        engine=spec.engine,
        engine_version=spec.engine_version,
    )


def _calibration(spec: PlanSpec, gpu: GpuSpec, layout: Layout) -> Calibration | None:
    if not spec.points:
        return None
    key = (gpu.name, layout)
    if key not in spec.calibrations:
        known = speaking_for(_question(spec, gpu, layout, MIDDLE), spec.points)
        try:
            spec.calibrations[key] = calibrate(known) if known else None
        except UnfitError as error:
            spec.calibrations[key], spec.unfit[key] = None, str(error)
    return spec.calibrations[key]
