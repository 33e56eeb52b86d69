"""A circuit breaker: faults in a row open it, a wait half-opens it, one probe request decides.

4xx is success (the engine answered). 429 and 503 are back-pressure: neutral here. A half-open probe that ends without a
verdict gives its place back, and one that never ends loses it after the wait, so the breaker cannot stick. What was
under way when it opened and fails too is no probe: it does not make the wait longer.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class BreakerState(StrEnum):
    """`closed` passes, `open` refuses, `half_open` passes one request at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True, eq=False)
class Breaker:
    """One endpoint's state. `faults` in a row open it for `wait_s`, doubled at each failed probe up to `max_wait_s`."""

    faults: int = 5
    wait_s: float = 1.0
    max_wait_s: float = 30.0
    _in_row: int = 0
    _opened_at: float | None = None
    _current_wait_s: float = 0.0
    _probe_at: float | None = None
    _probe: Any = None
    """Who sent it; an `object`, which mypyc finds in no dataclass."""

    @property
    def closed(self) -> bool:
        """Whether requests pass freely."""
        return self._opened_at is None

    @property
    def troubled(self) -> bool:
        """Whether a success would change anything."""
        return self._in_row > 0 or self._opened_at is not None

    @property
    def name(self) -> str:
        """`closed`, or `open` whether or not its wait is over."""
        return BreakerState.CLOSED if self._opened_at is None else BreakerState.OPEN

    def state(self, now: float) -> BreakerState:
        """The state at `now`."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._opened_at + self._current_wait_s else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a request may be sent. Does not claim the half-open place; `sent` does."""
        state = self.state(now)
        if state is BreakerState.HALF_OPEN:
            return self._probe_at is None or now >= self._probe_at + self._current_wait_s
        return state is BreakerState.CLOSED

    def sent(self, now: float, by: object = None) -> None:
        """The request `by` goes out; in the half-open state it is the probe."""
        if self._opened_at is not None:
            self._probe_at, self._probe = now, by

    def success(self) -> None:
        """An answer below 500 came: closed again."""
        self._in_row = 0
        self._opened_at = self._probe_at = self._probe = None

    def neutral(self, by: object = None) -> None:
        """The request `by` ended without a verdict: back-pressure, or the client left. The probe's place is free if it
        was that."""
        if self._probe is by:
            self._probe_at = self._probe = None

    def fault(self, now: float) -> None:
        """A fault: connection refused or cut, timeout, 5xx other than 503."""
        self._in_row += 1
        if self._opened_at is not None:
            if self.state(now) is BreakerState.OPEN:
                return
            self._current_wait_s = min(self.max_wait_s, 2 * self._current_wait_s)
        elif self._in_row >= self.faults:
            self._current_wait_s = self.wait_s
        else:
            return
        self._opened_at, self._probe_at, self._probe = now, None, None

    def pardon(self) -> None:
        """A fault was the request's own: it failed alike on another endpoint, or there is none. A breaker that other
        faults opened waits no longer: the endpoint answers again."""
        self._in_row = max(0, self._in_row - 1)
        if self._in_row < self.faults:
            self._opened_at = self._probe_at = self._probe = None
        elif self._opened_at is not None:
            self._opened_at -= self._current_wait_s
            self._current_wait_s = max(self.wait_s, self._current_wait_s / 2)
