"""Small HTTP calls to an engine, for probes and adapter loading: a bounded answer each."""

import asyncio
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import httptools

from tonnage_router.errors import ProbeError
from tonnage_router.wire.peer import refused_peer

MAX_ANSWER_BYTES = 16 << 20
MOST_KEPT_S = 10.0


@dataclass(slots=True)
class Answer:
    """Status and body of a call, and what `Retry-After` says."""

    status: int = 0
    body: bytes = b""
    retry_after: str = ""


class _Connection(asyncio.Protocol):
    """A connection to an engine: one request at a time, and its answer."""

    def __init__(self, request: bytes) -> None:
        self.transport: asyncio.Transport
        self.lost = False
        self._begin(request)

    def _begin(self, request: bytes) -> None:
        self._request = request
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self.received = 0
        self._retry_after = ""
        self._sized = False
        self._cut_by_end = True
        """Whether a connection closed now cuts the answer: it said its length, or not all of its head."""

    def ask(self, request: bytes) -> "asyncio.Future[Answer]":
        """Another request, once the last one is answered."""
        self._begin(request)
        self.transport.write(request)
        return self.answer

    # --- from the event loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send, if it is somebody who may be sent to."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class is not a subclass
        if (why := refused_peer(transport)) is not None:
            self._fail(OSError(why))
        else:
            self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take a piece of the answer."""
        if self.answer.done():  # bytes nobody asked for
            self.transport.abort()
            return
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(error)
            return
        if self.received > MAX_ANSWER_BYTES and not self.answer.done():
            self._fail(httptools.HttpParserError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes"))

    def eof_received(self) -> None:
        """The engine has sent all it will: what is missing is seen when the connection ends."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of an answer without a length, or too early."""
        self.lost = True
        if self.answer.done():
            return
        if exc is not None:
            self._fail(exc)
        elif not self.received:
            self._fail(httptools.HttpParserError("closed without an answer"))
        elif self._cut_by_end:
            self._fail(httptools.HttpParserError("closed before the end of its answer"))
        else:
            self._end()

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
        self.transport.abort()

    # --- from the parser ----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A second answer to one request is nobody's."""
        if self.answer.done():
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what says where the answer ends, and when to come back."""
        lower = name.lower()
        self._sized = self._sized or lower in (b"content-length", b"transfer-encoding")
        if lower == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """An answer that does not say its length goes on to the end of the connection. Statuses below 100 are none."""
        if self._parser.get_status_code() < 100:
            raise httptools.HttpParserError(f"status {self._parser.get_status_code()}")
        self._cut_by_end = self._sized

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The answer is whole, or an interim one is: that has no body."""
        if self._parser.get_status_code() < 200:
            self._sized, self._cut_by_end = False, True
        elif not self.answer.done():
            self._end()

    def _end(self) -> None:
        if not self._parser.should_keep_alive():
            self.transport.abort()
        self.answer.set_result(Answer(self._parser.get_status_code(), b"".join(self._pieces), self._retry_after))


async def call(
    host: str,
    port: int,
    path: str,
    *,
    timeout_s: float,
    body: bytes | None = None,
    api_key: str | None = None,
    lines: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """GET `path`, or POST `body` as JSON, with header `lines` of the caller's instead where given; over `tls` with one.

    `ProbeError` says in a few words what went wrong.
    """
    method = "GET" if body is None else "POST"
    kind = b"" if body is None else b"content-length: %d\r\n" % len(body)
    own = b"content-type: application/json\r\n" if lines is None and body is not None else lines or b""
    head = _head(method, host, port, path, api_key) + b"connection: close\r\n" + kind + own
    with _worded(method, path, timeout_s):
        async with asyncio.timeout(timeout_s):
            connection = await _connected(host, port, head + b"\r\n" + (body or b""), tls)
            try:
                return await connection.answer
            finally:
                connection.transport.abort()


class KeptConnection:
    """GETs from one engine, one after another, over a connection that is kept between them.

    An engine is asked for its gauges each second: to connect anew for it is most of what that costs, on both sides. Not
    for longer than `MOST_KEPT_S`, or until it is renewed: another engine may have the address by then, while the first
    serves what it has.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._kept: _Connection | None = None
        self._since = 0.0

    async def renewed(self, path: str, *, timeout_s: float) -> Answer:
        """As `call`, over a new connection, which is kept if it can be used again. The last one is closed before: an
        engine may serve one at a time, and another engine may have the address."""
        self.close()
        request = _head("GET", self._host, self._port, path, None) + b"\r\n"
        with _worded("GET", path, timeout_s):
            async with asyncio.timeout(timeout_s):
                return await self._anew(request)

    async def get(self, path: str, *, timeout_s: float, api_key: str | None = None) -> Answer:
        """As `call`. An engine may close what it has not used for some seconds: then the request is sent once more."""
        request = _head("GET", self._host, self._port, path, api_key) + b"\r\n"
        with _worded("GET", path, timeout_s):
            async with asyncio.timeout(timeout_s):
                return await self._again(request) or await self._anew(request)

    async def _again(self, request: bytes) -> Answer | None:
        """Over the connection that there is; None when there is none, or it was closed without an answer."""
        connection, self._kept = self._kept, None
        if connection is not None and time.monotonic() > self._since + MOST_KEPT_S:
            connection.transport.abort()
        if connection is None or connection.lost or connection.transport.is_closing():
            return None
        try:
            answer = await connection.ask(request)
        except (OSError, httptools.HttpParserError):
            if connection.received:
                raise
            return None
        except asyncio.CancelledError:
            connection.transport.abort()
            raise
        self._kept = connection
        return answer

    async def _anew(self, request: bytes) -> Answer:
        connection = await _connected(self._host, self._port, request, None)
        since = time.monotonic()
        try:
            answer = await connection.answer
        except BaseException:
            connection.transport.abort()
            raise
        if not connection.transport.is_closing():
            self._kept, self._since = connection, since
        return answer

    def close(self) -> None:
        """Close what is kept."""
        if self._kept is not None:
            self._kept.transport.abort()
            self._kept = None


def _head(method: str, host: str, port: int, path: str, api_key: str | None) -> bytes:
    shown = f"[{host}]" if ":" in host else host
    key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
    return f"{method} {path} HTTP/1.1\r\nhost: {shown}:{port}\r\n{key}".encode()


async def _connected(host: str, port: int, request: bytes, tls: ssl.SSLContext | None) -> _Connection:
    connection = _Connection(request)
    try:
        await asyncio.get_running_loop().create_connection(lambda: connection, host, port, ssl=tls)
    except BaseException:
        connection.answer.cancel()  # nobody waits for it
        raise
    return connection


@contextmanager
def _worded(method: str, path: str, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ProbeError(f"{method} {path}: no answer in {timeout_s:g} s") from error
    except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise ProbeError(f"{method} {path}: {str(error) or type(error).__name__}") from error
