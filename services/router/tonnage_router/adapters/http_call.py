"""One small HTTP call to an engine, for probes and adapter loading: a fresh connection, a bounded answer."""

import asyncio
import ssl
from dataclasses import dataclass, field

import httptools

from tonnage_router.errors import ProbeError
from tonnage_router.wire.peer import refused_peer

MAX_ANSWER_BYTES = 16 << 20


@dataclass(slots=True)
class Answer:
    """Status and body of a call, and what `Retry-After` says."""

    status: int = 0
    body: bytes = b""
    retry_after: str = ""


@dataclass(slots=True)
class _Reader:
    pieces: list[bytes] = field(default_factory=list)
    complete: bool = False
    cut_by_end: bool = True
    """Whether a connection closed before `complete` cuts the answer: it said its length, or not all of its head."""
    retry_after: str = ""
    _sized: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        self._sized = self._sized or lower in (b"content-length", b"transfer-encoding")
        if lower == b"retry-after":
            self.retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.cut_by_end = self._sized

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = True


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
    key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
    kind = "" if body is None else f"content-length: {len(body)}\r\n"
    own = b"content-type: application/json\r\n" if lines is None and body is not None else lines or b""
    shown = f"[{host}]" if ":" in host else host
    head = f"{method} {path} HTTP/1.1\r\nhost: {shown}:{port}\r\nconnection: close\r\n{key}{kind}"
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(host, port, tls, head.encode() + own + b"\r\n" + (body or b""))
    except TimeoutError as error:
        raise ProbeError(f"{method} {path}: no answer in {timeout_s:g} s") from error
    except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise ProbeError(f"{method} {path}: {str(error) or type(error).__name__}") from error


async def _exchange(host: str, port: int, tls: ssl.SSLContext | None, request: bytes) -> Answer:
    stream, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        if (why := refused_peer(writer.transport)) is not None:
            raise OSError(why)
        writer.write(request)
        reader = _Reader()
        parser = httptools.HttpResponseParser(reader)
        received = 0
        while not reader.complete:
            data = await stream.read(65536)
            if not data:
                break
            received += len(data)
            if received > MAX_ANSWER_BYTES:
                raise httptools.HttpParserError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
            parser.feed_data(data)
        if not received:
            raise httptools.HttpParserError("closed without an answer")
        if reader.cut_by_end and not reader.complete:
            raise httptools.HttpParserError("closed before the end of its answer")
        return Answer(parser.get_status_code(), b"".join(reader.pieces), reader.retry_after)
    finally:
        writer.transport.abort()
