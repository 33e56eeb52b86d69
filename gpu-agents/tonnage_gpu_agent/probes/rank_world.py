"""One process a GPU for probes over several GPUs: start them, read rank 0's points, end them whatever happens."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tonnage_gpu_agent.probes.probe import MIB, Bench

LEAST_SHM_BYTES = 64 * MIB
POLL_S = 0.05


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

    Raises `WorldError` after the lines that came, when a rank hung or failed: one that fails ends all, since the others
    would wait for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        world = _World(module, ranks, folder, options)
        try:
            why = world.wait(timeout_s)
        finally:
            world.end()
        out = world.said("out", 0)
    lines = [line for line in out.splitlines() if line.endswith("}")]
    yield from map(json.loads, lines)
    if why is not None:
        raise WorldError(why, lines)


class _World:
    """The ranks' processes. What they say goes to files: a pipe that nobody reads would block them."""

    def __init__(self, module: str, ranks: int, folder: str, options: Sequence[str]) -> None:
        self._folder = Path(folder)
        self._workers: list[subprocess.Popen[bytes]] = []
        for rank in range(ranks):
            with open(self._file("out", rank), "wb") as out, open(self._file("err", rank), "wb") as err:
                command = [sys.executable, "-m", module, folder, str(ranks), str(rank), *options]
                self._workers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err))

    def _file(self, kind: str, rank: int) -> Path:
        return self._folder / f"{kind}-{rank}"

    def said(self, kind: str, rank: int) -> str:
        """What a rank has written so far."""
        return self._file(kind, rank).read_text(errors="replace")

    def wait(self, timeout_s: float) -> str | None:
        """None when every rank has ended well, else why not."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            codes = [worker.poll() for worker in self._workers]
            failed = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
            if failed:
                return self._failure(failed[0], codes[failed[0]])
            if codes[0] == 0:  # it prints last: whatever the others still do is their leaving
                return None
            time.sleep(POLL_S)
        return f"{len(self._workers)} ranks hung for {timeout_s:.0f} s"

    def _failure(self, rank: int, code: int | None) -> str:
        lines = [line for line in self.said("err", rank).splitlines() if line.strip()]
        last = lines[-1].strip()[:200] if lines else f"exit code {code}"
        what = "failed" if self.said("out", 0) else "could not start"
        return f"rank {rank} of {len(self._workers)} {what}: {last}"

    def end(self) -> None:
        """Kill what still runs."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
