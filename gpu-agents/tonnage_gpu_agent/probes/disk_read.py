"""A file into host memory, past the page cache and from it: the first hop of a cold start."""

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.probes.probe import GIB, MIB, Bench

CHUNK = 8 * MIB


class DiskRead:
    """One thread, chunks of 8 MiB into a page-aligned buffer; O_DIRECT where the file system has it."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs room for the file."""
        folder = os.statvfs(bench.scratch_dir or tempfile.gettempdir())
        return None if folder.f_bavail * folder.f_frsize > 4 * GIB or bench.rehearsal else "needs 4 GiB of disk"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """`disk_read` and `page_cache_read`."""
        size = bench.sized(GIB, CHUNK)
        with tempfile.NamedTemporaryFile(dir=bench.scratch_dir or None) as file:
            block = os.urandom(CHUNK)
            for _ in range(size // CHUNK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            yield _read("disk_read", file.name, size, block, direct=True)
            for name in ("warm", "page_cache_read"):
                point = _read(name, file.name, size, block, direct=False)
            yield point


def _read(name: str, path: str, size: int, want: bytes, *, direct: bool) -> Measurement:
    fd = -1
    if direct:
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    used_direct = fd >= 0
    fd = fd if used_direct else os.open(path, os.O_RDONLY)
    with mmap.mmap(-1, CHUNK) as buffer:
        buffer.write(b"\xff" * CHUNK)
        began = time.perf_counter()
        got = 0
        while got < size and (read := os.preadv(fd, [buffer], got)):
            got += read
        took = time.perf_counter() - began
        right = got == size and buffer[:] == want
    os.close(fd)
    return Measurement(
        name,
        PointStatus.OK if right else PointStatus.WRONG,
        size / took / 1e9,
        "GB/s",
        bytes=size,
        params={"bytes": size, "us": took * 1e6, "direct": int(used_direct)},
        detail="" if right else f"read {got} of {size} bytes, or other bytes",
    )


probe = DiskRead()
