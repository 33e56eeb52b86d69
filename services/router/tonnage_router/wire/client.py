"""A client connection: reads requests, refuses what is malformed, hands whole requests on one at a time."""

import asyncio
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from tonnage_router.wire.answers import answer, error_object
from tonnage_router.wire.heads import RepeatedHead
from tonnage_router.wire.incoming import Incoming

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.gateway import Gateway

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UPGRADE = "protocol upgrades are not supported: send the request without an Upgrade header"
RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing drops what is unsent and resets the connection."""
PIPELINED = 16
"""Requests read ahead of the one being answered, before reading pauses."""


class ClientConnection:
    """One connection. `quiet_ticks` counts sweeps since the peer last did what it owes: send, or read.

    An `asyncio.Protocol` in form only: a compiled class has no base that is not compiled.
    """

    __slots__ = (
        "_between",
        "_gateway",
        "_head_bytes",
        "_in_head",
        "_incoming",
        "_last",
        "_last_head",
        "_missing",
        "_parsed",
        "_parser",
        "_queue",
        "_reading_paused",
        "_refused",
        "_serving",
        "_uninvited",
        "closing",
        "exchange",
        "paused",
        "quiet_ticks",
        "transport",
    )

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Incoming] = deque()
        self._incoming: Incoming | None = None
        self._in_head = True
        self._head_bytes = 0
        self._between = True
        self._missing = 0
        self._last: Incoming | None = None
        self._parsed: Incoming | None = None
        self._last_head = RepeatedHead()
        self._refused = False
        self._serving = False
        self._uninvited = False
        self._reading_paused = False
        self.closing = False
        self.paused = False
        self.quiet_ticks = 0
        self.exchange: Exchange | None = None
        self.transport: asyncio.Transport

    @property
    def idle(self) -> bool:
        """No request is being read or answered."""
        return self.exchange is None and self._incoming is None and not self._queue

    @property
    def refused(self) -> bool:
        """An answer was sent after which the connection only waits for the peer to close."""
        return self._refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set no-delay and join the gateway's connections."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class is not a subclass
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        gateway = self._gateway
        if gateway.sweeper is not None:
            gateway.sweeper.look()
        gateway.clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whatever it waits for is stopped."""
        self._gateway.clients.discard(self)
        if self._incoming is not None:
            self._gateway.unbuffer(self._incoming.body_size)
            self._incoming = None
        for incoming in self._queue:
            self._gateway.unbuffer(incoming.body_size)
        self._queue.clear()
        if self.exchange is not None:
            self.exchange.client_gone()

    def eof_received(self) -> None:
        """The client sends no more: it is taken for gone."""

    def data_received(self, data: bytes) -> None:
        """Read requests: one whose head is the last one's again without the parser, any other through it."""
        if self._refused:
            return
        if (self._between or self._missing or not self._in_head) and not self.paused:
            self.quiet_ticks = 0  # bytes of a head do not count: it must come whole in time, however it trickles
        if self._missing:
            data = self._take(data)
        while data and self._between and not self._refused and self._last_head.matches(data):
            data = self._repeat(data)
        if data and not self._refused:
            self._parse(data)

    def _repeat(self, data: bytes) -> bytes:
        """Begin a request whose head is known; returns what follows it."""
        last, head = self._last, self._last_head
        assert last is not None
        self._between = False
        self._missing = head.length
        self._incoming = last.repeated(head.length)
        self._check(self._incoming)
        return self._take(data[head.body_at :])

    def _take(self, data: bytes) -> bytes:
        """Take what is missing of the body; returns what follows it."""
        piece = data if len(data) <= self._missing else data[: self._missing]
        self._missing -= len(piece)
        if piece:
            self.on_body(piece)
        if not self._missing:
            self.on_message_complete()
        return data[len(piece) :] if len(data) > len(piece) else b""

    def _parse(self, data: bytes) -> None:
        """Feed the parser; its callbacks do the rest."""
        begins = self._between
        self._head_bytes += len(data)  # the parser keeps an unfinished header or trailer, whatever its length
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(400, UPGRADE)
        except (httptools.HttpParserError, ValueError) as error:
            self.refuse(400, f"malformed HTTP request: {error}")
        if self._incoming is not None and self._head_bytes > self._gateway.settings.head_bytes and not self._refused:
            what = "head is" if self._in_head else "trailers or chunk extensions are"
            self.refuse(431, f"the request {what} too large")
        parsed = self._parsed
        if parsed is not None:
            self._parsed = None
            if begins:  # the next request may have its head
                learnt = self._last_head.learn(data, parsed.body_size)
                self._last = parsed.repeated(0) if learnt else None

    # --- parser callbacks -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The parser is inside a request from here on."""
        self._between = False

    def on_url(self, url: bytes) -> None:
        """A request begins."""
        if self._incoming is None:
            self._incoming = Incoming(url)
        else:
            self._incoming.target += url
            self._incoming.path = self._incoming.target

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head; trailers are dropped."""
        if self._in_head and self._incoming is not None:
            self._incoming.take_header(name, value)

    def on_headers_complete(self) -> None:
        """Check framing and limits before the body is read."""
        incoming = self._incoming
        if incoming is None or self._refused:
            return
        self._in_head = False
        self._head_bytes = 0
        parser = self._parser
        incoming.method = parser.get_method()
        incoming.keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        incoming.version_11 = version == "1.1"
        problem = UPGRADE if parser.should_upgrade() else _framing_problem(incoming, version)
        if problem is not None:
            self.refuse(400, problem)
            return
        self._check(incoming)
        self._parsed = incoming if incoming.repeatable else None

    def _check(self, incoming: Incoming) -> None:
        """Hold a head against limits and routes before its body is read."""
        self._gateway.check_head(incoming)
        if incoming.error is not None and incoming.error[0] in (401, 413, 503):
            self.refuse(*incoming.error)
        elif incoming.expects:
            if incoming.error is not None:
                self.refuse(*incoming.error)
            else:
                self._uninvited = True
                self._invite()

    def _invite(self) -> None:
        """Ask for the body of a request that waits to be asked, once what came before it is answered: written earlier
        it would stand inside that answer."""
        incoming = self._incoming
        if self._uninvited and incoming is not None and incoming.expects and not self._busy:
            self._uninvited = False
            self.transport.write(CONTINUE)

    def on_body(self, piece: bytes) -> None:
        """Keep the body, within the limits."""
        self._head_bytes = 0
        incoming, gateway = self._incoming, self._gateway
        if incoming is None or self._refused:
            return
        if incoming.error is not None:
            incoming.head_size += len(piece)
            if incoming.head_size > gateway.limits.body_bytes:
                self.refuse(*incoming.error)
            return
        incoming.take_body(piece)
        gateway.buffered += len(piece)
        if incoming.body_size > gateway.limits.body_bytes:
            self.refuse(413, f"the body is larger than {gateway.limits.body_bytes} bytes")
        elif gateway.buffered > gateway.limits.buffered_bytes:
            self.refuse(503, "too many request bytes are buffered; try again later")

    def on_message_complete(self) -> None:
        """Hand the request on, or queue it behind the one being answered."""
        incoming = self._incoming
        self._in_head = self._between = True
        if incoming is None or self._refused:
            return
        self._incoming = None
        if self.transport.is_closing():  # the answer before said so: what follows it is not processed (RFC 9112 9.6)
            self._gateway.unbuffer(incoming.body_size)
            return
        incoming.finish()
        if not self._busy:
            self._gateway.handle(self, incoming)
            return
        self._queue.append(incoming)
        if len(self._queue) >= PIPELINED and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    @property
    def _busy(self) -> bool:
        """Requests wait their turn: one is being answered, others came before, or the answers so far are not read."""
        return self.exchange is not None or self.paused or bool(self._queue)

    # --- writing ----------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client reads slowly: stop reading from the engine."""
        self.paused = True
        self.quiet_ticks = 0
        if self.exchange is not None:
            self.exchange.client_paused()

    def resume_writing(self) -> None:
        """The client caught up."""
        self.paused = False
        self.quiet_ticks = 0
        if self.exchange is not None:
            self.exchange.client_resumed()
        else:
            self._serve()

    def next_request(self, keep_alive: bool) -> None:
        """The current request is answered: take the next one, or close."""
        self.exchange = None
        self.quiet_ticks = 0
        if not keep_alive or self.closing:
            self.close()
        elif (self._queue or self._incoming is not None) and not self._serving:
            self._serve()

    def _serve(self) -> None:
        """Take the requests that wait, until one has to be waited for. A loop: a thousand may come at once."""
        self._serving = True
        while self._queue and self.exchange is None and not self.paused and not self.transport.is_closing():
            incoming = self._queue.popleft()
            if self._reading_paused and len(self._queue) < PIPELINED // 2:
                self._reading_paused = False
                self.transport.resume_reading()
            self._gateway.handle(self, incoming)
        self._serving = False
        self._invite()

    def refuse(self, status: int, message: str) -> None:
        """Answer an error and take nothing more. Input is read and dropped until the peer closes, so that it can read
        the answer (a close with unread input resets the connection)."""
        if self._refused:
            return
        self._refused = True
        self.quiet_ticks = 0
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            self._gateway.unbuffer(incoming.body_size)
        if self.exchange is not None or self._queue:
            self.closing = True  # the answer under way ends first
            return
        self._gateway.refused(incoming, status, message)
        retry = 1 if status == 503 else None
        self.transport.write(answer(status, error_object(status, message), close=True, retry_after_s=retry))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def close(self) -> None:
        """Close after what was written has left."""
        self.closing = True
        self.transport.close()

    def abort(self) -> None:
        """Close at once, by a reset: without one, an answer that has no length would seem to have ended in order."""
        sock: socket.socket | None = self.transport.get_extra_info("socket")
        if sock is not None and not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()


def _framing_problem(incoming: Incoming, version: str) -> str | None:
    """Why a head must not be passed on (RFC 9112 sections 3.2, 6.1 and 6.3), or None."""
    if version not in ("1.1", "1.0"):
        return f"HTTP version {version} is not supported"
    if incoming.hosts != 1 and (incoming.version_11 or incoming.hosts > 1):
        return "exactly one Host header is needed"
    transfer: Any = incoming.transfer
    if transfer is None:
        return None
    if not incoming.version_11:
        return "Transfer-Encoding needs HTTP/1.1"
    if transfer.strip().lower() != b"chunked":
        return "the only supported Transfer-Encoding is chunked"
    return "Content-Length and Transfer-Encoding exclude each other" if incoming.length is not None else None
