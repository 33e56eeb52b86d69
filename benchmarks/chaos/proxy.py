"""A TCP proxy in user space that delays, cuts, swallows or refuses what passes through it."""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field

PIECE = 65536


@dataclass
class Weather:
    """What happens to bytes now."""

    delay_s: float = 0.0
    """Added to every piece in both directions; order is kept."""
    swallow: bool = False
    """Connections stand and bytes are taken, but none arrives until it ends (looked at every 20 ms)."""
    refuse: bool = False
    """New connections are reset at once."""


@dataclass
class Proxy:
    """Listens on `port` of loopback and passes on to `to_port`; `weather` may change at any time."""

    port: int
    to_port: int
    weather: Weather = field(default_factory=Weather)
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop listening and reset what is open."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> int:
        """Reset every open connection; how many ends there were."""
        cut = [writer for writer in self._open if not writer.is_closing()]
        for writer in cut:
            writer.transport.abort()
        return len(cut)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.weather.refuse:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except asyncio.CancelledError:
            return  # the end of the run; the stream's own callback would report it as an error
        finally:
            for one in (writer, far_writer):
                self._open.discard(one)
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pieces in order, each at its own time; an end or an error of one side is passed on to the other."""
        loop = asyncio.get_running_loop()
        waiting: deque[tuple[float, bytes]] = deque()
        came = asyncio.Event()

        async def read() -> None:
            while True:
                try:
                    piece = await reader.read(PIECE)
                except ConnectionError:
                    writer.transport.abort()
                    piece = b""
                waiting.append((loop.time() + self.weather.delay_s, piece))
                came.set()
                if not piece:
                    return

        task = asyncio.create_task(read())
        try:
            while True:
                while not waiting:
                    came.clear()
                    await came.wait()
                due, piece = waiting.popleft()
                await asyncio.sleep(max(0.0, due - loop.time()))
                while self.weather.swallow:  # noqa: ASYNC110 - `weather` is plain data that faults set
                    await asyncio.sleep(0.02)
                with contextlib.suppress(ConnectionError, RuntimeError):
                    if not piece:
                        writer.write_eof()
                        return
                    writer.write(piece)
                    await writer.drain()
        finally:
            task.cancel()
