"""The open loop: each request leaves at the instant its schedule names, whatever the server does.

The whole schedule stands before the first request. Nothing here waits for an answer before sending, no cap holds
requests back, and a late generator sends late rather than dropping; the delay is measured. During the load Python's
cyclic garbage collector is frozen: its passes over kept results are the longest stalls of a Python client.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from tonnage_loadgen.exchange import Exchange, Outcome
from tonnage_loadgen.loop_lag import LoopLag
from tonnage_loadgen.pool import ConnectionPool
from tonnage_loadgen.sse import CompletionStream
from tonnage_loadgen.target import Target, address_of

LEAD_S = 0.1
"""From the end of preparation to the schedule's zero."""
SWEEP_S = 0.25
"""How often timeouts are looked for and progress is told."""

TICK_S = 0.001
"""The shortest sleep: libuv's timers are whole milliseconds, and one rounded to zero would spin."""
BURST = 64
"""Requests sent in one go; a longer backlog lets answers be read in between."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    total: int
    sent: int
    done: int
    errors: int
    in_flight: int
    elapsed_s: float


OnProgress = Callable[[Progress], None]
MakeStream = Callable[[], CompletionStream]
"""A reader of one answer."""
WriteRequest = Callable[[int], bytes]
"""The whole HTTP request of the schedule's n-th entry; called once each, just before it is due."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a load left behind: exchanges in the schedule's order; `start` and `end` are `perf_counter` instants."""

    exchanges: tuple[Exchange, ...]
    lag: LoopLag
    start: float
    end: float
    connections_opened: int
    resent: int


class OpenLoop:
    """One load. `schedule` holds seconds from the start, ascending; `timeout_s` runs from dispatch to the last byte.

    `cancel_after` has, for each request or for none, the seconds from dispatch after which the client goes away (None:
    it stays). `start_at` is the `perf_counter` instant of the schedule's zero, for several processes with one start.
    """

    def __init__(
        self,
        target: Target,
        schedule: Sequence[float],
        write: WriteRequest,
        *,
        timeout_s: float = 600.0,
        on_progress: OnProgress | None = None,
        stream: MakeStream = CompletionStream,
        cancel_after: Sequence[float | None] = (),
        start_at: float | None = None,
    ) -> None:
        self._target = target
        self._schedule = schedule
        self._write = write
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._stream = stream
        self._cancel_after = cancel_after
        self._start_at = start_at
        self._lag = LoopLag()
        self._exchanges: list[Exchange] = []
        self._next = 0
        self._ended = 0
        self._errors = 0
        self._start = 0.0
        self._prepared = b""

    async def run(self) -> Load:
        """Send everything and wait for every end. Raises `TargetError` when the host's name cannot be resolved."""
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._pool = ConnectionPool(self._target, await address_of(self._target), self._on_end)
        with quiet_collector():
            self._start = perf_counter() + LEAD_S if self._start_at is None else self._start_at
            self._exchanges = [Exchange(n, self._start + at, self._stream()) for n, at in enumerate(self._schedule)]
            if self._exchanges:
                await self._send_all()
        end = perf_counter()
        return Load(tuple(self._exchanges), self._lag, self._start, end, self._pool.opened, self._pool.resent)

    async def _send_all(self) -> None:
        self._prepared = self._write(0)
        self._lag.start()
        sweeping = asyncio.create_task(self._sweep())
        self._pump()
        try:
            await self._all_ended.wait()
        finally:
            self._lag.stop()
            sweeping.cancel()
            await self._pool.close()
        self._tell()

    def _pump(self) -> None:
        """Send what is due, then sleep until the next is; the next request's bytes are made meanwhile."""
        exchanges, last = self._exchanges, self._next + BURST
        while self._next < len(exchanges):
            exchange = exchanges[self._next]
            now = perf_counter()
            if exchange.intended > now:
                self._loop.call_later(max(TICK_S, exchange.intended - now), self._pump)
                return
            if self._next == last:
                self._loop.call_soon(self._pump)
                return
            exchange.dispatched = now
            request, self._next = self._prepared, self._next + 1
            self._pool.send(exchange, request)
            if self._cancel_after and (quits := self._cancel_after[exchange.index]) is not None:
                self._loop.call_later(quits, self._pool.cancel, exchange)
            if self._next < len(exchanges):
                self._prepared = self._write(self._next)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._pool.expire(perf_counter() - self._timeout_s)
            self._tell()

    def _on_end(self, exchange: Exchange) -> None:
        self._ended += 1
        self._errors += exchange.outcome not in (Outcome.OK, Outcome.CANCELLED)
        if self._ended == len(self._exchanges):
            self._all_ended.set()

    def _tell(self) -> None:
        if self._on_progress is not None:
            elapsed = perf_counter() - self._start
            flying = self._pool.in_flight
            self._on_progress(Progress(len(self._exchanges), self._next, self._ended, self._errors, flying, elapsed))


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep Python's cyclic garbage collector out of a load."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
