"""Listening and stopping."""

import asyncio
import socket

from tonnage_runtime.http_app import BACKLOG
from tonnage_sim.http1.connection import Application, Connection


class Server:
    """Serves an application on one socket."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Accept connections on a listening socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=sock, backlog=BACKLOG)

    async def stop(self, drain_timeout_s: float) -> None:
        """Take no new connections, let requests in progress end for up to `drain_timeout_s`, then cut the rest off."""
        if self._server is not None:
            self._server.close()
        deadline = asyncio.get_running_loop().time() + drain_timeout_s
        while self._connections and asyncio.get_running_loop().time() < deadline:
            for connection in [c for c in self._connections if c.idle]:
                connection.close()
            await asyncio.sleep(0.02)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
        if self._server is not None:
            await self._server.wait_closed()

    def _connection(self) -> Connection:
        return Connection(self._application, self._connections)
