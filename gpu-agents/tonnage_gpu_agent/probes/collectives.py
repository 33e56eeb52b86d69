"""NCCL collectives over this GPU and its peers: small sizes for latency, large ones for bandwidth, sums checked."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.probes.probe import MIB, Bench

LEAST_SHM_BYTES = 64 * MIB
TIMEOUT_S = 60.0


class Collectives:
    """One process a GPU. The environment is checked first: a small /dev/shm makes healthy GPUs hang or fail."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs another GPU, NCCL, and shared memory."""
        if not bench.peers:
            return "one GPU has no peers"
        import torch.distributed as distributed

        if not distributed.is_nccl_available():
            return "this torch has no NCCL"
        shm = os.statvfs("/dev/shm")
        size = shm.f_frsize * shm.f_blocks
        return None if size > LEAST_SHM_BYTES else f"/dev/shm has {size // MIB} MiB: NCCL needs more than 64"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Every power of two of ranks up to all GPUs."""
        most = 1 + len(bench.peers)
        ranks = 2
        while ranks <= most:
            with bench.helping():
                points = list(self._world(ranks))
            yield from points
            ranks *= 2

    def _world(self, ranks: int) -> Iterator[Measurement]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tonnage_gpu_agent.probes.collective_rank", folder, str(ranks)]
            workers = [
                subprocess.Popen(
                    [*command, str(rank)],
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                for rank in range(ranks)
            ]
            try:
                out, _ = workers[0].communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                yield Measurement(
                    "allreduce",
                    PointStatus.ERROR,
                    detail=f"{ranks} ranks hung for {TIMEOUT_S:.0f} s",
                    params={"ranks": ranks},
                )
                return
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
        if workers[0].returncode != 0 and not out:
            yield Measurement("allreduce", PointStatus.ERROR, detail="NCCL could not start", params={"ranks": ranks})
            return
        for line in out.splitlines():
            yield _point(json.loads(line), ranks)


def _point(found: dict[str, float | str], ranks: int) -> Measurement:
    """Bus bandwidth as nccl-tests defines it, so that it compares with a link's speed whatever the ranks."""
    nbytes, us = float(found["bytes"]), float(found["us"])
    share = {"allreduce": 2 * (ranks - 1) / ranks}.get(str(found["name"]), (ranks - 1) / ranks)
    right = found["wrong"] == 0
    return Measurement(
        str(found["name"]),
        PointStatus.OK if right else PointStatus.WRONG,
        nbytes * share / us / 1e3,
        "GB/s",
        bytes=int(nbytes),
        params={"ranks": ranks, "bytes": nbytes, "us": us},
        detail="" if right else f"{found['wrong']} wrong elements",
    )


probe = Collectives()
