"""The node's lease on probing: a locked file, so that no two runs on a node measure each other."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from tonnage_gpu_agent.errors import ProbeRefusedError


@contextlib.contextmanager
def node_lease(path: str) -> Iterator[None]:
    """Held for the block; `ProbeRefusedError` when another process holds it. An empty path is no lease.

    The kernel releases the lock when the holder dies, so a killed agent leaves nothing behind.
    """
    if not path:
        yield
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ProbeRefusedError("lease", f"another probe run holds {path}") from error
        yield
    finally:
        os.close(fd)
