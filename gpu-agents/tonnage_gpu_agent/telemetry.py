"""Telemetry: one thread a GPU, so that a lost or hanging GPU blinds no other, and a watchdog over each thread."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tonnage_gpu_agent.errors import AgentError, DeviceLostError, FieldUnsupportedError, NoGpuError
from tonnage_gpu_agent.fields import FIELDS, plausible
from tonnage_gpu_agent.port import Device, GpuDriver, GpuProcess, MigInstance, Reading
from tonnage_runtime.clock import Clock

log = logging.getLogger(__name__)


class DeviceState(StrEnum):
    """`ok`, or why there are no readings: not answered yet, gone, in a driver call that does not return, or old."""

    STARTING = "starting"
    OK = "ok"
    LOST = "lost"
    HUNG = "hung"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One round of readings of a GPU, by field name. `processes` is None where the driver hides them."""

    device: Device
    taken: float
    readings: Mapping[str, tuple[Reading, ...]] = field(default_factory=dict)
    processes: tuple[GpuProcess, ...] | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    dropped: int = 0

    def value(self, name: str, *labels: str) -> float | None:
        """A single reading, or None when unknown."""
        return next((v for found, v in self.readings.get(name, ()) if found == labels), None)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """What is known of a GPU now. `snapshot` is None unless `state` is ok; `identity` is the last that was read."""

    index: int
    state: DeviceState
    identity: Device | None
    snapshot: Snapshot | None
    dropped_total: int
    detail: str = ""


