"""A Llama-70B-shaped decode step split over all GPUs of the node, in a CUDA graph with its collectives."""

from collections.abc import Iterator
from typing import Any

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.probes.decode_step import LIMIT
from tonnage_gpu_agent.probes.probe import GIB, Bench
from tonnage_gpu_agent.probes.rank_world import WorldError, rank_points, without_world

NAME = "tensor_parallel_step"
RANK_MODULE = "tonnage_gpu_agent.probes.tensor_parallel_rank"
TIMEOUT_S = 240.0
LEAST_BYTES = 40 * GIB


class TensorParallel:
    """The largest power of two of ranks, up to the eight key-value heads."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs another GPU, and room for cache and some layers."""
        missing = without_world(bench)
        if missing is None and bench.free_bytes() < LEAST_BYTES:
            return f"needs {LEAST_BYTES // GIB} GiB of free device memory"
        return missing

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Batch and context, by way of adding up."""
        ranks = 1 << ((1 + len(bench.peers)).bit_length() - 1)
        with bench.helping():
            points = list(self._world(min(ranks, 8)))
        yield from points

    def _world(self, ranks: int) -> Iterator[Measurement]:
        try:
            for found in rank_points(RANK_MODULE, ranks, TIMEOUT_S):
                yield _point(found, ranks)
        except WorldError as error:
            yield Measurement(NAME, PointStatus.ERROR, detail=str(error), params={"ranks": ranks})


def _point(found: dict[str, Any], ranks: int) -> Measurement:
    names = ("reduce", "batch", "context", "distinct_layers", "cache_groups", "us")
    params: dict[str, float | str] = {"model": "llama-70b", "ranks": ranks}
    params |= {name: found[name] for name in names if name in found}
    if "why" in found:
        return Measurement(NAME, PointStatus.UNSUPPORTED, detail=str(found["why"]), params=params)
    error = found["error"]
    right = error is not None and error <= LIMIT
    return Measurement(
        NAME,
        PointStatus.OK if right else PointStatus.WRONG,
        float(found["us"]),
        "us",
        bytes=int(found["bytes"]),
        relative_error=error,
        detail="" if right else f"relative error {error} is over {LIMIT:g}",
        params=params,
    )


probe = TensorParallel()
