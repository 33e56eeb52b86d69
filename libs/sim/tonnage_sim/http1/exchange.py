"""One request's way back to the client: a whole response, or a stream of chunks."""

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from time import time

from tonnage_sim.http1.message import REASONS, Response


class Exchange:
    """The answer side of one request on one connection.

    A stream's chunks are written by whoever has them, at once; `chunk` frames them so that frames can be prepared
    ahead. While `paused` is set the client reads too slowly: hold chunks back and go on in `on_resume`.
    """

    __slots__ = (
        "_bodiless",
        "_keep_alive",
        "_on_done",
        "_transport",
        "chunked",
        "closed",
        "done",
        "on_disconnect",
        "on_end",
        "on_resume",
        "paused",
        "response_bytes",
        "status",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        chunked: bool,
        keep_alive: bool,
        on_done: Callable[["Exchange"], None],
        bodiless: bool = False,
    ) -> None:
        self._transport = transport
        self._bodiless = bodiless
        self._keep_alive = keep_alive
        self._on_done = on_done
        self.chunked = chunked
        """HTTP/1.1: chunked coding; HTTP/1.0: the end of the stream is the end of the connection."""
        self.closed = False
        """The client has gone."""
        self.done = False
        """The answer is complete."""
        self.paused = False
        self.status = 0
        self.response_bytes = 0
        """Content-Length of a whole response; 0 for a stream, as it has none."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called when the client goes before the answer is complete."""
        self.on_end: Callable[[], None] | None = None
        """Called when the answer is complete or the client has gone."""
        self.on_resume: Callable[[], None] | None = None

    def respond(self, response: Response) -> None:
        """Send a whole response."""
        if self.closed or self.done:
            return
        self.status, self.response_bytes = response.status, len(response.body)
        head = self._head(response.status, response.content_type, response.headers)
        body = b"" if self._bodiless else response.body
        self._transport.write(b"%scontent-length: %d\r\n\r\n%s" % (head, len(response.body), body))
        self._finish()

    def start_stream(self, content_type: str) -> None:
        """Send the head of a 200 stream."""
        if self.closed:
            return
        self.status = 200
        head = self._head(200, content_type, ())
        self._transport.write(head + (b"transfer-encoding: chunked\r\n\r\n" if self.chunked else b"\r\n"))

    def chunk(self, data: bytes) -> bytes:
        """`data` framed for this stream."""
        return b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data

    def write(self, framed: bytes) -> None:
        """Send one or more framed chunks."""
        if not self.closed:
            self._transport.write(framed)

    def end_stream(self) -> None:
        """Complete the stream."""
        if self.closed or self.done:
            return
        if self.chunked:
            self._transport.write(b"0\r\n\r\n")
        else:
            self._keep_alive = False
        self._finish()

    def cut(self) -> None:
        """Break off in the middle of the answer, as the kernel does for a dead server: what is written still goes."""
        self.closed = True
        self._transport.close()

    def disconnected(self) -> None:
        """Called by the connection when the client has gone."""
        self.closed = True
        if self.done:
            return
        if self.on_disconnect is not None:
            self.on_disconnect()
        if self.on_end is not None:
            self.on_end()

    def resumed(self) -> None:
        """Called by the connection when the client reads again."""
        self.paused = False
        if not self.done and self.on_resume is not None:
            self.on_resume()

    @property
    def keep_alive(self) -> bool:
        """Whether the connection takes another request after this one."""
        return self._keep_alive

    def _finish(self) -> None:
        self.done = True
        if self.on_end is not None:
            self.on_end()
        self._on_done(self)

    def _head(self, status: int, content_type: str | None, headers: tuple[tuple[str, str], ...]) -> bytes:
        parts = [b"HTTP/1.1 %d %s\r\n" % (status, REASONS.get(status, b"")), _date_line(int(time()))]
        if content_type is not None:
            parts.append(b"content-type: %s\r\n" % content_type.encode("latin-1"))
        parts += [b"%s: %s\r\n" % (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        if not self._keep_alive:
            parts.append(b"connection: close\r\n")
        return b"".join(parts)


@lru_cache(maxsize=2)
def _date_line(second: int) -> bytes:
    return b"date: %s\r\nserver: tonnage-sim\r\n" % formatdate(second, usegmt=True).encode()
