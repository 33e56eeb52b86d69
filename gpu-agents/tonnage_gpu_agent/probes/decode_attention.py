"""Split-KV decode attention over a paged cache, Llama-8B heads: the bytes of the cache it reads per second."""

from collections.abc import Iterator
from functools import partial

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.kernels.paged_decode import PagedDecode, attention_reference, plan_decode
from tonnage_gpu_agent.probes.probe import GIB, Bench, bandwidth, judged, relative_error

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
Sizes = tuple[tuple[int, int], ...]
LARGE: Sizes = ((1, 32768), (8, 32768), (32, 32768), (1, 131072))
SIZES: Sizes = ((1, 1024), (8, 1024), (64, 1024), (256, 1024), (8, 4096), (32, 4096), (64, 4096), (256, 4096), *LARGE)
"""Batch and context: 4 MiB to 4 GiB of cache."""
QUICK_SIZES: Sizes = ((8, 4096), (1, 32768), (8, 32768))
TOKEN_BYTES = 2 * KV_HEADS * DIM * 2
"""K and V of one token of one layer in bf16."""


class DecodeAttention:
    """Pages in random order; tables rotate over disjoint pages so that no page is still in the L2 cache."""

    def unsupported(self, bench: Bench) -> str | None:
        """bf16 matrix units."""
        if not bench.rehearsal and torch.cuda.get_device_capability(bench.device) < (8, 0):
            return "needs compute capability 8.0"
        return None

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Batches and contexts from 4 MiB to 4 GiB of cache."""
        sizes: Sizes = ((2, 64),) if bench.rehearsal else QUICK_SIZES if bench.quick else SIZES
        largest = max(b * c for b, c in sizes) * TOKEN_BYTES
        if bench.free_bytes() < largest + 2 * GIB and not bench.rehearsal:
            sizes = tuple(s for s in sizes if s[0] * s[1] * TOKEN_BYTES + 2 * GIB < bench.free_bytes())
        tokens = max(bench.copies(b * c * TOKEN_BYTES) * b * c for b, c in sizes)
        pages = -(-tokens // PAGE)
        k, v = (bench.normal(pages, KV_HEADS, PAGE, DIM, dtype=bench.half) for _ in range(2))
        order = torch.randperm(pages, device=bench.device, generator=bench.generator).int()
        for batch, context in sizes:
            yield self._point(bench, batch, context, k, v, order)

    def _point(
        self, bench: Bench, batch: int, context: int, k: torch.Tensor, v: torch.Tensor, order: torch.Tensor
    ) -> Measurement:
        blocks = -(-context // PAGE)
        each = batch * blocks
        copies = max(1, min(bench.copies(batch * context * TOKEN_BYTES), len(order) // each))
        tables = [order[i * each : (i + 1) * each].view(batch, blocks) for i in range(copies)]
        lengths = torch.full((batch,), context, dtype=torch.int32, device=bench.device)
        q = bench.normal(batch, 1, HEADS, DIM, dtype=bench.half)
        out = torch.full_like(q, torch.nan)
        plan = plan_decode(batch, KV_HEADS, context, bench.multiprocessors)
        kernel = PagedDecode.make(plan, batch, KV_HEADS, HEADS // KV_HEADS, DIM, bench.device)
        kernel(q, k, v, tables[0], lengths, out)
        few = min(batch, 2)
        error = relative_error(out[:few], attention_reference(q[:few], k, v, tables[0][:few], lengths[:few]))
        error = error if bool(torch.isfinite(out).all()) else float("inf")
        timing = bench.timer.graph([partial(kernel, q, k, v, t, lengths, out) for t in tables], budget_ms=30)
        nbytes = batch * context * TOKEN_BYTES + 2 * q.numel() * 2
        point = bandwidth("decode_attention", nbytes, timing, batch=batch, context=context, splits=plan.splits)
        return judged(point, error, 1e-2)


probe = DecodeAttention()
