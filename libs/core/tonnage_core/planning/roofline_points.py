"""Where the plan's steps stand under the roofline of their GPU: decode at several batches, and prefill."""

from typing import Any

from tonnage_core.moe import expert_coverage
from tonnage_core.planning.evaluate import Checked, load_of, steady
from tonnage_core.planning.spec import PlanSpec
from tonnage_core.prediction.step_model import StepModel
from tonnage_core.roofline import attainable_tflops, ridge_point

BATCHES = (1, 8, 64, 256)


def roofline_document(spec: PlanSpec, best: Checked) -> dict[str, Any]:
    """Peak, bandwidth, ridge point, and points as (intensity in FLOP/byte, TFLOP/s attained by the step model).

    Counted over the matrix products of one rank, whose bytes are the weights read: attention's own intensity does not
    grow with the batch and is left out.
    """
    model, gpu = best.ranked.sized.model, best.config.offer.gpu
    formulas = steady(spec, best.ranked)
    planned = formulas.carrying(load_of(spec, best.replicas or 1)).rows
    points = [_decode(model, rows, formulas.context, f"decode, batch {rows:g}") for rows in BATCHES]
    points.append(_decode(model, max(1.0, planned), formulas.context, f"planned, batch {planned:.0f}"))
    tokens = best.ranked.sized.budget
    points.append(_point(model, tokens, model.mixed_step_s(0, 0, tokens, 0), f"prefill, {tokens:,} tokens"))
    peak = gpu.fp8_tflops if best.config.precision == "fp8" and gpu.fp8_tflops else gpu.bf16_tflops
    return {
        "gpu": gpu.name,
        "peak_tflops": peak,
        "hbm_gbps": gpu.hbm_gbps,
        "ridge_flop_per_byte": round(ridge_point(peak, gpu.hbm_gbps), 2),
        "points": [
            {**point, "attainable_tflops": round(attainable_tflops(peak, gpu.hbm_gbps, point["intensity"]), 3)}
            for point in points
        ],
    }


def _decode(model: StepModel, rows: float, context: float, label: str) -> dict[str, Any]:
    return _point(model, rows, model.decode_step_s(rows, context), label)


def _point(model: StepModel, rows: float, seconds: float, label: str) -> dict[str, Any]:
    work = model.operators
    flops = rows * sum(part.flops_per_row for part in work.products)
    read = sum(part.weight_bytes for part in work.products)
    for part in work.experts:
        flops += rows * part.top_k / part.ranks * part.flops_per_choice
        read += part.weight_bytes * expert_coverage(part.count, part.top_k, max(1, round(rows)))
    return {
        "label": label,
        "intensity": round(flops / read, 3) if read else 0.0,
        "tflops": round(flops / seconds / 1e12, 3),
        "step_ms": round(seconds * 1e3, 3),
    }
