"""Keeps this node's GpuProfile resources true, obeys their probe annotation, and learns of other nodes' GPUs.

Each step compares what should be kept with what is. A failure costs the step alone: telemetry does not know of it.
"""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tonnage_core.errors import TonnageError
from tonnage_gpu_agent.port import Device
from tonnage_gpu_agent.prober import Prober, ProbeRequest, ProberPorts, ProbeRun
from tonnage_gpu_agent.profile_object import (
    SUITES,
    ProbeHandled,
    handled_from,
    profile_labels,
    profile_name,
    profile_status,
)
from tonnage_gpu_agent.profile_store import ProfileStore, ProfileStoreError, StoredProfile

log = logging.getLogger(__name__)
RUNNING_S = 1.0
BACKOFF_MOST_S = 300.0


@dataclass(frozen=True, slots=True)
class SyncTimes:
    """Seconds: between steps, between looks at other nodes, and until an unchanged status is applied again."""

    step_s: float = 30.0
    fleet_s: float = 900.0
    refresh_s: float = 900.0


@dataclass
class Held:
    """What is held of one resource: the request that was taken, and the status that was applied, and when."""

    handled: ProbeHandled | None = None
    applied: Mapping[str, Any] | None = None
    applied_at: float = 0.0
    run: ProbeRun | None = None


class FleetEvidence:
    """Other nodes' GPUs by product, as last read; after four periods without a good look they are unknown again."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._seen: dict[str, tuple[float, Sequence[Mapping[str, Any]]]] = {}
        self.now = 0.0

    def due(self, product: str) -> bool:
        """Whether it is time to look again."""
        return product not in self._seen or self.now - self._seen[product][0] >= self._period_s

    def learn(self, product: str, statuses: Sequence[Mapping[str, Any]]) -> None:
        """What a look has found."""
        self._seen[product] = (self.now, statuses)

    def of(self, product: str) -> Sequence[Mapping[str, Any]]:
        """Statuses of other nodes' GPUs of `product` that have ceilings."""
        at, statuses = self._seen.get(product, (self.now, ()))
        if self.now - at > 4 * self._period_s:
            return ()
        return [s for s in statuses if s.get("product") == product and isinstance(s.get("ceilings"), dict)]


