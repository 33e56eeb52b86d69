"""`tonnage up` as a user runs it: real processes on loopback, a slice of the real trace, both policies, faults."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "mooncake_sample.jsonl"
TONNAGE = [sys.executable, "-c", "from tonnage_cli.main import main; main()"]


def run_up(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TONNAGE, "up", *arguments], cwd=cwd, capture_output=True, text=True, timeout=110, check=False
    )


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def until(condition: Any, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.1)


@pytest.mark.slow
def test_one_command_replays_a_trace_under_both_policies_and_reports(tmp_path: Path) -> None:
    done = run_up(
        "--once", "--json", "--engines", "2", "--replay", str(SAMPLE), "--limit", "60", "--speed", "10",
        "--max-input", "4000", "--port-base", "0", "--urls-file", "urls.json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "tonnage.up/1"
    assert report["requests"] == {"sent": 60, "ok": 60, "errors": 0}
    assert set(report["policies"]) == {"prefix", "round_robin"}
    assert report["policies"]["round_robin"]["requests"]["ok"] == 60
    assert report["prefix"]["hit_tokens"] >= report["policies"]["round_robin"]["prefix"]["hit_tokens"]
    assert set(report["urls"]) >= {"router", "admin", "planner", "agent", "coldstart", "bench"}
    assert json.loads((tmp_path / "urls.json").read_text()) == report["urls"]
    assert (tmp_path / ".tonnage" / "report.html").read_text().startswith("<!doctype html>")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A fleet that stays up; its URLs."""
    process = subprocess.Popen(
        [*TONNAGE, "up", "--engines", "2", "--port-base", "0", "--urls-file", "urls.json"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        until(lambda: (tmp_path / "urls.json").exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield json.loads((tmp_path / "urls.json").read_text())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        if process.stderr:
            process.stderr.close()


def processes(fleet: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in get(fleet["fleet"] + "/")[1]["processes"]}


@pytest.mark.slow
def test_any_part_that_is_killed_is_seen_and_comes_back(fleet: dict[str, Any]) -> None:
    before = processes(fleet)
    assert set(before) == {"engine-0", "engine-1", "router", "planner", "agent", "coldstart", "bench"}
    for name in before:
        os.kill(before[name]["pid"], signal.SIGKILL)
    until(lambda: get(fleet["fleet"] + "/readyz")[0] == 503)
    until(lambda: all(each["restarts"] == 1 and each["state"] == "ready" for each in processes(fleet).values()))
    with urllib.request.urlopen(fleet["fleet"] + "/metrics", timeout=5) as answer:
        metrics = answer.read().decode()
    assert 'tonnage_fleet_process_restarts_total{process="router"} 1.0' in metrics
    until(lambda: get(fleet["admin"] + "/readyz")[0] == 200)


@pytest.mark.slow
def test_interrupt_ends_every_child(fleet: dict[str, Any]) -> None:
    pids = [each["pid"] for each in processes(fleet).values()]
    parent = int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(parent, signal.SIGINT)

    def gone(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    until(lambda: all(gone(pid) for pid in pids))


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_up("--once", "--replay", str(SAMPLE), "--port-base", str(port), cwd=tmp_path)
    assert done.returncode == 1
    fix = "stop the other process or choose others with --port-base (0: free ones)"
    assert done.stderr.strip().splitlines() == [f"tonnage: port {port} on 127.0.0.1 is in use: {fix}"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--once"], "--replay", id="once without a trace"),
        pytest.param(["--replay", "absent.jsonl"], "absent.jsonl", id="no such trace"),
        pytest.param(["--policy", "best"], "best", id="unknown policy"),
        pytest.param(["--speed", "0"], "--speed", id="no speed"),
        pytest.param(["--engines", "0"], "--engines", id="no engines"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = run_up(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert words in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(["--model", "no/such-model"], id="model"), pytest.param(["--gpu", "Z9000"], id="gpu")],
)
def test_a_part_that_cannot_start_is_one_line_that_says_why(tmp_path: Path, arguments: list[str]) -> None:
    done = run_up("--once", "--replay", str(SAMPLE), "--port-base", "0", *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert arguments[1] in done.stderr
