"""The floor of a relay on this event loop: python bare_relay.py PORT BACKEND_URL ...

Engines in turn, bytes passed on as they come, and nothing else: no routing, tenants, limits, retries or metrics. What
the router takes beyond it is the router's own; what it takes beyond nginx is uvloop's.
"""

import asyncio
import itertools
import socket
import sys
from urllib.parse import urlsplit

import httptools
import uvloop

PORT, BACKENDS = int(sys.argv[1]), [(str(url.hostname), int(url.port or 80)) for url in map(urlsplit, sys.argv[2:])]
TURNS = itertools.cycle(range(len(BACKENDS)))
IDLE: list[list["Upstream"]] = [[] for _ in BACKENDS]


class Side(asyncio.Protocol):
    whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_message_complete(self) -> None:
        self.whole = True


class Upstream(Side):
    def __init__(self, backend: int) -> None:
        self.backend, self.client, self.between = backend, None, False
        self.parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """From one event's chunk's end to another's there is nothing to parse."""
        between, self.between = self.between, data.endswith(b"\n\n\r\n")
        if not (between and self.between):
            self.parser.feed_data(data)
        self.client.transport.write(data)
        if self.whole:
            self.whole, self.between, self.client = False, False, None
            self.parser = httptools.HttpResponseParser(self)
            IDLE[self.backend].append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self in IDLE[self.backend]:
            IDLE[self.backend].remove(self)


class Client(Side):
    def __init__(self) -> None:
        self.parser, self.request = httptools.HttpRequestParser(self), b""

    def data_received(self, data: bytes) -> None:
        self.request += data
        self.parser.feed_data(data)
        if not self.whole:
            return
        request, self.request, self.whole = self.request, b"", False
        backend = next(TURNS)
        if IDLE[backend]:
            self.send(IDLE[backend].pop(), request)
        else:
            asyncio.get_running_loop().create_task(self.connect(backend, request))

    async def connect(self, backend: int, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: Upstream(backend), *BACKENDS[backend])
        self.send(upstream, request)

    def send(self, upstream: Upstream, request: bytes) -> None:
        upstream.client = self
        upstream.transport.write(request)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1", PORT)
    await server.serve_forever()


uvloop.run(main())
