"""Clocks as a port, so that shells pass `now` to pure decisions and tests own time."""

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for intervals, wall seconds for stamps."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump."""
        return time.time()


class ScaledClock:
    """A clock whose monotonic seconds pass `scale` (> 0) times as fast: for watchers of simulated engines."""

    def __init__(self, clock: Clock, scale: float) -> None:
        self._clock = clock
        self._scale = scale

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin, times the scale; never goes back."""
        return self._clock.monotonic() * self._scale

    def wall(self) -> float:
        """Seconds since the Unix epoch, not scaled: stamps are the machine's."""
        return self._clock.wall()


class ManualClock:
    """A clock that moves only when told to: the embedded adapter for tests and replays."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def monotonic(self) -> float:
        """The set time, in seconds."""
        return self._now_s

    def wall(self) -> float:
        """The set time, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (>= 0)."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._now_s += seconds
