"""The closed loop: N users, each sends its next request a think time after its answer; a conversation has one user,
so that a turn waits for the answer before it.

It finds throughput at a fixed concurrency and hides queueing: users wait with the server, so the load shrinks when it
slows. Users start staggered, or every round would be a burst of N that waits for its own client.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from time import perf_counter

from tonnage_loadgen.exchange import Exchange
from tonnage_loadgen.loop_lag import LoopLag
from tonnage_loadgen.open_loop import LEAD_S, SWEEP_S, Load, MakeStream, WriteRequest, quiet_collector
from tonnage_loadgen.pool import ConnectionPool
from tonnage_loadgen.sse import CompletionStream
from tonnage_loadgen.target import Target, address_of


class ClosedLoop:
    """`users` take the requests 0..len(think_s)-1 in turn; `think_s` is each request's wait after the answer before it.

    `follows` maps a request to the next turn of its conversation, which the same user sends next; nobody else does.
    Intended instants are those at which a user is ready; the start of user n is `stagger_s` x n / users.
    """

    def __init__(
        self,
        target: Target,
        users: int,
        think_s: Sequence[float],
        write: WriteRequest,
        *,
        stagger_s: float = 1.0,
        timeout_s: float = 600.0,
        stream: MakeStream = CompletionStream,
        cancel_after: Sequence[float | None] = (),
        follows: Mapping[int, int] | None = None,
        start_at: float | None = None,
    ) -> None:
        self._target = target
        self._follows = follows or {}
        opening = sorted(set(range(len(think_s))) - set(self._follows.values()))
        self._opening = iter(opening)
        self._users = min(users, len(opening))
        self._think_s = think_s
        self._write = write
        self._stagger_s = stagger_s
        self._timeout_s = timeout_s
        self._stream = stream
        self._cancel_after = cancel_after
        self._start_at = start_at
        self._exchanges: list[Exchange] = []
        self._ended = 0
        self._lag = LoopLag()

    async def run(self) -> Load:
        """Send everything and wait for every end. Raises `TargetError` when the host's name cannot be resolved."""
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._pool = ConnectionPool(self._target, await address_of(self._target), self._on_end)
        with quiet_collector():
            start = perf_counter() + LEAD_S if self._start_at is None else self._start_at
            self._lag.start()
            for user in range(self._users):
                self._next(None, start + self._stagger_s * user / self._users)
            await self._until_all_ended()
        end = perf_counter()
        return Load(tuple(self._exchanges), self._lag, start, end, self._pool.opened, self._pool.resent)

    async def _until_all_ended(self) -> None:
        try:
            while self._think_s and not self._all_ended.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._all_ended.wait(), SWEEP_S)
                self._pool.expire(perf_counter() - self._timeout_s)
        finally:
            self._lag.stop()
            await self._pool.close()

    def _next(self, before: int | None, ready: float | None = None) -> None:
        """Plan what a user sends after the request `before`: the next turn, else the next conversation; at the instant
        `ready`, else a think time from now."""
        index = None if before is None else self._follows.get(before)
        if index is None:
            index = next(self._opening, None)
        if index is None:
            return
        now = perf_counter()
        exchange = Exchange(index, now + self._think_s[index] if ready is None else ready, self._stream())
        self._exchanges.append(exchange)
        self._loop.call_later(max(0.0, exchange.intended - now), self._send, exchange)

    def _send(self, exchange: Exchange) -> None:
        request = self._write(exchange.index)
        exchange.dispatched = perf_counter()
        self._pool.send(exchange, request)
        if self._cancel_after and (quits := self._cancel_after[exchange.index]) is not None:
            self._loop.call_later(quits, self._pool.cancel, exchange)

    def _on_end(self, exchange: Exchange) -> None:
        self._ended += 1
        if self._ended == len(self._think_s):
            self._all_ended.set()
        else:
            self._next(exchange.index)
