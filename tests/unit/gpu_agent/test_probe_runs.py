"""The probe child and its guard: real processes, no GPU."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tonnage_core.gpu_health.guard import ChildMemory
from tonnage_core.gpu_health.measurement import PointStatus
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, FakeGpu, fake_gpu
from tonnage_gpu_agent.child_process import Child, Message
from tonnage_gpu_agent.errors import ProbeRefusedError, UnknownProbeError
from tonnage_gpu_agent.lease import node_lease
from tonnage_gpu_agent.port import Device, GpuProcess
from tonnage_gpu_agent.probes import PROBES, select
from tonnage_gpu_agent.runs import Guard, RunOptions, check_idle, run_suite

GIB = 1 << 30
OPTIONS = RunOptions("quick", select("quick", ["hbm_copy"]), settle_s=0.0)


def script(body: str) -> list[str]:
    """A child that sends what `body` says through `send`; argv ends with --fd N."""
    head = "import json, os, sys, time\nfd = int(sys.argv[-1])\n"
    head += "def send(kind, **fields): os.write(fd, (json.dumps({'type': kind, **fields}) + '\\n').encode())\n"
    return [sys.executable, "-c", head + body]


def run(body: str, stop: Callable[[], str | None] = lambda: None, timeout_s: float = 20.0) -> tuple[list[Message], str]:
    messages: list[Message] = []
    end = Child(script(body)).run(messages.append, stop, timeout_s)
    return messages, end.stopped or ("timeout" if end.timed_out else str(end.exit_code))


def gpu_with(processes: list[GpuProcess] | None, used: float = 0.6 * GIB) -> FakeGpu:
    gpu = fake_gpu()
    gpu.processes = processes
    gpu.readings["memory"] = [(("used",), used)]
    return gpu


def test_messages_of_a_child_arrive_in_order() -> None:
    messages, end = run("send('begin', name='a'); send('end', name='a', seconds=0)")
    assert [m["type"] for m in messages] == ["begin", "end"]
    assert end == "0"


def test_what_was_said_before_a_kill_is_kept() -> None:
    messages, end = run("send('point', n=1); time.sleep(60)", timeout_s=1.0)
    assert [m["type"] for m in messages] == ["point"]
    assert end == "timeout"


def test_a_child_that_ignores_term_is_killed() -> None:
    child = Child(script("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); send('up'); time.sleep(60)"))
    messages: list[Message] = []
    end = child.run(messages.append, lambda: "busy" if messages else None, 20.0)
    assert end.stopped == "busy"
    assert end.exit_code == -9


def test_whatever_a_child_started_ends_with_it() -> None:
    body = "import subprocess; p = subprocess.Popen(['sleep', '60']); send('pid', pid=p.pid); time.sleep(60)"
    messages: list[Message] = []
    Child(script(body)).run(messages.append, lambda: "busy" if messages else None, 20.0)
    pid = messages[0]["pid"]
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{pid}/stat").exists():
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_a_foreign_process_makes_a_gpu_busy_before_a_run() -> None:
    gpu = gpu_with([GpuProcess(4711, GIB)])
    with pytest.raises(ProbeRefusedError, match="4711") as refused:
        check_idle(FakeDriver([gpu]), gpu.device, OPTIONS)
    assert refused.value.code == "busy"


def test_memory_in_use_where_pids_are_invisible_makes_a_gpu_busy() -> None:
    gpu = gpu_with(None, used=20 * GIB)
    with pytest.raises(ProbeRefusedError, match="nobody visible"):
        check_idle(FakeDriver([gpu]), gpu.device, OPTIONS)


def test_a_gpu_split_by_mig_is_skipped_with_the_reason() -> None:
    device = replace(fake_gpu().device, mig=True)
    with pytest.raises(ProbeRefusedError, match="MIG") as refused:
        check_idle(FakeDriver([FakeGpu(device)]), device, OPTIONS)
    assert refused.value.code == "mig"


def test_the_guard_explains_the_childs_memory_by_the_drivers_own_list() -> None:
    gpu = gpu_with([GpuProcess(os.getsid(0), 50 * GIB)], used=50.6 * GIB)
    guard = Guard(FakeDriver([gpu]), [0], os.getsid(0), int(0.6 * GIB), OPTIONS)
    assert [guard() for _ in range(4)] == [None] * 4


def test_the_guard_stops_for_a_process_that_comes_mid_run() -> None:
    own = os.getsid(0)
    gpu = gpu_with([GpuProcess(own, GIB)], used=1.6 * GIB)
    guard = Guard(FakeDriver([gpu]), [0], own, int(0.6 * GIB), OPTIONS)
    assert guard() is None
    stranger = subprocess.Popen(["sleep", "30"], start_new_session=True)
    assert gpu.processes is not None
    gpu.processes.append(GpuProcess(stranger.pid, GIB))
    assert guard() == f"another process came: {stranger.pid}"
    stranger.kill()
    stranger.wait()


def test_the_guard_sees_a_stranger_by_memory_alone_where_pids_are_invisible() -> None:
    gpu = gpu_with([], used=2 * GIB)
    guard = Guard(FakeDriver([gpu]), [0], 1, GIB, OPTIONS)
    guard.hear(ChildMemory(GIB, warming=False))
    assert [guard() for _ in range(6)] == [None] * 6
    gpu.readings["memory"] = [(("used",), 2 * GIB + 64.0 * (1 << 20))]
    guard.hear(ChildMemory(GIB, warming=False))
    found = [guard() for _ in range(4)]
    assert found[3] is not None and "64 MiB" in found[3]


def test_a_lost_gpu_ends_the_run() -> None:
    gpu = gpu_with([])
    guard = Guard(FakeDriver([gpu]), [0], 1, 0, OPTIONS)
    gpu.lost = True
    found = guard()
    assert found is not None and "lost" in found


def test_a_rehearsal_runs_a_probe_in_a_real_child() -> None:
    report = run_suite(None, [Device(0, "host", "host")], replace(OPTIONS, rehearse=True))
    assert report.outcome == "ok", report.detail
    assert [p.status for p in report.points] == [PointStatus.OK]
    assert report.seconds_by_probe.keys() == {"hbm_copy"}


def test_a_time_out_marks_every_probe_that_did_not_end() -> None:
    report = run_suite(None, [Device(0, "host", "host")], replace(OPTIONS, rehearse=True, timeout_s=0.05))
    assert report.outcome == "timeout"
    assert [(p.name, p.status) for p in report.points] == [("hbm_copy", PointStatus.ERROR)]


def test_a_child_that_cannot_start_is_an_error_with_its_last_line() -> None:
    options = replace(OPTIONS, entries=[replace(PROBES[0], module="no.such.module")], rehearse=True)
    report = run_suite(None, [Device(0, "host", "host")], options)
    assert [p.status for p in report.points] == [PointStatus.UNSUPPORTED]


def test_two_runs_on_a_node_exclude_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    with node_lease(path), pytest.raises(ProbeRefusedError, match="lease"), node_lease(path):
        pass
    with node_lease(path):
        pass


def test_an_unknown_probe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownProbeError, match="hbm_copy"):
        select("quick", ["hbm_cpoy"])
