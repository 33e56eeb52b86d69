"""XIDs from the kernel log: some never reach the driver's event interface."""

import logging
import os
import select
import stat
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)
RECORD_BYTES = 8192
"""/dev/kmsg gives one record a read, at most this long (the kernel's CONSOLE_EXT_LOG_MAX)."""


class KernelLog:
    """Reads new records of `/dev/kmsg` in a thread and passes each message on; old records are skipped."""

    def __init__(self, path: str, on_line: Callable[[str], object]) -> None:
        self._path, self._on_line = path, on_line
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Begin; false (and one log line) when the log cannot be read, as in a pod without the device."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.info("kernel log is not readable", extra={"path": self._path, "reason": error.strerror})
            return False
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.lseek(fd, 0, os.SEEK_END)
        self._thread = threading.Thread(target=self._loop, args=(fd,), name="kernel-log", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """End the thread within a second."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _loop(self, fd: int) -> None:
        try:
            while not self._stop.is_set():
                ready, _, _ = select.select([fd], [], [], 0.5)
                if ready and not self._read(fd):
                    self._stop.wait(0.5)
        finally:
            os.close(fd)

    def _read(self, fd: int) -> bool:
        """Pass on one record (or, of a plain file, some lines); false when there was none."""
        try:
            record = os.read(fd, RECORD_BYTES)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True  # the ring overwrote what we had not read: go on with the oldest record left
        for line in record.decode(errors="replace").splitlines():
            self._on_line(line.split(";", 1)[-1])
        return bool(record)
