"""NCCL collectives over this GPU and its peers: small sizes for latency, large ones for bandwidth, sums checked."""

from collections.abc import Iterator
from typing import Any

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.probes.probe import Bench
from tonnage_gpu_agent.probes.rank_world import WorldError, rank_points, without_world

TIMEOUT_S = 120.0
RANK_MODULE = "tonnage_gpu_agent.probes.collective_rank"


class Collectives:
    """One process a GPU, 1 KiB to 1 GiB, launched one by one and in a CUDA graph."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs another GPU, NCCL, and shared memory."""
        return without_world(bench)

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Every number of ranks from two to all GPUs."""
        for ranks in range(2, 2 + len(bench.peers)):
            with bench.helping():
                points = list(self._world(ranks))
            yield from points

    def _world(self, ranks: int) -> Iterator[Measurement]:
        try:
            for found in rank_points(RANK_MODULE, ranks, TIMEOUT_S):
                yield _point(found, ranks)
        except WorldError as error:
            yield Measurement("allreduce", PointStatus.ERROR, detail=str(error), params={"ranks": ranks})


def _point(found: dict[str, Any], ranks: int) -> Measurement:
    """Bus bandwidth as nccl-tests defines it, so that it compares with a link's speed whatever the ranks."""
    name, nbytes = str(found["name"]), float(found["bytes"])
    params: dict[str, float | str] = {"ranks": ranks, "bytes": nbytes, "mode": str(found["mode"])}
    if "why" in found:
        return Measurement(name, PointStatus.UNSUPPORTED, detail=str(found["why"]), params=params)
    us, wrong = float(found["us"]), int(found["wrong"])
    share = 2 * (ranks - 1) / ranks if name.startswith("allreduce") else (ranks - 1) / ranks
    return Measurement(
        name,
        PointStatus.WRONG if wrong else PointStatus.OK,
        nbytes * (1.0 if name == "sendrecv" else share) / us / 1e3,
        "GB/s",
        bytes=int(nbytes),
        params={**params, "us": us},
        detail=f"{wrong} wrong elements" if wrong else "",
    )


probe = Collectives()
