"""Probe runs on demand: which GPU, whether now, the run in a thread, and what it says about the GPU."""

import asyncio
import logging
import uuid as uuids
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage_core.gpu_health.guard import Budget, budget_reason
from tonnage_core.gpu_health.profile import GpuIdentity
from tonnage_core.gpu_health.rules import HealthReadings
from tonnage_core.gpu_health.throttle import HARDWARE
from tonnage_gpu_agent.book import ProfileBook
from tonnage_gpu_agent.errors import AgentError, ProbeRefusedError, UnknownGpuError
from tonnage_gpu_agent.lease import node_lease
from tonnage_gpu_agent.metrics import AgentMetrics
from tonnage_gpu_agent.port import Device
from tonnage_gpu_agent.probes import FULL, select
from tonnage_gpu_agent.runs import RunOptions, RunReport, run_suite
from tonnage_gpu_agent.telemetry import DeviceState, DeviceView, Snapshot, Telemetry
from tonnage_gpu_agent.xids import XidLog
from tonnage_runtime.clock import Clock

log = logging.getLogger(__name__)
EXPECTED_S = {"quick": 25.0, "full": 120.0}
KEPT_RUNS = 50
SpecLookup = Callable[[str], tuple[str, Mapping[str, float | None]]]
"""A driver's product name -> the catalogue's name and the data sheet's figures; the product itself and none when it
is not in the catalogue."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What was asked for. `gpu` is an index or a uuid, None for every GPU of the node in turn."""

    suite: str = "quick"
    only: tuple[str, ...] = ()
    gpu: str | None = None


@dataclass
class ProbeRun:
    """A run and what came of it; `state` is running or done."""

    id: str
    request: ProbeRequest
    state: str = "running"
    gpus: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    duration_s: float = 0.0

    def document(self, version: str) -> dict[str, Any]:
        """The probe report of CONTRACTS, with the run's state."""
        return {
            "schema": "tonnage.probe/1",
            "version": version,
            "id": self.id,
            "suite": self.request.suite,
            "state": self.state,
            "gpus": self.gpus,
            "refused": self.refused,
            "duration_s": round(self.duration_s, 3),
        }


@dataclass(frozen=True, slots=True)
class ProberPorts:
    """What a prober works with."""

    telemetry: Telemetry
    book: ProfileBook
    metrics: AgentMetrics
    xids: XidLog
    clock: Clock
    lookup: SpecLookup
    publish: Callable[[Mapping[str, Any]], None] = lambda document: None
    others: Callable[[str], Sequence[Mapping[str, Any]]] = lambda product: ()
    """A driver's product name -> GpuProfiles of other nodes' GPUs of it, as far as they are known."""


@dataclass(frozen=True, slots=True)
class ProberLimits:
    """When and how long a run may be. `node` names the node in profiles."""

    node: str
    version: str
    timeout_s: float = 300.0
    settle_s: float = 2.0
    lease_path: str = ""
    budget: Budget = field(default_factory=Budget)