class DeviceWatch:
    """Reads one GPU in a thread of its own. Any driver call may block for ever; `view` sees that by the clock."""

    def __init__(self, driver: GpuDriver, index: int, clock: Clock, *, interval_s: float, hang_after_s: float) -> None:
        self.index = index
        self._driver, self._clock = driver, clock
        self._interval_s, self._hang_after_s = interval_s, hang_after_s
        self._stop = threading.Event()
        self._busy_since: float | None = None
        self._latest: Snapshot | None = None
        self._lost = ""
        self._dropped = 0
        self._thread = threading.Thread(target=self._loop, name=f"gpu-{index}", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; a hanging one is left behind (it is a daemon)."""
        self._stop.set()

    def view(self) -> DeviceView:
        """The state by the clock now."""
        now = self._clock.monotonic()
        busy, latest = self._busy_since, self._latest
        identity = latest.device if latest else None
        state, detail = DeviceState.OK, ""
        if busy is not None and now - busy > self._hang_after_s:
            state, detail = DeviceState.HUNG, f"a driver call has not returned for {now - busy:.0f} s"
        elif self._lost:
            state, detail = DeviceState.LOST, self._lost
        elif latest is None:
            state = DeviceState.STARTING
        elif now - latest.taken > self._hang_after_s + 3 * self._interval_s:
            state, detail = DeviceState.STALE, f"last read {now - latest.taken:.0f} s ago"
        shown = latest if state is DeviceState.OK else None
        return DeviceView(self.index, state, identity, shown, self._dropped, detail)

    def read_once(self) -> None:
        """One round; a lost GPU is remembered and tried again in the next round."""
        self._busy_since = self._clock.monotonic()
        try:
            self._latest = self._round()
            if self._lost:
                log.info("gpu answers again", extra={"gpu": self.index})
            self._lost = ""
        except DeviceLostError as error:
            if not self._lost:
                log.error("gpu lost", extra={"gpu": self.index, "reason": str(error)})
            self._lost = str(error)
        finally:
            self._busy_since = None

    def _round(self) -> Snapshot:
        device = self._driver.device(self.index)
        readings: dict[str, tuple[Reading, ...]] = {}
        dropped = 0
        for known in FIELDS:
            self._busy_since = self._clock.monotonic()
            try:
                kept, lost = plausible(known, self._driver.read(self.index, known.name))
            except FieldUnsupportedError:
                continue
            dropped += lost
            if kept:
                readings[known.name] = tuple(kept)
        self._dropped += dropped
        return Snapshot(device, self._clock.monotonic(), readings, self._processes(), self._instances(device), dropped)

    def _processes(self) -> tuple[GpuProcess, ...] | None:
        try:
            return tuple(self._driver.processes(self.index))
        except FieldUnsupportedError:
            return None

    def _instances(self, device: Device) -> tuple[MigInstance, ...]:
        return tuple(self._driver.mig_instances(self.index)) if device.mig else ()

    def _loop(self) -> None:
        while not self._stop.is_set():
            self.read_once()
            self._stop.wait(self._interval_s)


class Mode(StrEnum):
    """`gpu`: watching GPUs. `no_gpu`: there is none, and why is known. `starting`: the driver has not answered yet."""

    STARTING = "starting"
    GPU = "gpu"
    NO_GPU = "no_gpu"


class Telemetry:
    """All GPUs of the node. The driver is opened in a thread, since opening may hang as well; while there is no GPU
    it is tried again every `retry_s`, because a driver may be installed after the agent starts."""

    def __init__(
        self,
        driver: GpuDriver,
        clock: Clock,
        *,
        interval_s: float = 5.0,
        hang_after_s: float = 10.0,
        retry_s: float = 60.0,
        on_xid: Callable[[str, int], None] | None = None,
    ) -> None:
        self.driver = driver
        self._clock = clock
        self._interval_s, self._hang_after_s, self._retry_s = interval_s, hang_after_s, retry_s
        self._on_xid = on_xid
        self._stop = threading.Event()
        self._began = clock.monotonic()
        self.mode = Mode.STARTING
        self.reason = "the driver has not answered yet"
        self.watches: list[DeviceWatch] = []

    def start(self) -> None:
        """Open the driver and watch its GPUs, in the background."""
        self._began = self._clock.monotonic()
        threading.Thread(target=self._open, name="gpu-open", daemon=True).start()

    def stop(self) -> None:
        """End every thread that still listens and close the driver unless a call hangs in it."""
        self._stop.set()
        for watch in self.watches:
            watch.stop()
        if self.mode is Mode.GPU and all(v.state is not DeviceState.HUNG for v in self.views()):
            self.driver.stop()

    def views(self) -> list[DeviceView]:
        """Every GPU's state now."""
        return [watch.view() for watch in self.watches]

    def not_ready(self) -> str | None:
        """Why the agent cannot take work, or None. Having no GPU is a stated mode, not a failure."""
        if self.mode is not Mode.STARTING:
            return None
        waited = self._clock.monotonic() - self._began
        return f"the GPU driver has not answered for {waited:.0f} s" if waited > self._hang_after_s else self.reason

    def _open(self) -> None:
        while not self._stop.is_set():
            try:
                count = self.driver.start()
            except NoGpuError as error:
                if self.mode is not Mode.NO_GPU:
                    log.warning("no gpu", extra={"reason": str(error), "retry_s": self._retry_s})
                self.mode, self.reason = Mode.NO_GPU, str(error)
                self._stop.wait(self._retry_s)
                continue
            self._watch(count)
            return

    def _watch(self, count: int) -> None:
        self.watches = [
            DeviceWatch(self.driver, i, self._clock, interval_s=self._interval_s, hang_after_s=self._hang_after_s)
            for i in range(count)
        ]
        self.mode, self.reason = Mode.GPU, f"{count} GPUs"
        log.info("watching gpus", extra={"count": count})
        for watch in self.watches:
            watch.start()
        if self._on_xid is not None:
            threading.Thread(target=self._listen, args=(self._on_xid,), name="gpu-xid", daemon=True).start()

    def _listen(self, on_xid: Callable[[str, int], None]) -> None:
        while not self._stop.is_set():
            try:
                event = self.driver.wait_xid(1.0)
            except AgentError as error:
                log.warning("xid events are not available", extra={"reason": str(error)})
                return
            if event is not None:
                on_xid(*event)
