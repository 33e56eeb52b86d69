"""Streams with tokens to send: first and last tokens go out with their step, the ones between may wait a little.

A write to a socket costs more than all else that a token needs, here and in whoever reads it. At a high time scale
steps follow each other faster than anybody can look, so tokens of a few steps share a write.
"""

from typing import Protocol


class Flushable(Protocol):
    """A stream that holds frames back."""

    def flush(self) -> None:
        """Write them."""
        ...


class Outbox:
    """Which streams hold frames back."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s`: longest wait, wall seconds; 0: every step is written at once."""
        self.interval_s = interval_s
        self._waiting: dict[Flushable, None] = {}
        self._urgent: dict[Flushable, None] = {}
        self._flushed_s = float("-inf")

    def add(self, stream: Flushable, *, urgent: bool) -> None:
        """Note that `stream` holds something back; `urgent`: until the end of this step at most."""
        (self._urgent if urgent else self._waiting)[stream] = None

    def send_urgent(self) -> None:
        """Write what cannot wait."""
        if self._urgent:
            urgent, self._urgent = self._urgent, {}
            for stream in urgent:
                self._waiting.pop(stream, None)
                stream.flush()

    def send(self, now_s: float, next_s: float) -> None:
        """Write everything if `next_s`, when more will come, is too far off. Both are wall seconds."""
        if self._waiting and next_s - self._flushed_s >= self.interval_s:
            waiting, self._waiting = self._waiting, {}
            self._flushed_s = now_s
            for stream in waiting:
                stream.flush()
