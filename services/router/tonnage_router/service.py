"""A running router: listening sockets, background tasks, drain."""

import asyncio
import functools
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry

from tonnage_core.errors import BadInputError
from tonnage_router.adapters.endpoint_file import read_endpoints
from tonnage_router.adapters.file_watch import FileWatch
from tonnage_router.adapters.tenant_file import read_tenants
from tonnage_router.app import build_app
from tonnage_router.discovery import reconcile
from tonnage_router.fleet import endpoint_id
from tonnage_router.gateway import Gateway
from tonnage_router.prober import Prober
from tonnage_router.ranks import by_rank
from tonnage_router.settings import EndpointSpec
from tonnage_router.sweeper import Sweeper
from tonnage_router.tenants import TenantKeys
from tonnage_router.wire.client import ClientConnection
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import BACKLOG, serve
from tonnage_runtime.store_url import open_store
from tonnage_runtime.tls import follow_certificate, server_context

if TYPE_CHECKING:
    from tonnage_router.kube_discovery import KubeDiscovery
    from tonnage_router.sharing import Sharing
    from tonnage_router.worker_channel import WorkerChannel

logger = logging.getLogger(__name__)

FIRST_LOOK_S = 2.5
"""Longest wait for the first probes: a probe's own timeout, and half a second."""
FIRST_LOOKS = 125
HANDSHAKE_S = 10.0
"""A client that has not ended its TLS handshake by then is gone."""


