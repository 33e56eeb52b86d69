"""Where a GPU's measured matrix products stand under its roofline, from the probes of its GpuProfile."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PRECISIONS = {"gemm_bf16": "bf16", "gemm_fp16": "fp16", "gemm_fp8": "fp8", "gemm_int8": "int8"}
"""Probe of a matrix product -> precision of its operands."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One product: FLOP over bytes moved, and FLOP over the time it took."""

    label: str
    precision: str
    intensity: float
    tflops: float


def measured_products(profile: Mapping[str, Any]) -> list[Measured]:
    """The products of a `tonnage.gpu_profile/1` document by rising intensity; none where it has no such probes.

    A probe that failed, or lacks its FLOP, bytes or time (`params.us`, microseconds), is left out: it says nothing.
    """
    probes = profile.get("probes")
    found = [point for probe in probes if (point := _point(probe)) is not None] if isinstance(probes, list) else []
    return sorted(found, key=lambda point: (point.precision, point.intensity))


def _point(probe: object) -> Measured | None:
    if not isinstance(probe, Mapping) or probe.get("status") != "ok":
        return None
    precision, params = PRECISIONS.get(str(probe.get("name"))), probe.get("params")
    if precision is None or not isinstance(params, Mapping):
        return None
    flops, moved, us = _positive(probe.get("flops")), _positive(probe.get("bytes")), _positive(params.get("us"))
    if flops is None or moved is None or us is None:
        return None
    batch = _positive(params.get("batch"))
    label = f"{precision} product" if batch is None else f"{precision} product, batch {batch:,.0f}"
    return Measured(label, precision, flops / moved, flops / us / 1e6)


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)
