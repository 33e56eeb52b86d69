"""The brake of one endpoint, shared by the threads that read from it."""

import threading
from collections.abc import Callable
from random import Random

from tonnage_coldstart.errors import CancelledError
from tonnage_core.coldstart.brake import Brake, may_start, refused, succeeded
from tonnage_core.coldstart.pace import Pace, taken

LONGEST_WAIT_S = 0.25


class Gate:
    """`enter` before a request, `leave` after it."""

    def __init__(self, ceiling: int, monotonic: Callable[[], float], rng: Random) -> None:
        self._brake = Brake(ceiling, ceiling)
        self._in_flight = 0
        self._monotonic = monotonic
        self._rng = rng
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return self._brake.limit

    def enter(self, stopped: Callable[[], bool]) -> None:
        """Wait for a place. Raises `CancelledError` when `stopped` says so."""
        with self._changed:
            while not stopped():
                now = self._monotonic()
                if may_start(self._brake, self._in_flight, now):
                    self._in_flight += 1
                    return
                pause = self._brake.paused_until_s - now
                self._changed.wait(min(pause, LONGEST_WAIT_S) if pause > 0 else LONGEST_WAIT_S)
        raise CancelledError("stopped")

    def leave(self, *, refusal: bool, retry_after_s: float | None = None, served: bool = True) -> None:
        """Give the place back and tell how it went; a request that failed otherwise moves nothing."""
        with self._changed:
            self._in_flight -= 1
            if refusal:
                self._brake = refused(self._brake, self._monotonic(), self._rng, retry_after_s)
            elif served:
                self._brake = succeeded(self._brake)
            self._changed.notify_all()


class Pacer:
    """The cap on bytes a second that all transfers of a node share; without one nobody waits."""

    def __init__(self, bytes_per_s: float | None, monotonic: Callable[[], float]) -> None:
        self._pace = None if bytes_per_s is None else Pace(bytes_per_s)
        self._monotonic = monotonic
        self._lock = threading.Lock()

    def wait(self, size_bytes: int, pause: Callable[[float], None]) -> None:
        """Before a read of `size_bytes`: `pause` for as long as the cap asks; it may raise to give up."""
        if self._pace is None:
            return
        with self._lock:
            self._pace, seconds = taken(self._pace, size_bytes, self._monotonic())
        if seconds > 0:
            pause(seconds)