class Prober:
    """At most one run at a time on a node; the report of the last `KEPT_RUNS` runs is kept."""

    def __init__(
        self,
        ports: ProberPorts,
        limits: ProberLimits,
        run: Callable[..., RunReport] = run_suite,
    ) -> None:
        self._ports, self._limits, self._run = ports, limits, run
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: str | None = None
        self.runs: OrderedDict[str, ProbeRun] = OrderedDict()

    def start(self, request: ProbeRequest) -> ProbeRun:
        """Begin a run; `ProbeRefusedError` when there is no GPU or a run goes on, `BadInputError` for a bad name."""
        select(request.suite, request.only)
        if self._closing is not None:
            raise ProbeRefusedError("busy", self._closing)
        views = self._targets(request)
        if self.running:
            self._ports.metrics.skipped.labels("busy").inc()
            raise ProbeRefusedError("busy", "a probe run goes on already: wait for it")
        run = ProbeRun(uuids.uuid4().hex[:12], request)
        self.runs[run.id] = run
        while len(self.runs) > KEPT_RUNS:
            self.runs.popitem(last=False)
        task = asyncio.create_task(self._go(run, views))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    @property
    def running(self) -> bool:
        """Whether a run goes on."""
        return self._lock.locked() or any(run.state == "running" for run in self.runs.values())

    async def close(self) -> None:
        """End the run that goes on and take no other: a child must not measure without its guard."""
        self._closing = "the agent was told to stop"
        await self.finish()

    async def finish(self) -> None:
        """Wait for the run that goes on."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _targets(self, request: ProbeRequest) -> list[DeviceView]:
        views = self._ports.telemetry.views()
        if not views:
            self._ports.metrics.skipped.labels("no_gpu").inc()
            raise ProbeRefusedError("no_gpu", f"no GPU to probe: {self._ports.telemetry.reason}")
        if request.gpu is None:
            return views
        found = [v for v in views if str(v.index) == request.gpu or (v.identity and v.identity.uuid == request.gpu)]
        if not found:
            raise UnknownGpuError(f"no GPU {request.gpu!r}: give an index below {len(views)} or a uuid")
        return found

    async def _go(self, run: ProbeRun, views: Sequence[DeviceView]) -> None:
        began = self._ports.clock.monotonic()
        async with self._lock:
            for view in views:
                if self._closing is not None:
                    run.refused.append({"index": view.index, "code": "busy", "reason": self._closing})
                    continue
                try:
                    run.gpus.append(await self._one(run.request, view))
                except ProbeRefusedError as error:
                    self._ports.metrics.skipped.labels(error.code).inc()
                    run.refused.append({"index": view.index, "code": error.code, "reason": str(error)})
                except (AgentError, OSError) as error:
                    run.refused.append({"index": view.index, "code": "error", "reason": str(error)})
                except Exception as error:
                    log.exception("probe run failed")
                    run.refused.append({"index": view.index, "code": "error", "reason": repr(error)[:300]})
        run.duration_s = self._ports.clock.monotonic() - began
        run.state = "done"
        log.info("probe run done", extra={"id": run.id, "gpus": len(run.gpus), "refused": run.refused})

    async def _one(self, request: ProbeRequest, view: DeviceView) -> dict[str, Any]:
        if view.state is not DeviceState.OK or view.identity is None or view.snapshot is None:
            raise ProbeRefusedError("busy", f"GPU {view.index} is {view.state.value}: {view.detail}")
        device, started = view.identity, self._ports.clock.wall()
        record = self._ports.book.record(device.uuid)
        wait = budget_reason(record.runs, started, EXPECTED_S[request.suite], self._limits.budget)
        if wait is not None:
            raise ProbeRefusedError(*wait)
        options = RunOptions(
            request.suite,
            select(request.suite, request.only),
            self._limits.timeout_s,
            self._limits.settle_s,
            cancelled=lambda: self._closing,
        )
        devices = [device, *self._peers(device)] if request.suite == FULL else [device]
        with node_lease(self._limits.lease_path):
            report = await asyncio.to_thread(self._run, self._ports.telemetry.driver, devices, options)
        self._ports.metrics.runs.labels(request.suite, report.outcome).inc()
        self._ports.metrics.run_seconds.labels(request.suite).observe(report.seconds)
        return self._judged(device, report, view.snapshot, started)

    def _peers(self, device: Device) -> list[Device]:
        views = self._ports.telemetry.views()
        return [v.identity for v in views if v.identity and v.state is DeviceState.OK and v.identity != device]

    def _judged(self, device: Device, report: RunReport, snapshot: Snapshot, started: float) -> dict[str, Any]:
        name, spec = self._ports.lookup(device.product)
        xids = self._ports.xids.since(device.uuid, started)
        evidence = self._ports.book.judge(
            report, uuid=device.uuid, spec=spec, health=health(snapshot, report, xids), fleet=self._fleet(device)
        )
        document = self._ports.book.conclude(
            GpuIdentity(
                self._limits.node,
                device.index,
                device.uuid,
                name,
                device.product,
                report.memory_bytes or device.memory_bytes,
            ),
            report,
            evidence,
            now=self._ports.clock.wall(),
            context=run_context(device, report),
            version=self._limits.version,
        )
        self._ports.publish(document)
        return document

    def _fleet(self, device: Device) -> dict[str, list[float]]:
        """Ceilings of the other GPUs of this product: the node's own, and other nodes' as far as they are known."""
        found: dict[str, list[float]] = {}
        own = [
            record.profile
            for uuid, record in self._ports.book.records.items()
            if uuid != device.uuid and record.profile is not None and record.profile["product"] == device.product
        ]
        for profile in [*own, *self._ports.others(device.product)]:
            for key, value in profile["ceilings"].items():
                if isinstance(value, int | float):
                    found.setdefault(key, []).append(float(value))
        return found


def run_context(device: Device, report: RunReport) -> dict[str, Any]:
    """The profile's context: versions, and the GPU's state under the last load that was measured."""
    last = next((p.context for p in reversed(report.points) if p.context), {})
    return {
        "driver": device.driver,
        "vbios": device.vbios,
        **report.versions,
        **last,
        "suite_s": round(report.seconds, 3),
        "probe_s": report.seconds_by_probe,
        **({"peers_left_out": {str(i): why for i, why in report.left_out.items()}} if report.left_out else {}),
    }


def health(snapshot: Snapshot | None, report: RunReport | None, xids: Sequence[int]) -> HealthReadings:
    """What telemetry says that counts as evidence, with the throttle bits seen while probes ran."""
    bits = {name for point in (report.points if report else ()) for name in point.context.get("throttle", ())}
    if snapshot is None:
        return HealthReadings(hardware_throttle=tuple(sorted(bits & HARDWARE)), xids=tuple(xids))
    return HealthReadings(
        uncorrectable_ecc=snapshot.value("ecc", "uncorrected"),
        remap_failure=_flag(snapshot.value("remap_failure")),
        remap_pending=_flag(snapshot.value("remap_pending")),
        hardware_throttle=tuple(sorted(bits & HARDWARE)),
        xids=tuple(xids),
    )


def _flag(value: float | None) -> bool | None:
    return None if value is None else value > 0
