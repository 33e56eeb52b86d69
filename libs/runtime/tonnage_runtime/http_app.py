"""The FastAPI application every service starts from: health, readiness, metrics, errors, graceful stop."""

import asyncio
import contextlib
import errno
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from email.utils import formatdate
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from tonnage_runtime.access import KnownTokens, TokenGate
from tonnage_runtime.errors import ListenError, PortInUseError
from tonnage_runtime.http_errors import ServiceApp
from tonnage_runtime.metrics import exposition
from tonnage_runtime.tls import Tls, follow_certificate, server_context

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
NotReady = Callable[[], str | None]

MAX_HEAD_BYTES = 65_536
"""A request line and headers, or a chunk's line, above this are refused with 400 and the connection closed."""
BACKLOG = 2048
"""Connections that the kernel holds for a process that is not accepting now. Name it again wherever an event loop is
given the socket: asyncio listens anew with 100, and what a loop paused for two seconds misses beyond its backlog comes
again after 1, 3, 7, 15 s, or is reset."""


def build_base_app(
    title: str,
    registry: CollectorRegistry,
    *,
    not_ready: NotReady = lambda: None,
    lifespan: Lifespan | None = None,
    access_file: Path | None = None,
    beside: Sequence[str] = (),
) -> FastAPI:
    """An app with `/healthz`, `/readyz` and `/metrics`.

    With `access_file` (see `access.py`) everything but these three, and paths under `beside`, needs a token.
    `not_ready` returns None when the service can take work, else the reason, which `/readyz` sends with 503.
    `BadInputError` and what is not well formed answer 400, any other `TonnageError` 500, as `{"error": {"message",
    "type"}}`.
    """
    app = ServiceApp(title=title, version="1", lifespan=lifespan)
    if access_file is not None:
        app.add_middleware(TokenGate, tokens=KnownTokens(access_file), beside=beside)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"], responses={503: {"description": "Not ready, with the reason"}})
    async def readyz() -> Response:
        """The service can take work."""
        reason = not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    @app.get("/metrics", tags=["health"], response_class=Response)
    async def metrics(request: Request) -> Response:
        """Prometheus exposition."""
        body, content_type = exposition(registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return app


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening TCP socket; port 0 takes any free one. `PortInUseError` when taken, `ListenError` when impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OverflowError as error:
        sock.close()
        raise ListenError(host, port, "ports are 0 to 65535") from error
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(host, port) from error
        raise ListenError(host, port, error.strerror or str(error)) from error
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


async def serve(
    app: FastAPI,
    sock: socket.socket,
    *,
    drain_timeout_s: float = 10.0,
    stop: asyncio.Event | None = None,
    tls: Tls | None = None,
) -> None:
    """Serve `app` on `sock` until `stop` (by default SIGTERM or SIGINT); open requests get `drain_timeout_s` to end.

    Raises `SettingsError` for a certificate that cannot be used.
    """
    config = uvicorn.Config(
        app,
        http="h11",  # httptools would keep a header of any length in memory
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        backlog=BACKLOG,
        log_config=None,
        lifespan="on",
        access_log=False,
        timeout_graceful_shutdown=int(drain_timeout_s) or 1,
    )
    config.load()
    following = None
    if tls is not None:
        config.ssl = server_context(tls)
        following = asyncio.create_task(follow_certificate(config.ssl, tls))
    server = _Server(config)
    if stop is None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    server.exit()
    if following is not None:
        following.cancel()
    await serving


class _ServerState(ServerState):
    """The headers that every answer gets are made when one is, at most once a second: a process that nobody asks does
    not wake for them."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._config = config
        self._second = -1
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """The date and the configuration's own headers."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            date = (b"date", formatdate(second, usegmt=True).encode())
            self._headers = [date, *self._config.encoded_headers]
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Those of a state that has just been made."""
        self._headers = headers


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which `serve` owns, and without its ten looks a second at whether it
    shall exit: `exit` says so."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = _ServerState(config)
        self._told = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Left to `serve`."""
        yield

    def exit(self) -> None:
        """Stop serving; before the application has started, once it has."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        """Serve until told to exit."""
        await self._told.wait()
