"""File locks between threads and processes of one node; the kernel releases a dead owner's."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

from tonnage_coldstart.errors import CancelledError, cache_error

POLL_S = 0.05


@contextlib.contextmanager
def file_lock(
    path: Path, *, shared: bool = False, stop: Event, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the lock on `path`, waiting for it; `on_wait` is called once if another holds it.

    Raises `CancelledError` when `stop` is set while waiting, `CacheError` when the file system has no locks.
    """
    descriptor = _open(path)
    try:
        waited = False
        while not _try(descriptor, shared=shared, path=path):
            if not waited:
                on_wait()
                waited = True
            if stop.wait(POLL_S):
                raise CancelledError(f"{path.name}: stopped while another transfer of the same snapshot ran")
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the exclusive lock if nobody has it; yields whether it is held."""
    descriptor = _open(path)
    try:
        yield _try(descriptor, shared=False, path=path)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise cache_error(error, path) from error


def _try(descriptor: int, *, shared: bool, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise cache_error(error, path) from error
    return True
