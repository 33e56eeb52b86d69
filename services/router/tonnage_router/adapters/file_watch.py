"""A file read again when it changes: endpoints, tenants."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tonnage_core.errors import TonnageError

log = logging.getLogger(__name__)
INTERVAL_S = 1.0
Stamp = tuple[int, int, int] | None
T = TypeVar("T")


def stamp(path: Path) -> Stamp:
    """What changes when the file does: inode, size, mtime in ns (a ConfigMap swaps the inode); None: not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class FileWatch(Generic[T]):
    """After each change calls `read` in a thread, since ten thousand tenants take a second, and `take` with the result.
    A file that cannot be used is logged once and the last good state stays."""

    def __init__(
        self, path: Path, read: Callable[[Path], T], take: Callable[[T], None], interval_s: float = INTERVAL_S
    ) -> None:
        self._path = path
        self._read = read
        self._take = take
        self._interval_s = interval_s
        self._seen = stamp(path)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check()

    async def check(self) -> bool:
        """Look once; True when a change was taken in."""
        now = stamp(self._path)
        if now is None or now == self._seen:
            return False
        self._seen = now
        try:
            self._take(await asyncio.to_thread(self._read, self._path))
        except TonnageError as error:
            log.warning("file not taken in; the last good one stays", extra={"problem": str(error)})
            return False
        log.info("file taken in", extra={"path": str(self._path)})
        return True
