"""A Llama-8B-shaped decode step in one CUDA graph, over batch and context."""

from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.llama import LLAMA_8B, TOY, DecodeStep, KvPool, LlamaShape, Weights
from tonnage_gpu_agent.probes.llama_reference import reference_logits
from tonnage_gpu_agent.probes.probe import GIB, Bench, duration, judged, relative_error, without

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (1024, 4096, 16384, 32768)
QUICK = ((1, 1024), (32, 4096))
POOL_BYTES = 48 * GIB
MODEL_BYTES = 18 * GIB
LIMIT = 3e-2
"""bf16 rounding through two layers and a head stays under this; a wrong kernel is far above."""


def shape_for(bench: Bench) -> LlamaShape:
    """Llama-8B on a GPU, a toy in a rehearsal."""
    return TOY if bench.rehearsal else LLAMA_8B


def pool_bytes(bench: Bench, shape: LlamaShape) -> int:
    """Bytes of the cache pool: 48 GiB, or what the device has left."""
    if bench.rehearsal:
        return 64 * 16 * shape.kv_bytes
    return max(GIB, min(POOL_BYTES, bench.free_bytes() - 4 * GIB))


def step_error(bench: Bench, q_tokens: int = 1) -> float:
    """Error of a two-layer step against float64, on a small vocabulary so that the reference is quick."""
    full = shape_for(bench)
    small = LlamaShape("small", 2, full.hidden, full.heads, full.kv_heads, full.head_dim, full.intermediate, 1024)
    weights, batch, context = Weights(bench, small), 3, 75
    pool = KvPool(bench, small, 64 * 16 * small.kv_bytes)
    step = DecodeStep(bench, weights, pool, batch, context, q_tokens)
    k, v = pool.k.double(), pool.v.double()
    step()
    return relative_error(step.logits, reference_logits(step, k, v, small.layers))


class DecodeStepProbe:
    """Weights and cache are real sizes and random; the time is the whole step's, sampling included."""

    def unsupported(self, bench: Bench) -> str | None:
        """16 GiB of weights and some cache, bf16 matrix units."""
        if bench.rehearsal:
            return None
        if torch.cuda.get_device_capability(bench.device) < (8, 0):
            return "needs compute capability 8.0"
        return None if bench.free_bytes() > MODEL_BYTES + 6 * GIB else "needs 24 GiB of free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Batch 1 to 256, context 1k to 32k."""
        error = step_error(bench)
        shape = shape_for(bench)
        weights = Weights(bench, shape)
        pool = KvPool(bench, shape, pool_bytes(bench, shape))
        sizes = (
            ((2, 64),)
            if bench.rehearsal
            else QUICK
            if bench.quick
            else [(batch, context) for context in CONTEXTS for batch in BATCHES]
        )
        for batch, context in sizes:
            groups = pool.groups(batch, context)
            if groups == 0:
                yield without("decode_step", "one layer's cache does not fit", batch=batch, context=context)
                continue
            step = DecodeStep(bench, weights, pool, batch, context)
            timing = bench.timer.graph([step], budget_ms=60)
            point = duration(
                "decode_step",
                timing,
                flops=step.flops(context),
                nbytes=step.nbytes(context),
                model=shape.name,
                batch=batch,
                context=context,
                cache_groups=groups,
            )
            written = bool((step.next_ids >= 0).all()) and bool(torch.isfinite(step.logits).all())
            yield judged(point, error if written else float("inf"), LIMIT)


probe = DecodeStepProbe()
