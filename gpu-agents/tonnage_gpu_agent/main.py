"""The GPU agent's process: telemetry threads, XID sources, the prober, and the HTTP server over them.

Settings are TONNAGE_AGENT_* in the environment.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version as package_version
from pathlib import Path

from fastapi import FastAPI

from tonnage_core.errors import TonnageError
from tonnage_core.gpu_health.guard import Budget
from tonnage_core.gpu_health.rules import spec_shares
from tonnage_core.gpu_health.xid import XidPolicy, classify, label
from tonnage_core.hardware.catalogue import find_gpu
from tonnage_core.hardware.spec import UnknownGpuError as NotInCatalogueError
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.adapters.kernel_log import KernelLog
from tonnage_gpu_agent.adapters.pod_resources import Attribution, PodResources
from tonnage_gpu_agent.app import build_app
from tonnage_gpu_agent.book import ProfileBook
from tonnage_gpu_agent.metrics import AgentMetrics, Published
from tonnage_gpu_agent.port import GpuDriver
from tonnage_gpu_agent.prober import Prober, ProbeRequest, ProberLimits, ProberPorts, health
from tonnage_gpu_agent.profile_sync import ProfileSync, SyncTimes
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_gpu_agent.telemetry import DeviceView, Telemetry
from tonnage_gpu_agent.xids import XidEvent, XidLog, by_pci
from tonnage_runtime.arguments import no_arguments
from tonnage_runtime.clock import Clock, SystemClock
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.metrics import new_registry
from tonnage_runtime.settings import load_settings

log = logging.getLogger("tonnage_gpu_agent")
PASSIVE_S = 30.0
PODS_S = 15.0
SPEC_FIELDS = ("hbm_gbps", "bf16_tflops", "fp8_tflops", "int8_tops", "nvlink_gbps", "pcie_gbps")


def lookup_spec(product: str) -> tuple[str, Mapping[str, float | None]]:
    """Catalogue name and data-sheet figures of a driver's product name."""
    try:
        spec = find_gpu(product)
    except NotInCatalogueError:
        return product, {}
    return spec.name, {name: getattr(spec, name) for name in SPEC_FIELDS}


def make_driver(settings: AgentSettings) -> GpuDriver:
    """NVML, or one made-up GPU."""
    if settings.driver == "fake":
        return FakeDriver([fake_gpu()])
    from tonnage_gpu_agent.adapters.nvml import NvmlDriver

    return NvmlDriver()


@dataclass(frozen=True, slots=True)
class Agent:
    """The assembled agent."""

    app: FastAPI
    ports: ProberPorts
    prober: Prober


def assemble(settings: AgentSettings, driver: GpuDriver, clock: Clock) -> Agent:
    """Wire the parts; nothing runs before the application starts."""
    registry = new_registry()
    metrics = AgentMetrics(registry)
    xids = XidLog(lambda event: _count_xid(metrics, telemetry, event))
    telemetry = Telemetry(
        driver,
        clock,
        interval_s=settings.interval_s,
        hang_after_s=settings.hang_after_s,
        retry_s=settings.retry_s,
        on_xid=lambda uuid, code: _add_xid(xids, uuid, code, clock),
    )
    attribution = Attribution(_pod_resources(settings.kubelet_socket), metrics.attribution_errors.inc)

    def on_line(line: str) -> None:
        pcis = {v.identity.uuid: v.identity.pci for v in telemetry.views() if v.identity}
        xids.add_kernel_line(line, by_pci(pcis), clock.wall())

    policy = XidPolicy(frozenset(settings.xid_ignored), frozenset(settings.xid_hardware))
    book = ProfileBook(settings.state_dir, xids=policy)
    version = package_version("tonnage")
    node = settings.node or socket.gethostname()
    sync = _profile_sync(settings, node, version, metrics)
    ports = ProberPorts(telemetry, book, metrics, xids, clock, lookup_spec)
    if sync is not None:
        ports = replace(ports, publish=lambda document: sync.wake(), others=sync.fleet.of)
    limits = ProberLimits(
        node,
        version,
        settings.probe_timeout_s,
        settings.probe_settle_s,
        settings.lease_path,
        Budget(settings.probe_seconds_per_day, settings.probe_cooldown_s),
    )
    prober = Prober(ports, limits)
    metrics.sources.views = telemetry.views
    metrics.sources.mode = lambda: (telemetry.mode.value, telemetry.reason)
    metrics.sources.pods = lambda: attribution.uses
    metrics.sources.published = lambda uuid: _published(book, uuid)
    background = Background(ports, prober, attribution, KernelLog(settings.kernel_log, on_line), sync)
    app = build_app(
        ports, prober, registry, version, lifespan=lambda app: _running(background), access_file=settings.access_file
    )
    return Agent(app, ports, prober)


def _profile_sync(settings: AgentSettings, node: str, version: str, metrics: AgentMetrics) -> ProfileSync | None:
    """GpuProfile resources, when they are asked for; without a usable way to the cluster the agent does not start."""
    if not settings.kubernetes:
        return None
    from tonnage_gpu_agent.adapters.profile_kube import KubeProfiles
    from tonnage_runtime.kube import KubeClient, configuration

    def called(call: str, outcome: str) -> None:
        metrics.profile_calls.labels(call, outcome).inc()

    client = KubeClient(configuration(settings.kubeconfig), agent=f"tonnage-gpu-agent/{version}")
    times = SyncTimes(settings.profile_interval_s, settings.fleet_interval_s)
    return ProfileSync(KubeProfiles(client, node, called), node, version, times)


