"""A lean HTTP/1.1 client connection: pre-encoded bytes out, llhttp framing in, no task and no future a request."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import cast

import httptools

from tonnage_loadgen.exchange import Exchange, Outcome

BODY_KEPT = 1 << 16
Finished = Callable[["Connection", Exchange], None]


class Connection(asyncio.Protocol):
    """Carries one exchange at a time; `finished` is called once for each, whatever ends it."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._exchange: Exchange | None = None
        self._request: bytes | None = None
        self._transport: asyncio.Transport | None = None
        self._now = 0.0
        self._served = 0
        self._parser = httptools.HttpResponseParser(self)
        self.idle_since = 0.0
        self.reusable = False

    def start(self, exchange: Exchange, request: bytes) -> None:
        """Send `request` now, or when the connection is made."""
        self._exchange = exchange
        exchange.reused = self._served > 0
        self._served += 1
        if self._transport is None:
            self._request = request
        else:
            self._write(request)

    def abort(self, outcome: str) -> None:
        """End the exchange under way with `outcome` and drop the connection."""
        self._finish(outcome)
        self.close()

    def expire(self) -> None:
        """The exchange took too long: it has timed out, unless only the end of its framing is missing."""
        exchange = self._exchange
        if exchange is not None and exchange.stream.done:
            exchange.settle()
        self.abort((exchange.outcome if exchange is not None else None) or Outcome.TIMEOUT)

    def close(self) -> None:
        """Drop the connection."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waits for the connection."""
        self._transport = cast(asyncio.Transport, transport)
        if self._exchange is None:
            self._transport.abort()
        elif self._request is not None:
            self._write(self._request)
            self._request = None

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; one clock reading serves every event in them."""
        self._now = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort(Outcome.BAD_RESPONSE)

    def connection_lost(self, error: Exception | None) -> None:
        """The exchange under way, if any, is over."""
        self.reusable = False
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lost()
            self._finished(self, exchange)

    def on_headers_complete(self) -> None:
        """llhttp: the status is known."""
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """llhttp: a piece of the body."""
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.status == 200:
            exchange.stream.feed(body, self._now)
            if exchange.stream.overrun:
                self.abort(Outcome.STREAM_ERROR)
        elif len(exchange.body) < BODY_KEPT:
            exchange.body += body

    def on_message_complete(self) -> None:
        """llhttp: the answer is whole, and the connection may carry another."""
        exchange = self._exchange
        if exchange is None or exchange.status < 200:
            return
        self.reusable = self._parser.should_keep_alive()
        exchange.settle()
        self._finish(exchange.outcome or Outcome.BAD_RESPONSE)

    def _write(self, request: bytes) -> None:
        assert self._transport is not None and self._exchange is not None
        self._transport.write(request)
        self._exchange.sent = perf_counter()

    def _finish(self, outcome: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.outcome = outcome
            self.idle_since = perf_counter()
            self._finished(self, exchange)
