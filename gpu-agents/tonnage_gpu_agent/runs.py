"""One probe run on one GPU: idle check, killable child, memory watch, and the report even when it is cut short."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tonnage_core.gpu_health.guard import (
    ChildMemory,
    GrowthRule,
    GrowthWatch,
    IdleRule,
    Occupancy,
    busy_reason,
    watch,
)
from tonnage_core.gpu_health.measurement import Measurement, PointStatus, measurement_from
from tonnage_gpu_agent.bounded import bounded
from tonnage_gpu_agent.child_process import LOOK_S, Child, ChildEnd, Message
from tonnage_gpu_agent.errors import (
    AgentError,
    DeviceLostError,
    DriverHungError,
    FieldUnsupportedError,
    ProbeRefusedError,
)
from tonnage_gpu_agent.fields import BY_NAME, plausible
from tonnage_gpu_agent.port import Device, GpuDriver, GpuProcess
from tonnage_gpu_agent.probes import ProbeEntry

log = logging.getLogger(__name__)


Trace = Callable[[Occupancy, int | None, ChildMemory | None], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run and how long at most. `rehearse` runs every probe at toy sizes on the host, without a GPU.

    `trace` is called with each look of the guard: what is used, what the driver says is ours, what the child says.
    `cancelled` says why the run is to end, None while it may go on."""

    suite: str
    entries: Sequence[ProbeEntry]
    timeout_s: float = 300.0
    settle_s: float = 2.0
    seed: int = 0
    scratch_dir: str = ""
    rehearse: bool = False
    idle: IdleRule = field(default_factory=IdleRule)
    growth: GrowthRule = field(default_factory=GrowthRule)
    trace: Trace | None = None
    hang_after_s: float = 5.0
    cancelled: Callable[[], str | None] = lambda: None


@dataclass
class RunReport:
    """What came of a run. `outcome` is ok, busy, timeout or error; points measured before a stop are kept.

    `memory_bytes` is what CUDA reports, which is less than the driver's total. `left_out` says why GPUs that could
    have been peers were not."""

    outcome: str = "ok"
    detail: str = ""
    points: list[Measurement] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)
    seconds_by_probe: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    memory_bytes: int | None = None
    stop_latency_s: float | None = None
    left_out: dict[int, str] = field(default_factory=dict)


def occupancy(driver: GpuDriver, index: int, own: Callable[[int], bool]) -> tuple[Occupancy, int | None]:
    """One look: what is used, by which strangers, and what the driver attributes to processes that are `own`.

    Where none of ours is listed PIDs are invisible (another PID namespace): strangers are then unknown.
    """
    listed = _processes(driver, index)
    mine = [p for p in listed or () if own(p.pid)]
    seen = Occupancy(
        used_bytes=_whole(_value(driver, index, "memory", "used")),
        foreign_pids=None if listed is None else tuple(p.pid for p in listed if not own(p.pid)),
        utilization=_value(driver, index, "utilization", "gpu"),
    )
    known = [p.used_bytes for p in mine if p.used_bytes is not None]
    return seen, sum(known) if known and len(known) == len(mine) else None


def _processes(driver: GpuDriver, index: int) -> Sequence[GpuProcess] | None:
    try:
        return driver.processes(index)
    except FieldUnsupportedError:
        return None


