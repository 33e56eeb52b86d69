"""Sweep the Triton kernels' cuts on this machine's GPU: which tiles, spans and warps are quickest where.

`PYTHONPATH=libs/core:libs/runtime:gpu-agents python benchmarks/gpu_agent/tune.py OUT.json`
"""

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tonnage_gpu_agent.kernels.lora import AdapterRows, LoraCut, expand, shrink
from tonnage_gpu_agent.kernels.paged_decode import DecodePlan, PagedDecode
from tonnage_gpu_agent.kernels.streams import read_sum, scale_shift
from tonnage_gpu_agent.probes import lora_gemm
from tonnage_gpu_agent.probes.decode_attention import DIM, HEADS, KV_HEADS, PAGE, TOKEN_BYTES
from tonnage_gpu_agent.probes.probe import GIB, Bench
from tonnage_gpu_agent.probes.timing import CudaTimer

DECODE_SIZES = ((8, 32768), (64, 4096), (8, 4096), (1, 32768), (32, 4096), (256, 1024), (1, 131072))


def make_bench() -> Bench:
    device = torch.device("cuda", 0)
    properties = torch.cuda.get_device_properties(device)
    return Bench(
        device,
        CudaTimer(dict, contextlib.nullcontext),
        torch.Generator(device=device).manual_seed(0),
        l2_bytes=int(properties.L2_cache_size),
        multiprocessors=int(properties.multi_processor_count),
    )


def decode_plans(batch: int, context: int, processors: int) -> Iterator[DecodePlan]:
    for waves, tile, warps, stages in itertools.product((2, 4, 8, 16), (32, 64, 128), (4, 8), (2, 3, 4)):
        wanted = max(1, round(waves * processors / (batch * KV_HEADS)))
        span = max(tile, -(-context // wanted // tile) * tile)
        yield DecodePlan(-(-context // span), span, tile, warps, stages)


def tune_decode(bench: Bench) -> list[dict[str, Any]]:
    pages = 4 * GIB // (TOKEN_BYTES * PAGE)
    k, v = (bench.normal(pages, KV_HEADS, PAGE, DIM, dtype=torch.bfloat16) for _ in range(2))
    order = torch.randperm(pages, device=bench.device, generator=bench.generator).int()
    found: list[dict[str, Any]] = []
    for batch, context in DECODE_SIZES:
        blocks = context // PAGE
        copies = min(bench.copies(batch * context * TOKEN_BYTES), pages // (batch * blocks))
        tables = [order[i * batch * blocks : (i + 1) * batch * blocks].view(batch, blocks) for i in range(copies)]
        lengths = torch.full((batch,), context, dtype=torch.int32, device=bench.device)
        q = bench.normal(batch, 1, HEADS, DIM, dtype=torch.bfloat16)
        out = torch.empty_like(q)
        for plan in dict.fromkeys(decode_plans(batch, context, bench.multiprocessors)):
            kernel = PagedDecode.make(plan, batch, KV_HEADS, HEADS // KV_HEADS, DIM, bench.device)
            calls = [partial(kernel, q, k, v, table, lengths, out) for table in tables]
            try:
                us = bench.timer.graph(calls, budget_ms=8).us
            except RuntimeError as error:
                sys.stderr.write(f"{plan}: {error}\n")
                continue
            gbps = batch * context * TOKEN_BYTES / us / 1e3
            found.append({"batch": batch, "context": context, "us": us, "gbps": gbps, "plan": vars_of(plan)})
        best = sorted((f for f in found if (f["batch"], f["context"]) == (batch, context)), key=lambda f: f["us"])
        for entry in best[:5]:
            sys.stdout.write(
                f"decode {batch:4} {context:6} {entry['us']:8.1f} us {entry['gbps']:6.0f} {entry['plan']}\n"
            )
    return found


def vars_of(plan: Any) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__}


def tune_lora(bench: Bench) -> list[dict[str, Any]]:
    x = bench.normal(64, 8192, dtype=torch.bfloat16)
    rows = AdapterRows.group(bench.integers(0, 8, 64, dtype=torch.int64), 8)
    layers = [lora_gemm.LoraLayer(bench, x, rows, 16, 8) for _ in range(4)]
    base = bench.timer.graph([layer.base for layer in layers], budget_ms=30).us
    found: list[dict[str, Any]] = []
    for splits, tile, out_tile, warps in itertools.product((8, 16, 32, 64), (64, 128, 256), (32, 64, 128), (2, 4)):
        cut = replace(LoraCut(), splits=splits, shrink_tile=tile, expand_tile=out_tile, warps=warps)
        for layer in layers:
            layer.cut = cut
            layer.part = torch.empty(splits, 64, 16, device=x.device)
        us = bench.timer.graph([layer.adapted for layer in layers], budget_ms=8).us
        one = layers[0]
        parts = [
            bench.timer.graph([partial(shrink, x, lay.a, rows, lay.part, cut) for lay in layers], budget_ms=4).us,
            bench.timer.graph(
                [partial(expand, lay.part, lay.b, one.y, rows, 0.5, cut) for lay in layers], budget_ms=4
            ).us,
        ]
        found.append(
            {"us": us, "overhead": us / base - 1, "shrink_us": parts[0], "expand_us": parts[1], "cut": vars_of(cut)}
        )
    for entry in sorted(found, key=lambda f: f["us"])[:6]:
        sys.stdout.write(f"lora base {base:.1f} us, adapted {entry}\n")
    return found


def tune_streams(bench: Bench) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    x = bench.normal(GIB, dtype=torch.float32)
    for block, programs in itertools.product((1024, 2048, 4096, 8192), (4, 8, 16, 32, 64)):
        sums = torch.empty(programs * bench.multiprocessors, device=bench.device)
        us = bench.timer.eager([partial(read_sum, x, sums, block)], budget_ms=15).us
        found.append({"kernel": "read", "block": block, "programs": programs, "gbps": 4 * GIB / us / 1e3})
    y = torch.empty_like(x)
    for block in (512, 1024, 2048, 4096, 8192, 16384):
        us = bench.timer.eager([partial(scale_shift, x[: GIB // 4], y[: GIB // 4], 2.0, 1.0, block)], budget_ms=15).us
        found.append({"kernel": "scale", "block": block, "gbps": 2 * GIB / us / 1e3})
    us = bench.timer.eager([partial(y[: GIB // 4].copy_, x[: GIB // 4])], budget_ms=15).us
    found.append({"kernel": "copy", "block": 0, "gbps": 2 * GIB / us / 1e3})
    for kernel in ("read", "scale", "copy"):
        for entry in sorted((f for f in found if f["kernel"] == kernel), key=lambda f: -f["gbps"])[:4]:
            sys.stdout.write(f"{entry}\n")
    return found


def main() -> None:
    bench = make_bench()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, tune in (("streams", tune_streams), ("lora", tune_lora), ("decode", tune_decode)):
        began = time.monotonic()
        results[name] = tune(bench)
        torch.cuda.empty_cache()
        sys.stdout.write(f"{name}: {time.monotonic() - began:.1f} s\n")
        sys.stdout.flush()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
