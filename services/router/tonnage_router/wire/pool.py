"""Kept-alive connections to one engine, last used first."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from tonnage_router.wire.peer import refused_peer
from tonnage_router.wire.upstream import UpstreamConnection

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange


class UpstreamPool:
    """Connections of one endpoint. Idle ones are closed after `idle_s`, sooner than an engine would close them."""

    def __init__(self, host: str, port: int, *, connect_timeout_s: float, idle_s: float) -> None:
        self.host = host
        self.port = port
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: list[UpstreamConnection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False

    def take(self) -> UpstreamConnection | None:
        """An idle connection that is still open as far as known."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    def put(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose answer is complete."""
        if self._closed or connection.transport.is_closing():
            connection.transport.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is gone."""
        if connection.exchange is None and connection in self._idle:
            self._idle.remove(connection)

    def connect(self, exchange: "Exchange") -> None:
        """Open a connection for `exchange`, which hears `connected` or `connect_failed`."""
        task = asyncio.get_running_loop().create_task(self._connect(exchange, exchange.attempt))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, exchange: "Exchange", attempt: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = UpstreamConnection(self)
                made = cast("Callable[[], asyncio.Protocol]", lambda: connection)
                await loop.create_connection(made, self.host, self.port)
            if (why := refused_peer(connection.transport)) is not None:
                connection.transport.abort()
                raise OSError(why)
        except (OSError, TimeoutError):
            if exchange.attempt == attempt:
                exchange.connect_failed()
            return
        if exchange.attempt == attempt:
            exchange.connected(connection)
        else:  # the client left, or another endpoint took over
            self.put(connection)

    def sweep(self, now: float) -> None:
        """Close connections idle for too long; `now` is monotonic seconds."""
        limit = now - self._idle_s
        while self._idle and self._idle[0].idle_since < limit:
            self._idle.pop(0).transport.close()

    def close(self) -> None:
        """The endpoint left: close idle connections; busy ones close after their answer."""
        self._closed = True
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()

    @property
    def idle(self) -> int:
        """Idle connections."""
        return len(self._idle)
