"""One process a GPU for probes over several GPUs: start them, read rank 0's points, end them whatever happens."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from tonnage_gpu_agent.probes.probe import MIB, Bench

LEAST_SHM_BYTES = 64 * MIB


def without_world(bench: Bench) -> str | None:
    """Why no group of ranks can be made here, or None. A small /dev/shm makes healthy GPUs hang or fail."""
    if not bench.peers:
        return "one GPU has no peers"
    import torch.distributed as distributed

    if not distributed.is_nccl_available():
        return "this torch has no NCCL"
    shm = os.statvfs("/dev/shm")
    size = shm.f_frsize * shm.f_blocks
    return None if size > LEAST_SHM_BYTES else f"/dev/shm has {size // MIB} MiB: NCCL needs more than 64"


class WorldError(Exception):
    """The ranks hung or could not start; the text says which. What rank 0 had printed by then is in `lines`."""

    def __init__(self, text: str, lines: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.lines = lines


def rank_points(module: str, ranks: int, timeout_s: float, *options: str) -> Iterator[dict[str, Any]]:
    """Run `python -m module FOLDER RANKS RANK options...` for every rank; the JSON lines that rank 0 prints.

    Raises `WorldError` after the lines that came, when a rank hung or failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", module, folder, str(ranks), str(rank), *options],
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(ranks)
        ]
        hung = False
        try:
            out, _ = workers[0].communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            partial: Any = error.stdout or b""
            out, hung = partial.decode() if isinstance(partial, bytes) else partial, True
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
                if worker.stdout is not None:
                    worker.stdout.close()
    lines = [line for line in out.splitlines() if line.endswith("}")]
    yield from map(json.loads, lines)
    if hung:
        raise WorldError(f"{ranks} ranks hung for {timeout_s:.0f} s", lines)
    if workers[0].returncode != 0:
        raise WorldError("a rank failed" if lines else "the ranks could not start", lines)