class RouterService:
    """The data port and its background work. `start` before `stop`; both once."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        files = gateway.settings.tls
        self._tls = server_context(files) if files is not None else None
        self.prober = Prober(gateway)
        self._sweeper = Sweeper(gateway)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._listening: asyncio.Task[None] | None = None
        self._owned: set[str] = set()
        self._cluster = self._watched_cluster()
        self._sharing = self._shared()

    def _shared(self) -> "Sharing | None":
        url = self.gateway.settings.shared_store
        if not url:
            return None
        from tonnage_router.sharing import Sharing

        return Sharing(self.gateway, open_store(url, SystemClock()))

    def _watched_cluster(self) -> "KubeDiscovery | None":
        if self.gateway.settings.discovery != "kubernetes":
            return None
        try:
            from tonnage_router.kube_discovery import KubeDiscovery
        except ImportError as error:
            raise BadInputError(
                "discovery from kubernetes needs the kube extra: pip install 'tonnage[kube]'"
            ) from error
        return KubeDiscovery(self.gateway, self.prober.follow)

    async def start(self, sock: socket.socket, admin: socket.socket | None = None) -> None:
        """Begin probing, and take connections of the listening `sock` once every endpoint was looked at: the log then
        says so, with the address of `admin` too."""
        self._warn_of_no_endpoints()
        loop = asyncio.get_running_loop()
        self.prober.follow()
        self._sweeper.start()
        self._tasks += [loop.create_task(watch.run()) for watch in self._watches()]
        if (files := self.gateway.settings.tls) is not None and self._tls is not None:
            self._tasks.append(loop.create_task(follow_certificate(self._tls, files)))
        if self._cluster is not None:
            self._cluster.start()
        if self._sharing is not None:
            self._tasks.append(loop.create_task(self._sharing.run()))
        if (tracer := self.gateway.tracer) is not None:
            self._tasks.append(loop.create_task(tracer.exporter.run()))
        told = {"url": _url(sock, tls=self._tls is not None)}
        if admin is not None:
            told["admin_url"] = _url(admin, tls=self.gateway.settings.admin_tls is not None)
        self._listening = loop.create_task(self._listen(sock, told))

    def _warn_of_no_endpoints(self) -> None:
        settings = self.gateway.settings
        if not settings.endpoints and settings.endpoints_file is None and settings.discovery == "static":
            logger.warning(
                "no endpoints and no discovery: nothing will be served; set TONNAGE_ROUTER_ENDPOINTS, "
                "TONNAGE_ROUTER_ENDPOINTS_FILE or TONNAGE_ROUTER_DISCOVERY"
            )

    async def _listen(self, sock: socket.socket, told: dict[str, str]) -> None:
        """A router that has just started knows no healthy endpoint: what is sent to it waits in the kernel's backlog
        rather than being told that nothing serves it."""
        for _ in range(FIRST_LOOKS):
            if self._looked():
                break
            try:
                await asyncio.sleep(FIRST_LOOK_S / FIRST_LOOKS)
            except asyncio.CancelledError:
                sock.close()
                raise
        loop = asyncio.get_running_loop()
        made = cast("Callable[[], asyncio.Protocol]", functools.partial(ClientConnection, self.gateway))
        self._server = await loop.create_server(
            made, sock=sock, backlog=BACKLOG, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S if self._tls else None
        )
        logger.info("ready", extra={**told, "endpoints": len(self.gateway.fleet)})

    def _looked(self) -> bool:
        endpoints = list(self.gateway.fleet)
        if not endpoints:
            return self._cluster is None
        return all(endpoint.probe_ok or endpoint.probe_failures for endpoint in endpoints)

    def _watches(self) -> list[FileWatch[Any]]:
        settings = self.gateway.settings
        watches: list[FileWatch[Any]] = []
        every_s = settings.reload_interval_s
        if settings.endpoints_file is not None:
            self._owned = {endpoint_id(spec) for spec in by_rank(read_endpoints(settings.endpoints_file))}
            watches.append(FileWatch(settings.endpoints_file, read_endpoints, self._take_endpoints, every_s))
        if settings.tenants_file is not None:
            read = functools.partial(read_tenants, processes=settings.limit_shares)
            watches.append(FileWatch(settings.tenants_file, read, self._take_tenants, every_s))
        return watches

    def _take_endpoints(self, found: list[EndpointSpec]) -> None:
        self._owned = reconcile(self.gateway, found, self._owned)
        self.prober.follow()

    def _take_tenants(self, found: tuple[list[TenantKeys], str | None]) -> None:
        self.gateway.tenants.load(*found)

    async def drain(self) -> None:
        """Take no new connection; let running answers end, for the drain timeout at most."""
        gateway = self.gateway
        gateway.draining = True
        await self._listen_no_more()
        for client in list(gateway.clients):
            if client.idle:
                client.close()
            else:
                client.closing = True
        if gateway.active:
            with suppress(TimeoutError):
                async with asyncio.timeout(gateway.settings.drain_timeout_s):
                    await gateway.drained.wait()

    async def _listen_no_more(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            with suppress(asyncio.CancelledError):
                await self._listening
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Cut what is left and stop background work."""
        await self._listen_no_more()
        if self._cluster is not None:
            await self._cluster.stop()
        await self.prober.stop()
        self._sweeper.stop()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._sharing is not None:
            await self._sharing.close()
        for client in list(self.gateway.clients):
            client.abort()
        for endpoint in self.gateway.fleet:
            self.gateway.fleet.remove(endpoint)
        await asyncio.sleep(0)
        if (tracer := self.gateway.tracer) is not None:
            await tracer.exporter.close()
        self.gateway.access_log.flush()


def _url(sock: socket.socket, *, tls: bool) -> str:
    """The URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


async def run(
    gateway: Gateway,
    registry: CollectorRegistry,
    data: socket.socket,
    admin: socket.socket,
    channel: "WorkerChannel | None" = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain with the admin port still answering."""
    tls = gateway.settings.admin_tls
    if tls is not None:
        server_context(tls)  # a certificate that cannot be used is told before anything is served
    service = RouterService(gateway)
    await service.start(data, admin)
    stop_admin, ending = asyncio.Event(), asyncio.Event()
    if channel is not None:
        channel.start(gateway.fleet)
    admin_app = build_app(gateway, registry, channel)
    serving = asyncio.create_task(serve(admin_app, admin, drain_timeout_s=1.0, stop=stop_admin, tls=tls))
    await asyncio.sleep(0)  # `serve` has put its own signal handlers in place; these replace them
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    waiting = asyncio.create_task(ending.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await service.drain()
    stop_admin.set()
    await serving
    if channel is not None:
        channel.stop()
    await service.stop()