class ProfileSync:
    """One node's profiles. `run` is the loop; `step` is one look, and never raises for the store's sake."""

    def __init__(self, store: ProfileStore, node: str, version: str, times: SyncTimes | None = None) -> None:
        self._store, self._node, self._version = store, node, version
        self._times = times or SyncTimes()
        self._held: dict[str, Held] = {}
        self._wake: asyncio.Event | None = None
        self._failures = 0
        self._wish_s = 0.0
        self.fleet = FleetEvidence(self._times.fleet_s)

    def wake(self) -> None:
        """Take the next step soon; from the loop's thread."""
        if self._wake is not None:
            self._wake.set()

    async def run(self, ports: ProberPorts, prober: Prober) -> None:
        """Steps until cancelled."""
        loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()

        def changed() -> None:
            loop.call_soon_threadsafe(self.wake)

        self._store.start(changed)
        try:
            while True:
                self._wake.clear()
                await self.step(ports, prober)
                if self._failures:
                    await asyncio.sleep(self.pause_s())
                else:
                    await self._rest()
        finally:
            await asyncio.to_thread(self._store.stop)

    async def _rest(self) -> None:
        assert self._wake is not None
        running = any(held.run is not None for held in self._held.values())
        try:
            async with asyncio.timeout(RUNNING_S if running else self._times.step_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def pause_s(self) -> float:
        """Seconds to wait after failures in a row: doubled each time, at most `BACKOFF_MOST_S` or the server's wish."""
        grown = self._times.step_s / 8 * 2.0 ** min(self._failures, 16)
        return min(BACKOFF_MOST_S, max(grown, self._wish_s)) * random.uniform(1.0, 1.2)

    async def step(self, ports: ProberPorts, prober: Prober) -> None:
        """One look at every GPU of the node."""
        self.fleet.now = ports.clock.monotonic()
        try:
            own = self._store.own()
            for device in [v.identity for v in ports.telemetry.views() if v.identity is not None]:
                await self._one(ports, prober, device, own.get(profile_name(self._node, device.index)))
            await self._look_around(ports)
        except ProfileStoreError as error:
            if error.outcome != "starting":
                log.warning("GpuProfile not kept", extra={"outcome": error.outcome, "reason": str(error)})
            self._failures, self._wish_s = self._failures + 1, error.retry_after_s or 0.0
        else:
            self._failures, self._wish_s = 0, 0.0

    async def _one(self, ports: ProberPorts, prober: Prober, device: Device, seen: StoredProfile | None) -> None:
        held = self._held.get(profile_name(self._node, device.index))
        if held is None:
            held = Held(_resumed(handled_from(seen.status.get("probeHandled"))) if seen else None)
            self._held[profile_name(self._node, device.index)] = held
        self._close_run(ports, device, held)
        request = seen.request if seen else None
        if request is None and held.run is None:
            held.handled = None
        if request is not None and held.run is None and (held.handled is None or held.handled.request != request):
            await self._obey(ports, prober, device, held, request)
        status = self._status(ports, device, held.handled)
        stale = ports.clock.monotonic() - held.applied_at >= self._times.refresh_s
        if seen is None or stale or status != held.applied:
            await self._put(ports, device, held, status)

    async def _obey(self, ports: ProberPorts, prober: Prober, device: Device, held: Held, request: str) -> None:
        """Take a request exactly once: it is written down as taken before the run starts; while another run goes on it
        waits."""
        if request not in SUITES:
            reason = f"the annotation says {request[:80]!r}: it takes quick or full"
            held.handled = ProbeHandled(request, "refused", _stamp(ports), reason)
            ports.metrics.probe_requests.labels("refused").inc()
            return
        if prober.running:
            return
        before, held.handled = held.handled, ProbeHandled(request, "started", _stamp(ports))
        try:
            await self._put(ports, device, held, self._status(ports, device, held.handled))
        except ProfileStoreError:
            held.handled = before
            raise
        try:
            held.run = prober.start(ProbeRequest(request, (), device.uuid))
            ports.metrics.probe_requests.labels("started").inc()
        except TonnageError as error:
            held.handled = ProbeHandled(request, "refused", _stamp(ports), str(error))
            ports.metrics.probe_requests.labels("refused").inc()

    def _close_run(self, ports: ProberPorts, device: Device, held: Held) -> None:
        """Say what became of the run that was started."""
        run = held.run
        if run is None or run.state != "done" or held.handled is None:
            return
        refusals = [str(found["reason"]) for found in run.refused]
        outcome = "refused" if refusals else "done"
        held.handled = ProbeHandled(held.handled.request, outcome, _stamp(ports), "; ".join(refusals))
        held.run = None

    async def _put(self, ports: ProberPorts, device: Device, held: Held, status: Mapping[str, Any]) -> None:
        name = profile_name(self._node, device.index)
        await asyncio.to_thread(self._store.put, name, profile_labels(self._node, device.product), status)
        held.applied, held.applied_at = status, ports.clock.monotonic()
        ports.metrics.profile_applied.labels(str(device.index), device.uuid).set(ports.clock.wall())

    def _status(self, ports: ProberPorts, device: Device, handled: ProbeHandled | None) -> dict[str, Any]:
        record = ports.book.record(device.uuid)
        verdict = record.profile["verdict"] if record.profile is not None else record.verdict.document()
        name, _ = ports.lookup(device.product)
        identity = {
            "node": self._node,
            "index": device.index,
            "uuid": device.uuid,
            "name": name,
            "product": device.product,
            "memory_bytes": device.memory_bytes,
        }
        return profile_status(identity, record.profile, verdict, handled, self._version)

    async def _look_around(self, ports: ProberPorts) -> None:
        for product in {v.identity.product for v in ports.telemetry.views() if v.identity is not None}:
            if self.fleet.due(product):
                self.fleet.learn(product, await asyncio.to_thread(self._store.fleet, product))
                ports.metrics.fleet_gpus.labels(product).set(len(self.fleet.of(product)))


def _resumed(handled: ProbeHandled | None) -> ProbeHandled | None:
    """A run that was started by an agent that is no more has ended unseen; it is not run again."""
    if handled is None or handled.outcome != "started":
        return handled
    return replace(handled, outcome="interrupted", reason="the agent was restarted during the run")


def _stamp(ports: ProberPorts) -> str:
    return datetime.fromtimestamp(ports.clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
