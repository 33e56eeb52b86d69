"""A connection to an engine: sends one request at a time, parses the answer's framing, passes its pieces on."""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import httptools

from tonnage_router.wire.headers import EVENT_CHUNK_END, HOP_BY_HOP, Header, lines
from tonnage_router.wire.heads import FIELD, RepeatedHead
from tonnage_router.wire.repeated_event import RepeatedEvent, payload_at

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.wire.pool import UpstreamPool

HEAD_BYTES: Final = 256 << 10
"""The most that an engine may send between two pieces of a body: heads, interim answers, chunk lines, trailers."""
NO_BODY: Final = frozenset({204, 304})
OK: Final = b"HTTP/1.1 200 OK\r\n"
NOT_TEXT: Final = bytes(range(9)) + bytes(range(10, 32)) + b"\x7f"
"""What the parser takes in a reason phrase and RFC 9112 section 4 does not: clients refuse it."""


class UpstreamConnection:
    """One connection. The answer's head is held until its first body byte, so that a dying engine can be replaced."""

    __slots__ = (
        "_between_chunks",
        "_chunked",
        "_complete",
        "_connection",
        "_event",
        "_head_done",
        "_keep_alive",
        "_last_head",
        "_lines_after",
        "_lines_before",
        "_parser",
        "_pieces",
        "_pool",
        "_reason",
        "_repeated",
        "_unread",
        "_write",
        "answered",
        "event_stream",
        "exchange",
        "headers",
        "idle_since",
        "length",
        "on_body",
        "quiet_ticks",
        "reused",
        "status",
        "transport",
    )

    def __init__(self, pool: "UpstreamPool") -> None:
        self._pool = pool
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self.exchange: Exchange | None = None
        self.transport: asyncio.Transport
        self.reused = False
        self.idle_since = 0.0
        self.headers: list[Header] = []
        self._last_head = RepeatedHead()
        self._event = RepeatedEvent()
        self._write: Callable[[bytes], None]
        self._lines_before = b""
        self._lines_after = b""
        self._reset()

    def _reset(self) -> None:
        self._head_done = False
        self._complete = False
        self._keep_alive = False
        self._chunked = False
        self._between_chunks = False
        self._unread = 0
        self._connection: bytes | None = None
        self._reason = b""
        self.answered = False
        self.event_stream = False
        self.status = 0
        self.length: bytes | None = None
        self.headers.clear()
        self._repeated = False
        self.quiet_ticks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set no-delay."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class is not a subclass
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, exchange: "Exchange", head: bytes, body: bytes) -> None:
        """Start a request. The connection must be idle."""
        self._reset()
        self.exchange = exchange
        if len(body) < 65536:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def data_received(self, data: bytes) -> None:
        """Parse, and pass on the body bytes that came."""
        self.quiet_ticks = 0
        if self._event.passes(data):
            self._write(data)
            return
        exchange = self.exchange
        if exchange is None:  # bytes nobody asked for
            self.transport.abort()
            return
        begins, self.answered = not self.answered, True
        if begins and self._repeats(data):
            self._done(exchange, data[self._last_head.body_at :])
            return
        if self._between_chunks and (at := payload_at(data)) and exchange.passes_chunk(data, at):
            self._write = exchange.client.transport.write
            self._event.learn(data, at)
            self._event.size += len(data)
            self._write(data)
            return
        self._event.forget()
        self._unread += len(data)  # the parser keeps an unfinished header or trailer, whatever its length
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("protocol")
            return
        pieces = self._pieces
        if pieces:
            self._unread = 0
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
        elif self._complete:
            piece = b""
        elif self._unread > HEAD_BYTES:
            self._fail("protocol")
            return
        else:
            self._between_chunks = False  # inside a chunk's framing: its body may look like a chunk
            return
        if self._complete:
            if begins:
                self._learn(data, len(piece))
            self._done(exchange, piece)
        else:
            # The body ends in a line's end, so what follows it ends the chunk: the parser stands at a border.
            self._between_chunks = self._chunked and data.endswith(EVENT_CHUNK_END) and piece.endswith(b"\n\n")
            exchange.piece(self, piece, False)

    def _repeats(self, data: bytes) -> bool:
        """Whether `data` is a whole answer whose head is the last one's again; then it is parsed by that."""
        head = self._last_head
        if not head.matches(data) or len(data) != head.body_at + head.length:
            return False
        self._head_done = self._complete = self._keep_alive = self._repeated = True
        self.status = 200
        self.length = head.digits
        return True

    def _learn(self, data: bytes, body_bytes: int) -> None:
        """`data` was a whole answer: the next one may have its head."""
        length = self.length
        usual = self.status == 200 and self._reason == b"OK" and self._keep_alive and not self.event_stream
        if length is None or not usual or self._chunked or not self._last_head.learn(data, body_bytes):
            self._last_head.forget()
            return
        rendered = b"\r\n" + lines(self.headers, self._connection)
        at = rendered.lower().find(FIELD) + len(FIELD)
        if at < len(FIELD) or not rendered.startswith(length, at):
            self._last_head.forget()
            return
        self._lines_before, self._lines_after = rendered[2:at], rendered[at + len(length) :]

    def _done(self, exchange: "Exchange", piece: bytes) -> None:
        """The answer is whole: free the connection first, so that the next request can have it."""
        self._leave()
        exchange.piece(self, piece, True)
        if self._keep_alive:
            self._pool.put(self)
        else:
            self.transport.close()

    # --- parser callbacks; `on_body` is the list's own append ---------------------------------------------------------

    def on_message_begin(self) -> None:
        """A second answer to one request is a fault."""
        if self._complete:
            raise httptools.HttpParserError("bytes after the end of an answer")

    def on_status(self, reason: bytes) -> None:
        """The reason phrase."""
        self._reason += reason.translate(None, NOT_TEXT)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what is end-to-end."""
        if self._head_done:
            return
        lower = name.lower()
        if lower in HOP_BY_HOP:
            if lower == b"connection":
                self._connection = value if self._connection is None else self._connection + b"," + value
            elif lower == b"transfer-encoding":
                self._chunked = True
            return
        if lower == b"content-length":
            self.length = value
        elif lower == b"content-type":
            self.event_stream = value.startswith(b"text/event-stream")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The status is known; interim answers (1xx) are skipped: they have no body. Lower ones are none."""
        self.status = self._parser.get_status_code()
        if self.status < 100 or (self.status < 200 and (self._chunked or self.length is not None)):
            raise httptools.HttpParserError(f"status {self.status}")
        if self.status >= 200:
            self._head_done = True

    def on_message_complete(self) -> None:
        """End of an answer, or of an interim one."""
        if self._head_done:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()
        else:
            self._reset_interim()

    def _reset_interim(self) -> None:
        self.headers.clear()
        self.length = None
        self._connection = None
        self._chunked = False
        self.event_stream = False
        self._reason = b""

    # --- the head for the client --------------------------------------------------------------------------------------

    def head(self, extra: bytes) -> bytes:
        """Status line and end-to-end header lines for the client, without framing; `extra` lines are added."""
        if self._repeated and self.length is not None:
            return OK + self._lines_before + self.length + self._lines_after + extra
        first = (
            OK if self.status == 200 and self._reason == b"OK" else b"HTTP/1.1 %d %b\r\n" % (self.status, self._reason)
        )
        return first + lines(self.headers, self._connection) + extra

    def forget_length(self) -> None:
        """The body will not be passed on as it is: its length is not the client's."""
        self.length = None
        self.headers[:] = [header for header in self.headers if header[0].lower() != b"content-length"]

    @property
    def bodyless(self) -> bool:
        """The status allows no body."""
        return self.status in NO_BODY

    # --- endings ------------------------------------------------------------------------------------------------------

    def _leave(self) -> "Exchange | None":
        """No answer is under way any more; whose it was."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None and self._event.size:
            exchange.passed_unread(*self._event.end())
            self._write = _nowhere
        return exchange

    def _fail(self, kind: str) -> None:
        exchange = self._leave()
        self.transport.abort()
        if exchange is not None:
            exchange.upstream_failed(self, kind)

    def timed_out(self) -> None:
        """The sweeper found the engine silent for too long."""
        self._fail("timeout")

    def drop(self) -> None:
        """The answer is no longer wanted: close, which makes the engine stop."""
        self._leave()
        self.transport.abort()

    def eof_received(self) -> bool:
        """The engine closed its side: the end of an answer without framing, else a cut."""
        exchange = self.exchange
        if exchange is not None and self._head_done and self.length is None and not self._chunked:
            self._complete = True
            self._done(exchange, b"")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone, perhaps in the middle of an answer."""
        self._pool.forget(self)
        exchange = self._leave()
        if exchange is not None:
            exchange.upstream_failed(self, "cut" if self.answered else "closed")

    def pause_writing(self) -> None:
        """The request is held in memory already: nothing to slow down."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""


def _nowhere(data: bytes) -> None:
    """Between answers, so that no connection keeps a client that is gone."""
