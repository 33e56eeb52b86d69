"""Faults around a probe run: a full disk, a driver that hangs, a lost sibling, an interrupt, a killed agent."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.gpu_health.guard import Budget, Run, budget_reason
from tonnage_core.gpu_health.rules import HealthReadings
from tonnage_gpu_agent import __main__ as stand_alone
from tonnage_gpu_agent import runs
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, FakeGpu, fake_gpu
from tonnage_gpu_agent.book import ProfileBook
from tonnage_gpu_agent.child_process import Child
from tonnage_gpu_agent.errors import AgentError
from tonnage_gpu_agent.local_run import LocalOptions, local_probe
from tonnage_gpu_agent.port import Device, GpuProcess
from tonnage_gpu_agent.probes import select
from tonnage_gpu_agent.runs import RunOptions, run_suite

WAIT_S = 30.0
HEAD = "import json, os, sys, time\nfd = int(sys.argv[-1])\n"
HEAD += "def send(kind, **fields): os.write(fd, (json.dumps({'type': kind, **fields}) + '\\n').encode())\n"
DONE = "send('end', name='hbm_copy', seconds=0)"
OPTIONS = RunOptions("full", select("full", ["hbm_copy"]), settle_s=0.0)


def script(body: str) -> list[str]:
    return [sys.executable, "-c", HEAD + body]


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Stands in for the probe child, which is done at once; the GPUs of each child by index, its own first."""
    seen: list[list[int]] = []

    def command(devices: Sequence[Device], options: RunOptions) -> list[str]:
        seen.append([device.index for device in devices])
        return script(DONE)

    monkeypatch.setattr(runs, "_command", command)
    return seen


def node(count: int = 2) -> list[FakeGpu]:
    return [fake_gpu(index) for index in range(count)]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return gone(pid)


def test_a_driver_that_hangs_before_the_run_is_a_time_out(probed: list[list[int]]) -> None:
    (gpu,) = node(1)
    gpu.hang = True
    report = run_suite(FakeDriver([gpu]), [gpu.device], OPTIONS)
    gpu.release.set()
    assert report.outcome == "timeout" and "has not returned" in report.detail
    assert probed == []


@pytest.mark.parametrize("fault", ["busy", "lost", "hang"])
def test_a_sibling_that_cannot_take_part_is_left_out_with_the_reason(fault: str, probed: list[list[int]]) -> None:
    gpus = node(3)
    gpus[1].processes = [GpuProcess(4711, 1 << 30)] if fault == "busy" else []
    gpus[1].lost, gpus[1].hang = fault == "lost", fault == "hang"
    report = run_suite(FakeDriver(gpus), [gpu.device for gpu in gpus], OPTIONS)
    gpus[1].release.set()
    assert report.outcome == "ok", report.detail
    assert probed == [[0, 2]]
    assert list(report.left_out) == [1] and report.left_out[1]


def test_a_run_that_is_cancelled_ends_its_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    body = (
        f"open({str(told) + '.new'!r}, 'w').write(str(os.getpid())); os.rename({str(told) + '.new'!r}, {str(told)!r})"
    )
    monkeypatch.setattr(runs, "_command", lambda devices, options: script(f"{body}; time.sleep(60)"))
    (gpu,) = node(1)
    stop = replace(OPTIONS, cancelled=lambda: "the agent was told to stop" if told.exists() else None)
    report = run_suite(FakeDriver([gpu]), [gpu.device], stop)
    assert (report.outcome, report.detail) == ("error", "the agent was told to stop")
    assert gone(int(told.read_text()))


def test_an_interrupt_ends_the_child() -> None:
    child = Child(script("time.sleep(60)"))

    def interrupt() -> str | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.run(lambda message: None, interrupt, WAIT_S)
    assert gone(child.pid)


def test_a_message_that_is_cut_short_loses_no_other() -> None:
    messages: list[dict[str, Any]] = []
    end = Child(script("send('point', n=1); os.write(fd, b'{\"type\": \"po')")).run(
        messages.append, lambda: None, WAIT_S
    )
    assert end.exit_code == 0
    assert messages == [{"type": "point", "n": 1}]


def test_a_probe_process_ends_when_the_agent_is_killed() -> None:
    child = "from tonnage_gpu_agent.probes.lifeline import end_with_parent; end_with_parent()"
    child += "; import time; print('up', flush=True); time.sleep(60)"
    agent = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {child!r}], "
    agent += "stdout=subprocess.PIPE, start_new_session=True); p.stdout.readline(); print(p.pid, flush=True); "
    agent += "time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not gone(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_until_gone(pid)