def _pod_resources(socket_path: str) -> PodResources | None:
    """The kubelet's answer, or None where there is no kubelet."""
    return PodResources(socket_path) if Path(socket_path).exists() else None


def _add_xid(xids: XidLog, uuid: str, code: int, clock: Clock) -> None:
    xids.add(uuid, code, clock.wall(), "driver")


def _count_xid(metrics: AgentMetrics, telemetry: Telemetry, event: XidEvent) -> None:
    index = next((str(v.index) for v in telemetry.views() if v.identity and v.identity.uuid == event.uuid), "")
    kind = classify(event.code)
    metrics.xids.labels(index, event.uuid, label(event.code), kind.value).inc()
    metrics.last_xid.labels(index, event.uuid, label(event.code)).set(event.at)
    log.warning("xid", extra={"gpu": index, "uuid": event.uuid, "xid": event.code, "class": kind.value})


def _published(book: ProfileBook, uuid: str) -> Published | None:
    record = book.records.get(uuid)
    if record is None:
        return Published("UNKNOWN")
    ceilings = record.profile["ceilings"] if record.profile else {}
    shares = spec_shares(ceilings, lookup_spec(record.profile["product"])[1]) if record.profile else {}
    return Published(record.verdict.status.value, record.verdict.last_evidence, ceilings, shares)


@dataclass(frozen=True, slots=True)
class Background:
    """What runs beside the server."""

    ports: ProberPorts
    prober: Prober
    attribution: Attribution
    kernel_log: KernelLog
    sync: ProfileSync | None = None


@asynccontextmanager
async def _running(background: Background) -> AsyncIterator[None]:
    """While the server runs: telemetry threads, the kernel log, the passive look; SIGUSR1 asks for a quick run."""
    background.ports.telemetry.start()
    background.kernel_log.start()
    watching = asyncio.create_task(_watch_health(background.ports))
    attributing = asyncio.create_task(_attribute(background.attribution))
    syncing = asyncio.create_task(_keep_profiles(background))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _probe_on_signal, background.prober)
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
        await background.prober.close()
        watching.cancel()
        attributing.cancel()
        syncing.cancel()
        await asyncio.wait([syncing])
        background.kernel_log.stop()
        background.ports.telemetry.stop()


async def _keep_profiles(background: Background) -> None:
    """GpuProfile resources, when they are kept. Whatever goes wrong there ends there: telemetry goes on."""
    if background.sync is None:
        return
    try:
        await background.sync.run(background.ports, background.prober)
    except Exception:
        log.exception("GpuProfiles are not kept any more: restart the agent")
        background.ports.metrics.profile_calls.labels("sync", "crashed").inc()


async def _attribute(attribution: Attribution) -> None:
    """Ask the kubelet who has which GPU, every `PODS_S` seconds."""
    while True:
        await asyncio.to_thread(attribution.refresh)
        await asyncio.sleep(PODS_S)


def _probe_on_signal(prober: Prober) -> None:
    try:
        prober.start(ProbeRequest())
    except TonnageError as error:
        log.warning("probe refused", extra={"reason": str(error)})


async def _watch_health(ports: ProberPorts) -> None:
    """Every half minute: what telemetry alone says can worsen a verdict."""
    looked: dict[str, float] = {}
    began = ports.clock.wall()
    while True:
        await asyncio.sleep(PASSIVE_S)
        for view in ports.telemetry.views():
            if view.identity is not None:
                uuid, now = view.identity.uuid, ports.clock.wall()
                if _judge_health(ports, view, looked.get(uuid, began), now):
                    looked[uuid] = now


def _judge_health(ports: ProberPorts, view: DeviceView, since: float, now: float) -> bool:
    """One GPU's passive look; XIDs count although a lost GPU has no readings. False when it failed, whatever failed:
    the others are judged, and the next look takes this one's XIDs as well."""
    if view.identity is None:
        return False
    try:
        xids = ports.xids.since(view.identity.uuid, since)
        ports.book.passive(view.identity.uuid, health(view.snapshot, None, xids), now)
    except Exception as error:  # noqa: BLE001 - a task boundary: verdicts must not end with one bad look
        ports.metrics.health_errors.inc()
        log.error("a verdict was not looked at", extra={"gpu": view.index, "reason": repr(error)[:300]})
        return False
    return True


async def run(environ: Mapping[str, str]) -> None:
    """Serve until told to stop."""
    settings = load_settings(AgentSettings, "agent", environ)
    configure_logging("gpu-agent", settings.log_level)
    agent = assemble(settings, make_driver(settings), SystemClock())
    sock = bind(settings.host, settings.port)
    log.info("gpu agent listens", extra={"host": settings.host, "port": sock.getsockname()[1]})
    await serve(agent.app, sock, tls=settings.tls)


def main() -> int:
    """Entry point; an expected error is one line and exit code 2."""
    try:
        no_arguments("python -m tonnage_gpu_agent.main", __doc__, sys.argv[1:])
        asyncio.run(run(os.environ))
    except TonnageError as error:
        print(f"tonnage-gpu-agent: {error}", file=sys.stderr)  # noqa: T201 - the one line before logging exists
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
