"""How fast a queue drains, for a Retry-After that is true."""

import math

SHORTEST_S = 0.1
"""Departures are counted together for so long."""


class DrainRate:
    """Tokens leaving a second, as an exponential mean over `window_s` of the time in which something waited: what
    passes an empty queue shows what is asked for, not what can be done. 0: not known yet."""

    def __init__(self, window_s: float = 10.0) -> None:
        self.window_s = window_s
        self.rate = 0.0
        self._weight = 0.0
        self._since: float | None = None
        self._pending = 0.0

    def begin(self, now: float) -> None:
        """Something waits from `now` on."""
        self._since = now
        self._pending = 0.0

    def left(self, tokens: float, now: float) -> None:
        """`tokens` of work left the queue."""
        if self._since is None:
            return
        self._pending += tokens
        elapsed = now - self._since
        if elapsed < SHORTEST_S:
            return
        keep = math.exp(-elapsed / self.window_s)
        old, new = keep * self._weight, 1 - keep
        self._weight = old + new  # below 1 at first: the mean is of what was seen, not of zeros before
        self.rate = (old * self.rate + new * self._pending / elapsed) / self._weight
        self._since, self._pending = now, 0.0

    def retry_after_s(self, waiting_tokens: float, longest_s: float) -> int:
        """Whole seconds until `waiting_tokens` are gone at the present rate: at least 1, at most `longest_s`."""
        if self.rate <= 0:
            return max(1, math.ceil(longest_s))
        return max(1, min(math.ceil(longest_s), math.ceil(waiting_tokens / self.rate)))
