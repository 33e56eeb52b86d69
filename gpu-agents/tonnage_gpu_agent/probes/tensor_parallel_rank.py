"""One rank of the tensor-parallel step probe: `FOLDER WORLD RANK [host]`; rank 0 prints a JSON line a point.

A Llama-70B-shaped decode step in a CUDA graph, collectives included, checked against float64 on two layers first.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as distributed

from tonnage_gpu_agent.probes.collective_rank import in_graph, join, timed
from tonnage_gpu_agent.probes.llama import DecodeStep, KvPool, LlamaShape, Weights
from tonnage_gpu_agent.probes.llama_reference import reference_logits
from tonnage_gpu_agent.probes.llama_tp import (
    LLAMA_70B,
    TOY_TP,
    OneShotStep,
    TensorParallelStep,
    cut_pool,
    cut_weights,
    shard_shape,
    shard_weights,
)
from tonnage_gpu_agent.probes.probe import GIB, Bench, relative_error
from tonnage_gpu_agent.probes.timing import HostTimer

STEPS: dict[str, type[TensorParallelStep]] = {"nccl": TensorParallelStep, "one_shot": OneShotStep}
BATCHES, CONTEXTS = (1, 8, 32, 64, 128), (1024, 8192)
POOL_BYTES = 24 * GIB
SPARE_BYTES = 6 * GIB


def check(bench: Bench, full_shape: LlamaShape, kind: str, rank: int, tp: int) -> float:
    """Error of the ranks' two-layer step against the whole one in float64; every rank draws the same whole model."""
    small = LlamaShape(
        "small",
        2,
        full_shape.hidden,
        full_shape.heads,
        full_shape.kv_heads,
        full_shape.head_dim,
        full_shape.intermediate,
        1024,
    )
    weights = Weights(bench, small)
    pool = KvPool(bench, small, 64 * 16 * small.kv_bytes)
    whole = DecodeStep(bench, weights, pool, 3, 75)
    step = STEPS[kind](
        bench, cut_weights(bench, weights, tp, rank), cut_pool(pool, bench, tp, rank), 3, 75, rank=rank, tp=tp
    )
    step.ids, step.tables, step.slots, step.positions = whole.ids, whole.tables, whole.slots, whole.positions
    k, v = pool.k.double(), pool.v.double()
    step()
    return relative_error(step.whole, reference_logits(whole, k, v, small.layers))


def distinct_layers(bench: Bench, shape: LlamaShape, tp: int, pool_bytes: int) -> int:
    """Layers that fit beside the cache; all of them where memory allows."""
    if bench.rehearsal:
        return shape.layers
    part = shard_shape(shape, tp)
    vocabulary = 4 * part.vocabulary * part.hidden
    layer = (part.weight_bytes - vocabulary // 2) // part.layers
    return max(2, min(shape.layers, (bench.free_bytes() - pool_bytes - vocabulary - SPARE_BYTES) // layer))


def measure(bench: Bench, shape: LlamaShape, rank: int, tp: int) -> Iterator[dict[str, Any]]:
    """Every way to add up, batch and context."""
    sizes = [(2, 64)] if bench.rehearsal else [(batch, context) for context in CONTEXTS for batch in BATCHES]
    kinds = ["nccl"] if bench.rehearsal else list(STEPS)
    errors: dict[str, float] = {}
    for kind in kinds:
        try:
            errors[kind] = check(bench, shape, kind, rank, tp)
        except (RuntimeError, ImportError, AttributeError) as missing:
            yield {"reduce": kind, "batch": 0, "context": 0, "why": str(missing).splitlines()[0][:200]}
    pool_bytes = 64 * 16 * shard_shape(shape, tp).kv_bytes if bench.rehearsal else POOL_BYTES
    distinct = distinct_layers(bench, shape, tp, pool_bytes)
    weights = shard_weights(bench, shape, tp, distinct)
    pool = KvPool(bench, weights.shape, pool_bytes)
    for kind, error in errors.items():
        for batch, context in sizes:
            step = STEPS[kind](bench, weights, pool, batch, context, rank=rank, tp=tp)
            us = timed(step, True) if bench.rehearsal else timed(in_graph(step, 1), False)
            written = bool(torch.isfinite(step.whole).all())
            yield {
                "reduce": kind,
                "batch": batch,
                "context": context,
                "us": us,
                "error": error if written else None,
                "distinct_layers": distinct,
                "cache_groups": len(step.tables),
                "bytes": step.nbytes(context),
            }
            del step


def main(folder: str, world: int, rank: int, host: bool) -> None:
    """Join, check, measure, leave."""
    device = join(folder, world, rank, host)
    generator = torch.Generator(device).manual_seed(7)
    properties = None if host else torch.cuda.get_device_properties(device)
    bench = Bench(device, HostTimer(), generator, multiprocessors=properties.multi_processor_count if properties else 1)
    for point in measure(bench, TOY_TP if host else LLAMA_70B, rank, world):
        if rank == 0:
            sys.stdout.write(json.dumps(point) + "\n")
            sys.stdout.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "host" in sys.argv[4:])
