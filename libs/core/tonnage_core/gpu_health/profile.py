"""The GpuProfile document (`tonnage.gpu_profile/1`): ceilings and curves of one GPU, read off its measured points."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_core.gpu_health.measurement import Measurement, PointStatus

SCHEMA = "tonnage.gpu_profile/1"


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Which GPU a profile is about. `name` is the catalogue's, `product` the driver's; unknown memory is None."""

    node: str
    index: int
    uuid: str
    name: str
    product: str
    memory_bytes: int | None = None
    mig: str = ""


@dataclass(frozen=True, slots=True)
class CeilingRule:
    """A ceiling is the best (`max`) or the median value of the points of some probes."""

    key: str
    probes: tuple[str, ...]
    pick: Callable[[Sequence[float]], float]
    unit: str


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones; `values` is not empty."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


CEILINGS = (
    CeilingRule("hbm_copy_gbps", ("hbm_copy",), max, "GB/s"),
    CeilingRule("hbm_read_gbps", ("hbm_read",), max, "GB/s"),
    CeilingRule("hbm_write_gbps", ("hbm_write",), max, "GB/s"),
    CeilingRule("hbm_triad_gbps", ("hbm_triad",), max, "GB/s"),
    CeilingRule("fp16_tflops", ("gemm_fp16",), max, "TFLOP/s"),
    CeilingRule("bf16_tflops", ("gemm_bf16",), max, "TFLOP/s"),
    CeilingRule("fp8_tflops", ("gemm_fp8",), max, "TFLOP/s"),
    CeilingRule("int8_tops", ("gemm_int8",), max, "TFLOP/s"),
    CeilingRule("h2d_pinned_gbps", ("h2d_pinned",), max, "GB/s"),
    CeilingRule("d2h_pinned_gbps", ("d2h_pinned",), max, "GB/s"),
    CeilingRule("bidirectional_pinned_gbps", ("bidirectional_pinned",), max, "GB/s"),
    CeilingRule("h2d_pageable_gbps", ("h2d_pageable",), max, "GB/s"),
    CeilingRule("d2h_pageable_gbps", ("d2h_pageable",), max, "GB/s"),
    CeilingRule("pin_s_per_gib", ("pin_cost",), median, "s/GiB"),
    CeilingRule("kernel_launch_us", ("launch_eager",), median, "us"),
    CeilingRule("graph_kernel_us", ("launch_graph",), median, "us"),
    CeilingRule("fusion_gbps", ("fusion_triton",), max, "GB/s"),
    CeilingRule("decode_attention_gbps", ("decode_attention",), max, "GB/s"),
    CeilingRule("p2p_gbps", ("p2p_copy",), min, "GB/s"),
    CeilingRule("disk_to_host_gbps", ("disk_read",), max, "GB/s"),
    CeilingRule("page_cache_to_host_gbps", ("page_cache_read",), max, "GB/s"),
)
"""A GEMM's value is a rate, so its ceiling is the best over the sweep; `int8_tops` counts a multiply-add as two."""

CURVES: Mapping[str, tuple[str, ...]] = {
    "gemm_fp16": ("batch",),
    "gemm_bf16": ("batch",),
    "gemm_fp8": ("batch",),
    "gemm_int8": ("batch",),
    "attention": ("implementation", "tokens"),
    "decode_attention": ("batch", "context"),
    "lora_gemm": ("batch", "rank", "adapters"),
    "h2d_pinned": ("bytes",),
    "d2h_pinned": ("bytes",),
    "h2d_pageable": ("bytes",),
    "d2h_pageable": ("bytes",),
    "hbm_copy": ("bytes",),
    "allreduce": ("ranks", "bytes", "mode"),
    "allreduce_one_shot": ("ranks", "bytes", "mode"),
    "allgather": ("ranks", "bytes", "mode"),
    "reducescatter": ("ranks", "bytes", "mode"),
    "alltoall": ("ranks", "bytes", "mode"),
    "sendrecv": ("ranks", "bytes", "mode"),
    "p2p_sweep": ("peer", "bytes", "mode"),
    "tensor_parallel_step": ("model", "ranks", "batch", "context", "reduce"),
    "decode_step": ("model", "batch", "context"),
    "prefill_chunk": ("model", "tokens", "context"),
    "verify_step": ("model", "batch", "context", "drafts"),
}
"""Curve -> the parameters that name its points; each point also has `us` and, for copies, `gbps`."""


def ceilings(points: Iterable[Measurement]) -> dict[str, float]:
    """The ceilings that were measured; what was not measured is absent, never zero."""
    values: dict[str, list[float]] = {}
    for point in points:
        if point.status is PointStatus.OK and point.value is not None:
            values.setdefault(point.name, []).append(point.value)
    found = {}
    for rule in CEILINGS:
        seen = [value for name in rule.probes for value in values.get(name, ())]
        if seen:
            found[rule.key] = rule.pick(seen)
    return found


def curves(points: Iterable[Measurement]) -> dict[str, list[dict[str, float | str]]]:
    """The curves that were measured, in the order of measurement."""
    found: dict[str, list[dict[str, float | str]]] = {}
    for point in points:
        keys = CURVES.get(point.name)
        if keys is None or point.status is not PointStatus.OK or any(key not in point.params for key in keys):
            continue
        entry: dict[str, float | str] = {key: point.params[key] for key in keys}
        if "us" in point.params:
            entry["us"] = point.params["us"]
        if point.unit == "GB/s" and point.value is not None:
            entry["gbps"] = point.value
        found.setdefault(point.name, []).append(entry)
    return found


def gpu_profile(
    identity: GpuIdentity,
    points: Sequence[Measurement],
    *,
    measured_at: str,
    context: Mapping[str, Any],
    verdict: Mapping[str, Any],
    version: str,
) -> dict[str, Any]:
    """The document of CONTRACTS, with `probes` holding every point.

    `measured_at` is RFC 3339 in UTC. `verdict` is `{"status", "reasons", ...}`.
    """
    return {
        "schema": SCHEMA,
        "version": version,
        "node": identity.node,
        "index": identity.index,
        "uuid": identity.uuid,
        "name": identity.name,
        "product": identity.product,
        "memory_bytes": identity.memory_bytes,
        "mig": identity.mig or None,
        "measured_at": measured_at,
        "context": dict(context),
        "ceilings": ceilings(points),
        "curves": curves(points),
        "verdict": dict(verdict),
        "probes": [point.document() for point in points],
    }
