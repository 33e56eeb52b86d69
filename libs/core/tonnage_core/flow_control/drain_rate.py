"""How fast a queue drains, for a Retry-After that is true."""

import math
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class DrainRate:
    """Tokens leaving a second, as an exponential mean over `window_s`."""

    window_s: float = 10.0
    rate: float = 0.0
    _at: float | None = None
    _pending: float = 0.0

    def left(self, tokens: float, now: float) -> None:
        """`tokens` of work left the queue, or were dispatched at once."""
        if self._at is None:
            self._at = now
        self._pending += tokens
        elapsed = now - self._at
        if elapsed < 0.1:
            return
        keep = math.exp(-elapsed / self.window_s)
        self.rate = keep * self.rate + (1 - keep) * self._pending / elapsed
        self._at, self._pending = now, 0.0

    def retry_after_s(self, waiting_tokens: float, longest_s: float) -> int:
        """Whole seconds until `waiting_tokens` are gone at the present rate: at least 1, at most `longest_s`."""
        if self.rate <= 0:
            return max(1, math.ceil(longest_s))
        return max(1, min(math.ceil(longest_s), math.ceil(waiting_tokens / self.rate)))
