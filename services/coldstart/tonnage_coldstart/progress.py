"""How far a transfer is, for whoever watches: HTTP, SSE, a terminal."""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """A moment of a transfer. Rates and times are None while they cannot be known."""

    phase: str
    """plan, wait, fetch, verify, done."""
    total_bytes: int | None
    done_bytes: int
    resumed_bytes: int
    """Bytes an earlier try had left, counted in `done_bytes`."""
    source_bytes: int
    files_total: int | None
    files_done: int
    retries: int
    seconds: float
    bytes_per_s: float | None
    eta_s: float | None


class Progress:
    """Counters that the workers of one transfer add to."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._started_s = monotonic()
        self._fetch_started_s: float | None = None
        self._phase = "plan"
        self._total_bytes: int | None = None
        self._files_total: int | None = None
        self._resumed_bytes = self._fetched_bytes = self._source_bytes = self._files_done = self._retries = 0

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        with self._lock:
            self._phase = phase
            if phase == "fetch":
                self._fetch_started_s = self._monotonic()

    def expect(self, total_bytes: int, files: int) -> None:
        """Say how much there is."""
        with self._lock:
            self._total_bytes, self._files_total = total_bytes, files

    def resumed(self, size_bytes: int) -> None:
        """Count what an earlier try had left."""
        with self._lock:
            self._resumed_bytes = size_bytes

    def fetched(self, size_bytes: int) -> None:
        """Count bytes that are written."""
        with self._lock:
            self._fetched_bytes += size_bytes

    def received(self, size_bytes: int) -> None:
        """Count bytes that left the source, repeated ones too."""
        with self._lock:
            self._source_bytes += size_bytes

    def finished_file(self) -> None:
        """Count a file that is complete."""
        with self._lock:
            self._files_done += 1

    def retried(self) -> None:
        """Count one more try of a range."""
        with self._lock:
            self._retries += 1

    def standing(self) -> Standing:
        """The moment."""
        with self._lock:
            now = self._monotonic()
            rate = None
            if self._fetch_started_s is not None and now > self._fetch_started_s and self._fetched_bytes:
                rate = self._fetched_bytes / (now - self._fetch_started_s)
            done = self._resumed_bytes + self._fetched_bytes
            left = None if self._total_bytes is None else self._total_bytes - done
            return Standing(
                phase=self._phase,
                total_bytes=self._total_bytes,
                done_bytes=done,
                resumed_bytes=self._resumed_bytes,
                source_bytes=self._source_bytes,
                files_total=self._files_total,
                files_done=self._files_done,
                retries=self._retries,
                seconds=now - self._started_s,
                bytes_per_s=rate,
                eta_s=None if rate is None or left is None else left / rate,
            )
