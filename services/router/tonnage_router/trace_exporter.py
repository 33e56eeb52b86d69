"""Sends spans to a collector: OTLP over HTTP, in batches, beside the requests and never in their way.

What cannot be sent waits in bounded memory; what finds no room there is dropped and counted.
"""

import asyncio
import logging
import time
import uuid
import zlib
from collections import deque
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from tonnage_core.tracing.otlp import encoded_request, rejected_spans
from tonnage_router.adapters.http_call import call
from tonnage_router.errors import ProbeError
from tonnage_router.trace_settings import header_lines, pairs
from tonnage_runtime.tls import client_context

if TYPE_CHECKING:
    from tonnage_router.settings import RouterSettings

log = logging.getLogger(__name__)

SCOPE, VERSION = "tonnage.router", "0.1.0"
EVERY_S = 1.0
"""Between two batches, while none is full."""
BATCH_BYTES = 256 << 10
QUEUE_BYTES = 8 << 20
"""Some 10,000 spans."""
SEND_TIMEOUT_S = 10.0
"""The whole call: name, connection, certificate, answer."""
FLUSH_S = 3.0
"""For what is left when the router stops."""
WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Before a batch is sent again, unless the collector's `Retry-After` says when; after the last one it is given up."""
LONGEST_WAIT_S = 60.0
"""Where the collector asks for more."""
TRY_AGAIN = frozenset({429, 502, 503, 504})
"""Statuses that OTLP says to try again after."""
TYPE = b"content-type: application/x-protobuf\r\n"
GZIP_LEVEL, GZIP_WINDOW = 1, 31
"""Higher levels save a twentieth more for twice the CPU; 31 is zlib's largest window in gzip's frame."""


class TraceExporter:
    """A queue of encoded spans, and who empties it. `counts` are spans by outcome: exported, dropped (no room was
    left), rejected (by a collector that took others of the same batch), failed."""

    def __init__(self, settings: "RouterSettings", counts: dict[str, int]) -> None:
        to = settings.spans_to
        assert to is not None
        scheme, self._host, self._port, self._path = to
        self._tls = client_context(settings.otlp_ca_file) if scheme == "https" else None
        self._gzip = settings.otlp_compression == "gzip"
        self._lines = TYPE + b"content-encoding: gzip\r\n" * self._gzip + header_lines(settings.otlp_headers)
        self._resource = {
            "service.name": settings.trace_service_name,
            "service.version": VERSION,
            "service.instance.id": str(uuid.uuid4()),
            **dict(pairs(settings.trace_resource, "trace_resource")),
        }
        self._counts = counts
        self._items: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self._full = asyncio.Event()
        self._unsent: tuple[bytes, int] | None = None
        self._trouble = False
        self._asked_s: float | None = None
        """How long the collector's last answer asks to wait."""

    def has_room(self, count: int) -> bool:
        """Whether a request's spans may be added; when not, `count` of them are dropped."""
        if self._bytes < QUEUE_BYTES:
            return True
        self._count("dropped", count)
        return False

    def add(self, spans: bytes, count: int) -> None:
        """Queue encoded spans."""
        self._items.append((spans, count))
        self._bytes += len(spans)
        if self._bytes >= BATCH_BYTES:
            self._full.set()

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._full.wait()
            self._full.clear()
            while self._next() is not None:
                await self._deliver()

    async def close(self) -> None:
        """Send what is left, once, within a bound; the rest has failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while (batch := self._next()) is not None:
                    if not await self._sent(batch):
                        break
        if self._unsent is not None:
            self._give_up(self._unsent[1])
        self._count("failed", sum(count for _, count in self._items))
        self._items.clear()
        self._bytes = 0

    async def _deliver(self) -> None:
        """Send the next batch, again after a while if it may help."""
        for wait_s in (*WAITS_S, None):
            batch = self._next()
            if batch is None or await self._sent(batch):
                return
            if wait_s is None:
                self._give_up(batch[1])
            else:
                await asyncio.sleep(wait_s if self._asked_s is None else self._asked_s)

    def _next(self) -> tuple[bytes, int] | None:
        """The batch to send: the one that was not taken, else a new one of what is queued."""
        if self._unsent is None and self._items:
            spans, count, size = [], 0, 0
            while self._items and size < BATCH_BYTES:
                encoded, number = self._items.popleft()
                spans.append(encoded)
                count += number
                size += len(encoded)
            self._bytes -= size
            self._unsent = encoded_request(self._resource, SCOPE, VERSION, spans), count
        return self._unsent

    async def _sent(self, batch: tuple[bytes, int]) -> bool:
        """Send a batch; False when it should be sent again."""
        body, count = batch
        self._asked_s = None
        if self._gzip:
            body = await asyncio.to_thread(zlib.compress, body, GZIP_LEVEL, GZIP_WINDOW)
        try:
            answer = await call(
                self._host,
                self._port,
                self._path,
                timeout_s=SEND_TIMEOUT_S,
                body=body,
                lines=self._lines,
                tls=self._tls,
            )
        except ProbeError as error:
            self._note(str(error))
            return False
        if 200 <= answer.status < 300:
            rejected = min(count, rejected_spans(answer.body))
            self._count("rejected", rejected)
            self._count("exported", count - rejected)
            self._unsent = None
            self._note(None)
            return True
        self._note(f"the collector answered {answer.status}")
        if answer.status in TRY_AGAIN:
            self._asked_s = asked_wait_s(answer.retry_after, time.time())
            return False
        self._give_up(count)
        return True

    def _give_up(self, count: int) -> None:
        self._unsent = None
        self._count("failed", count)

    def _count(self, outcome: str, count: int) -> None:
        if count:
            self._counts[outcome] = self._counts.get(outcome, 0) + count

    def _note(self, problem: str | None) -> None:
        """Log when trouble begins and when it ends, not each time between."""
        where = {"host": self._host, "port": self._port}
        if problem is not None and not self._trouble:
            log.warning("traces not exported", extra={**where, "problem": problem})
        elif problem is None and self._trouble:
            log.info("traces exported again", extra=where)
        self._trouble = problem is not None


def asked_wait_s(text: str, now: float) -> float | None:
    """Seconds that a `Retry-After` asks to wait, from 0 to `LONGEST_WAIT_S`; None where there is none that can be read.
    `now` is seconds since the epoch, for one that names a date."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), LONGEST_WAIT_S)
    try:
        until = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(until - now, 0.0), LONGEST_WAIT_S)
