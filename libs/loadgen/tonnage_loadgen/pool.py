"""Connections kept alive between requests; a new one whenever none is idle, so that no request waits for another."""

import asyncio
import errno
import ssl
from collections.abc import Callable
from time import perf_counter

from tonnage_loadgen.connection import Connection
from tonnage_loadgen.exchange import Exchange, Outcome
from tonnage_loadgen.target import Target

IDLE_LIMIT_S = 2.0
"""An idle connection older than this is not reused: servers drop theirs after 5 s or more."""
_OUT_OF_SOCKETS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS}
Done = Callable[[Exchange], None]


class ConnectionPool:
    """Sends exchanges to one address; `done` is called when one has ended for good."""

    def __init__(self, target: Target, address: str, done: Done) -> None:
        self._target = target
        self._address = address
        self._done = done
        self._ssl: ssl.SSLContext | None = target.ssl_context()
        self._idle: list[Connection] = []
        self._flying: dict[Exchange, tuple[Connection, bytes]] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self.opened = 0
        self.resent = 0

    @property
    def in_flight(self) -> int:
        """Exchanges under way."""
        return len(self._flying)

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Write `request` on an idle connection, or on a new one."""
        connection = self._take_idle()
        fresh = connection is None
        if connection is None:
            connection = Connection(self._finished)
        self._flying[exchange] = (connection, request)
        connection.start(exchange, request)
        if fresh:
            self._open(connection)

    def expire(self, before: float) -> None:
        """End every exchange dispatched before the instant `before` as timed out."""
        overdue = []
        for exchange, (connection, _) in self._flying.items():
            if exchange.dispatched is not None and exchange.dispatched >= before:
                break
            overdue.append(connection)
        for connection in overdue:
            connection.expire()

    def cancel(self, exchange: Exchange) -> None:
        """Give the exchange up, unless it has ended: its connection is dropped, as a client's is that goes away."""
        flying = self._flying.get(exchange)
        if flying is not None:
            flying[0].abort(Outcome.CANCELLED)

    async def close(self) -> None:
        """Drop every connection."""
        for connection in [*self._idle, *(each for each, _ in self._flying.values())]:
            connection.close()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _take_idle(self) -> Connection | None:
        oldest = perf_counter() - IDLE_LIMIT_S
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    def _open(self, connection: Connection) -> None:
        self.opened += 1
        task = asyncio.ensure_future(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        server_name = self._target.host if self._ssl is not None else None
        try:
            await loop.create_connection(
                lambda: connection, self._address, self._target.port, ssl=self._ssl, server_hostname=server_name
            )
        except ConnectionRefusedError:
            connection.abort(Outcome.REFUSED)
        except OSError as error:
            connection.abort(Outcome.CLIENT_LIMIT if error.errno in _OUT_OF_SOCKETS else Outcome.UNREACHABLE)

    def _finished(self, connection: Connection, exchange: Exchange) -> None:
        _, request = self._flying.pop(exchange)
        if exchange.outcome == Outcome.RESET and exchange.reused:
            # The server closed an idle connection as it was being reused: nothing was answered, so ask again once.
            self.resent += 1
            again = Connection(self._finished)
            self._flying[exchange] = (again, request)
            again.start(exchange, request)
            self._open(again)
            return
        if connection.reusable:
            self._idle.append(connection)
        self._done(exchange)
