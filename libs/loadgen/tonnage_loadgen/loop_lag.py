"""How late the event loop runs, and how much of that is the generator's own doing rather than the machine's."""

import asyncio
from array import array
from bisect import bisect_right
from time import perf_counter, process_time

INTERVAL_S = 0.02
OWN_SHARE = 0.5
"""Of a delay this process must have computed for this share, for the delay to be its own doing."""


class LoopLag:
    """Samples, every 20 ms, the instant, this process's CPU seconds and how late the sample came."""

    def __init__(self) -> None:
        self.at = array("d")
        self.cpu = array("d")
        self.lag = array("d")
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin, with a first sample now."""
        self._due = perf_counter()
        self._sample()

    def stop(self) -> None:
        """End, with a last sample now."""
        if self._timer is not None:
            self._timer.cancel()
        self._take(perf_counter())

    def cpu_at(self, instant: float) -> float:
        """CPU seconds used by `instant`, linear between samples."""
        place = bisect_right(self.at, instant)
        if place == 0:
            return self.cpu[0]
        if place == len(self.at):
            return self.cpu[-1]
        before, after = self.at[place - 1], self.at[place]
        share = (instant - before) / (after - before) if after > before else 0.0
        return self.cpu[place - 1] + share * (self.cpu[place] - self.cpu[place - 1])

    def own(self, start: float, end: float) -> float:
        """Of the delay from `start` to `end`, the seconds this process computed; 0 when that is not most of it.

        A delay through which the process hardly ran is the machine's: it had other work for the core.
        """
        computed = max(0.0, self.cpu_at(end) - self.cpu_at(start))
        return min(end - start, computed) if computed >= OWN_SHARE * (end - start) else 0.0

    def own_lags(self) -> list[float]:
        """Each sample's lag as far as this process caused it."""
        return [self.own(at - lag, at) if lag > 0 else 0.0 for at, lag in zip(self.at, self.lag, strict=True)]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process between the first and the last sample."""
        return self.cpu[-1] - self.cpu[0] if self.cpu else 0.0

    def _sample(self) -> None:
        now = perf_counter()
        self._take(now)
        self._due = now + INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._sample)

    def _take(self, now: float) -> None:
        self.at.append(now)
        self.cpu.append(process_time())
        self.lag.append(max(0.0, now - self._due))
