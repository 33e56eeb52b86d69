"""A completion server of known timing: what a generator measures against it beyond that is the generator's own.

Each request is answered with `tokens` events, the first `first_s` after its last byte came, the rest `gap_s` apart,
each written by a timer of its own; then the usage event and `[DONE]`. It reads no prompt and stamps each arrival by its
own clock.
"""

import asyncio
from array import array
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import httptools

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"connection: keep-alive\r\n\r\n"
)
_EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"mock",'
    b'"choices":[{"index":0,"text":" tobak","logprobs":null,"finish_reason":%s,"stop_reason":null}],"usage":null}\n\n'
)
_TOKEN, _LAST = _EVENT % b"null", _EVENT % b'"length"'
_MODELS = b'{"object":"list","data":[{"id":"mock","object":"model","max_model_len":1048576}]}'


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(frozen=True, slots=True)
class Pace:
    """The server's timing: `tokens` a stream, `first_s` to the first, `gap_s` between; `stall` pauses all writing
    from its first to its second value, in seconds after the first request."""

    tokens: int = 64
    first_s: float = 0.02
    gap_s: float = 0.02
    stall: tuple[float, float] | None = None


class PacedMock:
    """Counts arrivals (`perf_counter` instants) and serves streams."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.arrivals = array("d")
        self._end = self._ending()

    async def serve(self, host: str = "127.0.0.1", port: int = 0) -> asyncio.Server:
        """Listen; the caller closes the server."""
        return await asyncio.get_running_loop().create_server(lambda: _Stream(self), host, port, backlog=4096)

    def delay_until(self, instant: float) -> float:
        """Seconds to wait before a write planned for `instant`, the stall counted in."""
        if self.pace.stall is not None and self.arrivals:
            start, end = (self.arrivals[0] + at for at in self.pace.stall)
            if start <= instant < end:
                instant = end
        return instant - perf_counter()

    @property
    def end(self) -> bytes:
        """What follows the last token."""
        return self._end

    def _ending(self) -> bytes:
        usage = (
            b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"mock",'
            b'"choices":[],"usage":{"prompt_tokens":1024,"total_tokens":%d,"completion_tokens":%d}}\n\n'
        )
        count = self.pace.tokens
        return chunk(usage % (1024 + count, count)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Stream(asyncio.Protocol):
    def __init__(self, mock: PacedMock) -> None:
        self._mock = mock
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._url = b""
        self._left = 0
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_message_complete(self) -> None:
        url, self._url = self._url, b""
        if not url.endswith(b"/completions"):
            known = url.endswith(b"/models")
            body, status = (_MODELS, b"200 OK") if known else (b"{}", b"404 Not Found")
            self._transport.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
            return
        now = perf_counter()
        self._mock.arrivals.append(now)
        self._left = self._mock.pace.tokens
        self._due = now + self._mock.pace.first_s
        self._plan()

    def _plan(self) -> None:
        self._timer = self._loop.call_later(max(0.0, self._mock.delay_until(self._due)), self._write)

    def _write(self) -> None:
        first = self._left == self._mock.pace.tokens
        self._left -= 1
        token = chunk(_TOKEN if self._left else _LAST)
        self._transport.write((_HEAD if first else b"") + token + (b"" if self._left else self._mock.end))
        if self._left:
            self._due += self._mock.pace.gap_s
            self._plan()
