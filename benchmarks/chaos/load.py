"""An open loop of streamed completions from a trace, over several routers as a Service would spread them.

A connection that a router refuses carried no request: it is tried at the next router, and after a short while again,
as a load balancer does. Everything else counts as it came.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage_core.traces import TraceRequest, prompt_token_ids

PATIENCE_S = 60.0
"""A request that has not ended by then is lost."""


@dataclass
class Record:
    """What became of one request; times are monotonic seconds. `outcome`: ok, error_event (the stream ended with an
    error that names itself), refused (an HTTP error), short (fewer tokens than asked for, without a word), lost."""

    number: int
    router: int
    started: float
    first_byte: float | None = None
    first_token: float | None = None
    ended: float = 0.0
    outcome: str = "lost"
    endpoint: str = ""
    detail: str = ""
    moved: int = 0
    """Connections refused before it was sent."""


@dataclass
class Load:
    """Sends `rate_rps` requests a second until `stop`."""

    model: str
    ports: Sequence[int]
    requests: Sequence[TraceRequest]
    rate_rps: float
    records: list[Record] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        self._sending = asyncio.create_task(self._send())

    async def stop(self) -> None:
        """Send no more, and wait for what is open."""
        assert self._sending is not None
        self._sending.cancel()
        await asyncio.gather(*self._tasks)

    async def _send(self) -> None:
        begun, number = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(0.0, begun + number / self.rate_rps - time.monotonic()))
            record = Record(number, number % len(self.ports), time.monotonic())
            self.records.append(record)
            task = asyncio.create_task(self._one(record))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            number += 1

    async def _one(self, record: Record) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._ask(record)
        except TimeoutError:
            record.detail = f"nothing more in {PATIENCE_S:g} s"
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            record.detail = f"{type(error).__name__}: {error}"[:200]
        record.ended = time.monotonic()

    async def _ask(self, record: Record) -> None:
        request = self.requests[record.number % len(self.requests)]
        body = json.dumps(
            {
                "model": self.model,
                "prompt": prompt_token_ids(request),
                "max_tokens": request.output_length,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        reader, writer = await self._connect(record)
        try:
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n"
                b"x-tonnage-explain: 1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            await self._answer(record, reader, request.output_length)
        finally:
            writer.transport.abort()

    async def _connect(self, record: Record) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", self.ports[record.router])
            except ConnectionRefusedError:
                record.moved += 1
                record.router = (record.router + 1) % len(self.ports)
                await asyncio.sleep(0.05)

    async def _answer(self, record: Record, reader: asyncio.StreamReader, wanted: int) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        record.first_byte = time.monotonic()
        for line in head.decode("latin-1").split("\r\n"):
            if line.lower().startswith("x-tonnage-endpoint:"):
                record.endpoint = line.partition(":")[2].strip()
        status = int(head.split(b" ")[1])
        if status != 200:
            record.outcome, record.detail = "refused", f"{status}: {(await reader.read(300))!r}"
            return
        tokens, done = 0, False
        async for event in _events(reader):
            if event == b"[DONE]":
                done = True
                continue
            found: dict[str, Any] = json.loads(event)
            if "error" in found:
                record.outcome, record.detail = "error_event", str(found["error"])[:200]
                return
            record.first_token = record.first_token or time.monotonic()
            tokens = (found.get("usage") or {}).get("completion_tokens", tokens)
        if done and tokens == wanted:
            record.outcome = "ok"
        elif done:
            record.outcome, record.detail = "short", f"{tokens} of {wanted} tokens"
        else:
            record.detail = f"the stream broke after {tokens} tokens without a word"


async def _events(reader: asyncio.StreamReader) -> Any:
    """Data of server-sent events out of a chunked answer; ends when the connection does."""
    held = b""
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            held += (await reader.readexactly(size + 2))[:-2]
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        *events, held = held.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                yield event[6:]
        if size == 0:
            return
