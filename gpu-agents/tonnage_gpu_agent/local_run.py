"""A probe run from the command line: no server, no history; the driver, the guard and the child only."""

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.gpu_health.guide import guide_ratios
from tonnage_core.gpu_health.profile import GpuIdentity, ceilings, gpu_profile
from tonnage_core.gpu_health.rules import (
    HealthReadings,
    correctness_findings,
    no_baseline,
    spec_findings,
    telemetry_findings,
)
from tonnage_core.gpu_health.throttle import HARDWARE
from tonnage_core.gpu_health.verdict import Status, summarise
from tonnage_core.hardware.catalogue import find_gpu
from tonnage_core.hardware.spec import UnknownGpuError as NotInCatalogueError
from tonnage_gpu_agent.bounded import bounded
from tonnage_gpu_agent.errors import AgentError, DriverHungError, NoGpuError, ProbeRefusedError, UnknownGpuError
from tonnage_gpu_agent.port import Device, GpuDriver
from tonnage_gpu_agent.probes import FULL, select
from tonnage_gpu_agent.runs import RunOptions, RunReport, Trace, run_suite

SCHEMA = "tonnage.probe/1"
VERSION = "0.1.0"
MOST_TIMEOUT_S = 86400.0
START_S = 60.0
"""What opening the driver may take: without persistence mode it wakes every GPU first."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What was asked for on the command line; `gpus` are indices, none for all."""

    suite: str = "quick"
    only: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    timeout_s: float = 300.0
    seed: int = 0
    scratch_dir: str = ""
    rehearse: bool = False


def local_probe(options: LocalOptions, driver: GpuDriver | None = None, trace: Trace | None = None) -> dict[str, Any]:
    """The probe report. `NoGpuError` without a GPU, `BadInputError` for a wrong name; a GPU in use is UNKNOWN."""
    began = time.monotonic()
    if not 0 < options.timeout_s < MOST_TIMEOUT_S:
        raise BadInputError(f"a time-out of {options.timeout_s:g} s: give more than 0 and less than {MOST_TIMEOUT_S:g}")
    run = RunOptions(
        options.suite,
        select(options.suite, options.only),
        options.timeout_s,
        seed=options.seed,
        scratch_dir=options.scratch_dir,
        rehearse=options.rehearse,
        trace=trace,
    )
    if options.rehearse:
        host = Device(0, "host", "host")
        document = _profile(host, run_suite(None, [host], run))
        profiles = [document | {"rehearsal": True, "ceilings": {}, "curves": {}, "guide_ratios": []}]
    else:
        profiles = _measured(driver or _nvml(), options.gpus, run)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "suite": options.suite,
        "seed": options.seed,
        "gpus": profiles,
        "measured": all(p["outcome"] == "ok" for p in profiles),
        "duration_s": round(time.monotonic() - began, 3),
    }


def _measured(driver: GpuDriver, wanted: tuple[str, ...], run: RunOptions) -> list[dict[str, Any]]:
    """A profile of each GPU in turn, with the others as its peers in a full run. A GPU that is busy, lost or hangs
    says so in its own profile and hides no other."""
    count = bounded(driver.start, START_S, "opening the driver")
    indices = _chosen(count, wanted)
    found = {index: _device(driver, index, run) for index in indices}
    devices = [device for device in found.values() if isinstance(device, Device)]
    profiles = []
    for index, device in found.items():
        if isinstance(device, Device):
            peers = [other for other in devices if other != device] if run.suite == FULL else []
            profiles.append(_profile(device, _run(driver, [device, *peers], run)))
        else:
            profiles.append(_profile(Device(index, "", "unknown"), RunReport(outcome="error", detail=str(device))))
    with contextlib.suppress(DriverHungError):
        bounded(driver.stop, run.hang_after_s, "closing the driver")
    return profiles


def _device(driver: GpuDriver, index: int, run: RunOptions) -> Device | AgentError:
    try:
        return bounded(lambda: driver.device(index), run.hang_after_s, f"GPU {index}")
    except AgentError as error:
        return error


def _run(driver: GpuDriver, devices: list[Device], options: RunOptions) -> RunReport:
    """The run, or a report without points that says why it could not start."""
    try:
        return run_suite(driver, devices, options)
    except ProbeRefusedError as error:
        return RunReport(outcome=error.code, detail=str(error))
    except AgentError as error:
        return RunReport(outcome="error", detail=str(error))


def _nvml() -> GpuDriver:
    try:
        from tonnage_gpu_agent.adapters.nvml import NvmlDriver
    except ImportError as error:
        raise NoGpuError("nvidia-ml-py is not installed: pip install 'tonnage[agent]'") from error
    return NvmlDriver()


def _chosen(count: int, wanted: tuple[str, ...]) -> list[int]:
    for name in wanted:
        if name not in {str(index) for index in range(count)}:
            raise UnknownGpuError(f"no GPU {name[:40]!r}: this node has 0 to {count - 1}")
    return [index for index in range(count) if not wanted or str(index) in wanted]


def _profile(device: Device, report: RunReport) -> dict[str, Any]:
    """The GpuProfile of one run alone: data-sheet floors, correctness and throttling; there is no history here."""
    name, spec = _spec(device.product)
    throttled = {r for p in report.points for r in p.context.get("throttle", ())} & HARDWARE
    findings = [
        *correctness_findings(report.points),
        *telemetry_findings(HealthReadings(hardware_throttle=tuple(sorted(throttled)))),
    ]
    if report.outcome == "ok":
        measured = ceilings(report.points)
        findings += spec_findings(measured, spec) or [no_baseline(measured, None)]
    evidence = summarise(findings, active=report.outcome == "ok")
    status = evidence.status if report.outcome == "ok" or evidence.status is Status.FAIL else Status.UNKNOWN
    reasons = sorted({f"{f.code}: {f.text}" for f in evidence.findings if f.status is not Status.OK})
    if report.outcome != "ok":
        reasons.insert(0, f"{report.outcome}: {report.detail}")
    verdict = {"status": status.value, "reasons": reasons, "findings": [asdict(f) for f in evidence.findings]}
    identity = GpuIdentity(
        socket.gethostname(),
        device.index,
        device.uuid,
        name,
        device.product,
        report.memory_bytes or device.memory_bytes,
    )
    last = next((p.context for p in reversed(report.points) if p.context), {})
    context = {"driver": device.driver, **report.versions, **last, "probe_s": report.seconds_by_probe}
    if report.left_out:
        context["peers_left_out"] = {str(index): why for index, why in report.left_out.items()}
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = gpu_profile(
        identity, report.points, measured_at=stamp, context=context, verdict=verdict, version=VERSION
    )
    timing = {"outcome": report.outcome, "suite_s": round(report.seconds, 3), "stop_latency_s": report.stop_latency_s}
    ratios = [{"name": n, "guide": g, "measured": m} for n, g, m in guide_ratios(report.points) if m is not None]
    return document | timing | {"guide_ratios": ratios}


def _spec(product: str) -> tuple[str, Mapping[str, float | None]]:
    try:
        spec = find_gpu(product)
    except NotInCatalogueError:
        return product, {}
    return spec.name, asdict(spec)
