"""One client connection: bytes in, requests to the application one after another, answers out."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httptools

from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response

MAX_BODY_BYTES = 64 << 20
MAX_HEADER_BYTES = 64 << 10
_PIPELINE = 16
_TOO_LARGE = Response(431, b"Request headers are larger than 64 KiB.", "text/plain; charset=utf-8")

Application = Callable[[Request, Exchange], Awaitable[None]]
logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """llhttp callbacks; a request is handed on when its body is complete, the next one when the answer is."""

    def __init__(self, application: Application, connections: set["Connection"]) -> None:
        self._application = application
        self._connections = connections
        self._parser: Any = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool, bool]] = deque()
        self._request = Request("", b"")
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._header_bytes = 0
        self._unparsed_bytes = 0
        self._refused: Response | None = None
        self._ending = False
        """Nothing is read any more; close when all is answered."""
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, without the base class
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: tell the request in progress at once, forget the rest."""
        self._connections.discard(self)
        self._waiting.clear()
        if self._exchange is not None:
            self._exchange.disconnected()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse; anything that is not HTTP is answered with 400 and closed."""
        if self._refused is not None or self._ending:
            return
        self._unparsed_bytes += len(data)  # the parser keeps an unfinished header or trailer, whatever its length
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # answered as a usual request, which it may be; what follows it is not HTTP
            self._ending = True
        except httptools.HttpParserError:
            self._refuse(self._refused or Response(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8"))
            return
        if self._unparsed_bytes > MAX_HEADER_BYTES:
            self._refuse(_TOO_LARGE)

    def eof_received(self) -> bool:
        """A half-closed client is a gone client: close, so that its work is aborted."""
        return False

    def pause_writing(self) -> None:
        """The send buffer is full."""
        if self._exchange is not None:
            self._exchange.paused = True

    def resume_writing(self) -> None:
        """The send buffer has drained."""
        if self._exchange is not None and self._exchange.paused:
            self._exchange.resumed()

    # -- httptools callbacks

    def on_message_begin(self) -> None:
        """A new request."""
        self._request = Request("", b"")
        self._body = []
        self._body_bytes = self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._request.target += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._count_header(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """The head is in: invite the body if the client waits for that."""
        self._unparsed_bytes = 0
        self._request.method = self._parser.get_method().decode("latin-1")
        if self._request.headers.get("expect", "").lower() == "100-continue" and self._exchange is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._unparsed_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refused = Response(413, b'{"detail":"Request body is larger than 64 MiB"}', "application/json")
            raise ValueError("body too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is in."""
        self._unparsed_bytes = 0
        self._request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        version = self._parser.get_http_version()
        self._waiting.append((self._request, version != "1.0", self._parser.should_keep_alive()))
        if len(self._waiting) > _PIPELINE:
            self._transport.pause_reading()
        self._next()

    # -- the application's side

    @property
    def idle(self) -> bool:
        """No request in progress."""
        return self._exchange is None

    def close(self) -> None:
        """Close once what was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def _next(self) -> None:
        if self._exchange is not None or not self._waiting or self._transport.is_closing():
            return
        request, chunked, keep_alive = self._waiting.popleft()
        if len(self._waiting) <= _PIPELINE:
            self._transport.resume_reading()
        request.split_target()
        exchange = Exchange(
            self._transport,
            chunked=chunked,
            keep_alive=keep_alive,
            on_done=self._answered,
            bodiless=request.method == "HEAD",
        )
        self._exchange = exchange
        self._task = asyncio.get_running_loop().create_task(self._run(request, exchange))

    async def _run(self, request: Request, exchange: Exchange) -> None:
        """Task boundary of one request: an error that nobody translated is logged and answered with 500."""
        try:
            await self._application(request, exchange)
        except Exception as error:  # the task boundary
            logger.exception("request failed", extra={"path": request.path, "kind": type(error).__name__})
            if exchange.status == 0:
                exchange.respond(Response(500, b"Internal Server Error", "text/plain; charset=utf-8"))
            else:
                exchange.cut()

    def _answered(self, exchange: Exchange) -> None:
        self._exchange = None
        self._task = None
        if not exchange.keep_alive or (self._ending and not self._waiting):
            self._transport.close()
        elif self._waiting:
            self._next()

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refused = _TOO_LARGE
            raise ValueError("headers too large")

    def _refuse(self, response: Response) -> None:
        self._refused = response
        if self._exchange is None and not self._transport.is_closing():
            Exchange(self._transport, chunked=True, keep_alive=False, on_done=lambda _: None).respond(response)
        self._transport.close()
