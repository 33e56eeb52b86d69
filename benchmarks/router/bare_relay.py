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


def no_delay(transport: asyncio.BaseTransport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Upstream(asyncio.Protocol):
    def __init__(self, backend: int) -> None:
        self.backend, self.client = backend, None
        self.parser = httptools.HttpResponseParser(self)
        self.whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        no_delay(transport)

    def on_message_complete(self) -> None:
        self.whole = True

    def data_received(self, data: bytes) -> None:
        if not data.endswith(b"\n\n\r\n"):  # a token's chunk is neither the first nor the last of its answer
            self.parser.feed_data(data)
            self.whole = self.whole or data.endswith(b"0\r\n\r\n")
        self.client.transport.write(data)
        if self.whole:
            self.whole, self.client = False, None
            self.parser = httptools.HttpResponseParser(self)
            IDLE[self.backend].append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self in IDLE[self.backend]:
            IDLE[self.backend].remove(self)


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.parser, self.request, self.whole = httptools.HttpRequestParser(self), b"", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        no_delay(transport)

    def on_message_complete(self) -> None:
        self.whole = True

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