def _value(driver: GpuDriver, index: int, name: str, label: str) -> float | None:
    try:
        kept, _ = plausible(BY_NAME[name], driver.read(index, name))
    except FieldUnsupportedError:
        return None
    return next((value for labels, value in kept if labels == (label,)), None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def check_idle(driver: GpuDriver, device: Device, options: RunOptions) -> int:
    """Bytes in use on the idle GPU; `ProbeRefusedError` when it is not idle in two looks `settle_s` apart, or is
    split by MIG (its instances are other devices, whose floors nobody knows)."""
    if device.mig:
        raise ProbeRefusedError("mig", f"GPU {device.index} is split by MIG: not probed")
    reason = None
    for attempt in range(2):
        if attempt:
            time.sleep(options.settle_s)
        seen, _ = occupancy(driver, device.index, lambda pid: pid == os.getpid())
        reason = busy_reason(seen, options.idle)
        if reason is None:
            return seen.used_bytes or 0
    raise ProbeRefusedError("busy", f"GPU {device.index} is not idle: {reason}")


class Guard:
    """The watch over a running child on its GPU and its peers: each call is one look, and says why to stop or None.

    What the child's own word explains is the memory of the first GPU; on its peers only visible PIDs tell a stranger.
    """

    def __init__(
        self, driver: GpuDriver, indices: Sequence[int], pid: int, before_bytes: int, options: RunOptions
    ) -> None:
        self._driver, self._indices, self._pid = driver, tuple(indices), pid
        self._rule, self._trace = options.growth, options.trace
        self._state = GrowthWatch(before_bytes)
        self._visible = False
        self._ours: set[int] = set()
        self._word: ChildMemory | None = None
        self._heard = 0.0

    def hear(self, word: ChildMemory) -> None:
        """What the child just said about its memory."""
        self._word, self._heard = word, time.monotonic()

    def __call__(self) -> str | None:
        """One look."""
        try:
            reason = self._look(self._indices[0])
            for index in self._indices[1:]:
                reason = reason or self._peer(index)
        except DeviceLostError as error:
            return f"the GPU was lost: {error}"
        return reason

    def _look(self, index: int) -> str | None:
        seen, own = occupancy(self._driver, index, self._is_own)
        self._visible = self._visible or own is not None
        if not self._visible:
            seen = Occupancy(seen.used_bytes, None, seen.utilization)
        word = replace(self._word, age_s=time.monotonic() - self._heard) if self._word else None
        if self._trace is not None:
            self._trace(seen, own, word)
        self._state, reason = watch(self._state, seen, own, word, self._rule)
        return reason

    def _peer(self, index: int) -> str | None:
        foreign = occupancy(self._driver, index, self._is_own)[0].foreign_pids if self._visible else None
        return f"another process came to GPU {index}: {', '.join(map(str, foreign[:5]))}" if foreign else None

    def _is_own(self, pid: int) -> bool:
        """The child or what it started: all share its session. The driver lists a rank for a while after its end, when
        nothing tells its session any more: what was ours stays ours."""
        try:
            mine = os.getsid(pid) == self._pid
        except (ProcessLookupError, PermissionError):
            mine = pid == self._pid or pid in self._ours
        if mine:
            self._ours.add(pid)
        return mine


class Lookout:
    """Looks ten times a second in a thread of its own, since a driver call may block for ever: then that is the
    reason to stop, and the run counts as timed out."""

    def __init__(self, look: Callable[[], str | None], hang_after_s: float = 5.0) -> None:
        self._look, self._hang_after_s = look, hang_after_s
        self._stop = threading.Event()
        self._reason: str | None = None
        self._began: float | None = None
        self.hung = False
        threading.Thread(target=self._loop, name="probe-lookout", daemon=True).start()

    def __call__(self) -> str | None:
        """Why to stop, or None."""
        began = self._began
        if began is not None and time.monotonic() - began > self._hang_after_s:
            self.hung = True
            return f"a driver call has not returned for {self._hang_after_s:.0f} s"
        return self._reason

    def close(self) -> None:
        """End the thread, unless it hangs in the driver."""
        self._stop.set()

    def _loop(self) -> None:
        while self._reason is None and not self._stop.wait(LOOK_S):
            self._began = time.monotonic()
            try:
                self._reason = self._look()
            except AgentError as error:
                self._reason = f"the guard cannot look: {error}"
            self._began = None


def run_suite(driver: GpuDriver | None, devices: Sequence[Device], options: RunOptions) -> RunReport:
    """Run the probes on `devices[0]`, with those of the rest that are idle as its peers.

    `driver` is None in a rehearsal. `ProbeRefusedError` when the device is not idle; any other end is in the report.
    """
    began = time.monotonic()
    report = RunReport()
    try:
        before = _idle(driver, devices[0], options) if driver else 0
    except DriverHungError as error:
        _conclude(report, ChildEnd(None, str(error), timed_out=True), options)
        return report
    devices = [devices[0], *(_idle_peers(driver, devices[1:], options, report) if driver else ())]
    child = Child(_command(devices, options))
    guard = Guard(driver, [d.index for d in devices], child.pid, before, options) if driver else None
    lookout = Lookout(guard, options.hang_after_s) if guard else None

    def on_message(message: Message) -> None:
        _take(report, message)
        if guard and message["type"] == "memory":
            guard.hear(
                ChildMemory(int(message["reserved"]), bool(message["warming"]), helpers=bool(message["helpers"]))
            )

    try:
        end = child.run(on_message, lambda: options.cancelled() or (lookout() if lookout else None), options.timeout_s)
    finally:
        if lookout is not None:
            lookout.close()
    if lookout is not None:
        end = replace(end, timed_out=end.timed_out or lookout.hung)
    report.seconds = time.monotonic() - began
    _conclude(report, end, options)
    return report


def _idle(driver: GpuDriver, device: Device, options: RunOptions) -> int:
    """`check_idle`, which may hang in the driver: `DriverHungError` then."""
    patience = options.hang_after_s + options.settle_s
    return bounded(lambda: check_idle(driver, device, options), patience, f"GPU {device.index}")


def _idle_peers(driver: GpuDriver, peers: Sequence[Device], options: RunOptions, report: RunReport) -> Iterator[Device]:
    """The peers that are idle: one that works, is lost or hangs must not keep this GPU from being measured."""
    for peer in peers:
        try:
            _idle(driver, peer, options)
        except (ProbeRefusedError, AgentError) as error:
            report.left_out[peer.index] = str(error)
        else:
            yield peer


def _command(devices: Sequence[Device], options: RunOptions) -> list[str]:
    command = [sys.executable, "-m", "tonnage_gpu_agent.probes.main"]
    command += [f"{entry.name}={entry.module}" for entry in options.entries]
    command += ["--suite", options.suite, "--seed", str(options.seed), "--scratch-dir", options.scratch_dir]
    return [*command, "--rehearse"] if options.rehearse else [*command, "--device", ",".join(d.uuid for d in devices)]


def _take(report: RunReport, message: Message) -> None:
    kind = message["type"]
    if kind == "point":
        report.points.append(measurement_from(message["point"]))
    elif kind == "hello":
        report.versions = message["versions"]
        report.memory_bytes = message.get("memory_bytes")
    elif kind == "end":
        report.seconds_by_probe[message["name"]] = message["seconds"]


def _conclude(report: RunReport, end: ChildEnd, options: RunOptions) -> None:
    """Outcome and detail; probes that did not come to their end are marked, so that a gap is never silence."""
    if end.timed_out:
        report.outcome, report.detail = "timeout", end.stopped or f"killed after {options.timeout_s:.0f} s"
    elif end.stopped and options.cancelled() is not None:
        report.outcome, report.detail = "error", end.stopped
    elif end.stopped:
        report.outcome, report.detail, report.stop_latency_s = "busy", end.stopped, end.stop_took_s
    elif end.exit_code != 0:
        lines = [line for line in end.errors.splitlines() if line.strip()]
        report.outcome, report.detail = "error", lines[-1][:300] if lines else f"exit code {end.exit_code}"
    if report.outcome == "ok":
        return
    log.warning("probe run cut short", extra={"outcome": report.outcome, "detail": report.detail})
    status = PointStatus.BUSY if report.outcome == "busy" else PointStatus.ERROR
    for entry in options.entries:
        if entry.name not in report.seconds_by_probe:
            report.points.append(Measurement(entry.name, status, detail=report.detail))
