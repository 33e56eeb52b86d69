"""Timing of device work: CUDA graphs replayed between events, or events around calls; medians; readings under load.

On a host device (a rehearsal) calls are timed by the wall clock, so that every probe's logic runs without a GPU.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

Call = Callable[[], object]
_CUDA: Any = torch.cuda
"""Streams and events have no typed constructors."""
MIN_REPLAY_US = 1000.0
"""A graph replay is unrolled to at least this, so that its start-up gap disappears in it."""
BURST_MS = 10.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Median microseconds a call, the spread (interquartile range over median) and the GPU's state under that load."""

    us: float
    spread: float = 0.0
    samples: int = 0
    context: Mapping[str, Any] = field(default_factory=dict)


class Timer(Protocol):
    """How a probe times; `calls` work on distinct buffers so that together they overflow the L2 cache."""

    def graph(self, calls: Sequence[Call], *, budget_ms: float = 40.0) -> Timing:
        """Microseconds a call when the calls are captured in one graph and replayed."""
        ...

    def burst(self, calls: Sequence[Call], *, bursts: int = 3, pause_s: float = 0.1) -> Timing:
        """As `graph`, in short bursts after idle gaps: the rate at boost clock, before the power limit acts."""
        ...

    def eager(self, calls: Sequence[Call], *, budget_ms: float = 40.0) -> Timing:
        """Microseconds a call when the calls are launched one by one."""
        ...


def summarise(samples_us: Sequence[float], context: Mapping[str, Any]) -> Timing:
    """Median and spread of a call's samples."""
    middle = statistics.median(samples_us)
    spread = 0.0
    if len(samples_us) >= 4:
        low, _, high = statistics.quantiles(samples_us, n=4)
        spread = (high - low) / middle if middle else 0.0
    return Timing(middle, spread, len(samples_us), context)


class CudaTimer:
    """Events on the current CUDA stream. `sample` reads clocks and power while the work runs; `measuring` tells the
    guard that the process allocates nothing meanwhile."""

    def __init__(
        self, sample: Callable[[], Mapping[str, Any]], measuring: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._sample, self._measuring = sample, measuring

    def graph(self, calls: Sequence[Call], *, budget_ms: float = 40.0) -> Timing:
        """Captured and replayed. The calls must not synchronise or allocate outside the graph's pool."""
        captured, count = self._captured(calls)
        timing = self._repeat(captured.replay, count, budget_ms)
        captured.reset()
        return timing

    def burst(self, calls: Sequence[Call], *, bursts: int = 3, pause_s: float = 0.1) -> Timing:
        """The median burst. A chip at its power limit hops between clocks, so long runs of one shape disagree."""
        captured, count = self._captured(calls)
        timings = []
        for _ in range(bursts):
            time.sleep(pause_s)
            timings.append(self._repeat(captured.replay, count, BURST_MS))
        captured.reset()
        return sorted(timings, key=lambda timing: timing.us)[len(timings) // 2]

    def _captured(self, calls: Sequence[Call]) -> tuple[torch.cuda.CUDAGraph, int]:
        """A graph of the calls, unrolled, and how many calls it holds."""
        once = self._warm(calls)
        unroll = max(1, min(64, round(MIN_REPLAY_US / max(once * len(calls), 1.0))))
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(unroll):
                for call in calls:
                    call()
        torch.cuda.synchronize()
        return captured, len(calls) * unroll

    def eager(self, calls: Sequence[Call], *, budget_ms: float = 40.0) -> Timing:
        """Launched one by one; short kernels then show the launch cost."""
        self._warm(calls)

        def body() -> None:
            for call in calls:
                call()

        return self._repeat(body, len(calls), budget_ms)

    def _warm(self, calls: Sequence[Call]) -> float:
        """Run every call twice on a side stream, as capture demands; microseconds a call of the second round."""
        side: torch.cuda.Stream = _CUDA.Stream()
        side.wait_stream(torch.cuda.current_stream())
        begin, end = _event(), _event()
        with torch.cuda.stream(side):
            for call in calls:
                call()
            begin.record()
            for call in calls:
                call()
            end.record()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / len(calls)

    def _repeat(self, body: Callable[[], object], count: int, budget_ms: float) -> Timing:
        begin, end = _event(), _event()
        begin.record()
        body()
        end.record()
        torch.cuda.synchronize()
        rounds = max(5, min(300, int(budget_ms / max(begin.elapsed_time(end), 1e-3))))
        marks = [_event() for _ in range(rounds + 1)]
        with self._measuring():
            marks[0].record()
            for mark in marks[1:]:
                body()
                mark.record()
            context = self._sample()
            torch.cuda.synchronize()
        pairs = itertools.pairwise(marks)
        return summarise([a.elapsed_time(b) * 1e3 / count for a, b in pairs], context)


def _event() -> torch.cuda.Event:
    made: torch.cuda.Event = _CUDA.Event(enable_timing=True)
    return made


class HostTimer:
    """The wall clock around calls on a host device: proves that a probe runs, measures nothing worth keeping."""

    def graph(self, calls: Sequence[Call], *, budget_ms: float = 40.0) -> Timing:
        """As `eager`: a host has no graphs."""
        return self.eager(calls, budget_ms=budget_ms)

    def burst(self, calls: Sequence[Call], *, bursts: int = 3, pause_s: float = 0.1) -> Timing:
        """As `eager`."""
        return self.eager(calls)

    def eager(self, calls: Sequence[Call], *, budget_ms: float = 40.0) -> Timing:
        """One round over the calls."""
        begin = time.perf_counter()
        for call in calls:
            call()
        return Timing((time.perf_counter() - begin) * 1e6 / len(calls), samples=1)