@pytest.mark.parametrize("fault", ["lost", "hang"])
def test_a_sick_gpu_hides_no_other_from_the_command_line(fault: str, probed: list[list[int]]) -> None:
    gpus = node(2)
    gpus[0].lost, gpus[0].hang = fault == "lost", fault == "hang"
    report = local_probe(LocalOptions(only=("hbm_copy",)), FakeDriver(gpus))
    gpus[0].release.set()
    assert [gpu["outcome"] for gpu in report["gpus"]] == ["error", "ok"]
    assert report["gpus"][0]["verdict"]["status"] == "UNKNOWN" and not report["measured"]
    assert probed == [[1]]


def test_a_quick_run_asks_nothing_of_siblings(probed: list[list[int]]) -> None:
    gpus = node(2)
    gpus[1].processes = [GpuProcess(4711, 1 << 30)]
    report = local_probe(LocalOptions(only=("hbm_copy",), gpus=("0",)), FakeDriver(gpus))
    assert report["measured"] and probed == [[0]]


def test_a_full_run_on_every_gpu_has_the_others_as_peers(probed: list[list[int]]) -> None:
    gpus = node(2)
    report = local_probe(LocalOptions("full", ("hbm_copy",)), FakeDriver(gpus))
    assert report["measured"] and probed == [[0, 1], [1, 0]]


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_out_that_is_none_is_refused(timeout_s: float) -> None:
    with pytest.raises(BadInputError, match="time-out"):
        local_probe(LocalOptions(timeout_s=timeout_s, rehearse=True))


def test_a_file_that_cannot_be_written_is_told_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert stand_alone.main(["--rehearse", "--out", "/nonexistent/report.json"]) == 2
    assert capsys.readouterr().err == "tonnage probe: --out /nonexistent/report.json: No such file or directory\n"


def test_a_report_that_no_longer_fits_its_disk_goes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stand_alone, "local_probe", lambda options: {"measured": True})
    assert stand_alone.main(["--out", "/dev/full"]) == 1
    found = capsys.readouterr()
    assert json.loads(found.out) == {"measured": True}
    assert "No space left" in found.err


def test_a_full_disk_loses_no_verdict_and_leaves_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    book = ProfileBook(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        book.passive("GPU-1", HealthReadings(remap_failure=True), 10.0)
    assert book.record("GPU-1").verdict.status.value == "FAIL"
    assert book.unsaved is not None and "No space left" in book.unsaved
    assert list(tmp_path.iterdir()) == []
    book.clear("GPU-1", "an operator", "replaced", 20.0)
    assert book.unsaved is None
    assert ProfileBook(str(tmp_path)).record("GPU-1").verdict.status.value == "UNKNOWN"


KEPT: dict[str, Any] = {
    "verdict": {"status": "OK", "reasons": ["why"], "since": 1.0, "recent": ["OK"], "last_evidence": 5.0},
    "history": {"hbm_copy_gbps": [4000.0]},
    "runs": [{"started": 1.0, "seconds": 2.0}],
    "profile": {
        "schema": "tonnage.gpu_profile/1",
        "index": 0,
        "uuid": "GPU-1",
        "product": "NVIDIA H200",
        "ceilings": {"hbm_copy_gbps": 4000.0},
        "verdict": {"status": "OK", "reasons": []},
    },
}


def kept(tmp_path: Path, path: str, value: Any) -> ProfileBook:
    """The book of a file whose entry at `path` is `value`."""
    record = json.loads(json.dumps(KEPT))
    *folders, last = path.split(".")
    inner = record
    for name in folders:
        inner = inner[name]
    inner[last] = value
    (tmp_path / "profiles.json").write_text(json.dumps({"schema": "tonnage.gpu_book/1", "gpus": {"GPU-1": record}}))
    return ProfileBook(str(tmp_path))


def test_a_kept_book_is_read_again(tmp_path: Path) -> None:
    assert kept(tmp_path, "verdict.since", 2.0).record("GPU-1").profile == KEPT["profile"]


@pytest.mark.parametrize(
    "path", ["verdict.since", "verdict.last_evidence", "verdict.reasons", "history", "runs", "profile",
             "profile.index", "profile.product", "profile.ceilings", "profile.verdict"]
)  # fmt: skip
@pytest.mark.parametrize("value", [[1], 7 * [True], "\ud800", float("nan")])
def test_a_damaged_book_is_refused_at_the_start_and_not_at_a_scrape(tmp_path: Path, path: str, value: Any) -> None:
    with pytest.raises(AgentError, match="move the file away"):
        kept(tmp_path, path, value)


def test_a_clock_that_was_set_back_does_not_forbid_probing() -> None:
    assert budget_reason([Run(9e9, 100.0)] * 9, 1000.0, 25.0, Budget()) is None
