"""The supervisor of the local fleet: ready, restarted, failed with one line, ended."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tonnage_cli.fleet.errors import FleetError
from tonnage_cli.fleet.layout import ProcessSpec
from tonnage_cli.fleet.supervisor import Supervisor
from tonnage_runtime.ports import free_port

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["CHILD_PORT"])), Handler).serve_forever()
"""


def make_spec(folder: Path, source: str, name: str = "child") -> ProcessSpec:
    (folder / f"fake_{name}.py").write_text(source)
    port = free_port()
    environment = {"PYTHONPATH": str(folder), "CHILD_PORT": str(port)}
    return ProcessSpec(name, f"fake_{name}", f"http://127.0.0.1:{port}", environment)


async def until(condition: object, tries: int = 400) -> None:
    assert callable(condition)
    for _ in range(tries):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the condition never held")


async def test_a_child_that_dies_is_started_again(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    await supervisor.start([make_spec(tmp_path, SERVER)])
    child = supervisor.children["child"]
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.restarts == 1 and child.state == "ready" and child.pid not in (None, first))
    await supervisor.stop()
    assert supervisor.children == {}


async def test_a_child_that_ends_before_it_is_ready_fails_the_start_with_its_last_line(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    with pytest.raises(FleetError, match=r"child ended with code 3 before it was ready: no such model"):
        await supervisor.start([make_spec(tmp_path, "import sys; print('no such model'); sys.exit(3)")])
    await supervisor.stop()


async def test_stopping_ends_children_that_ignore_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tonnage_cli.fleet.supervisor.STOP_TIMEOUT_S", 0.2)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER
    supervisor = Supervisor(tmp_path / "logs")
    await supervisor.start([make_spec(tmp_path, stubborn)])
    process = supervisor.children["child"].process
    assert process is not None
    await supervisor.stop()
    assert process.returncode == -signal.SIGKILL


async def test_a_child_that_keeps_dying_ends_the_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tonnage_cli.fleet.supervisor.MAX_DEATHS", 2)
    supervisor = Supervisor(tmp_path / "logs")
    await supervisor.start([make_spec(tmp_path, SERVER)])
    (tmp_path / "fake_child.py").write_text("raise SystemExit('broken for good')")
    pid = supervisor.children["child"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    error = await asyncio.wait_for(supervisor.failed, 20)
    assert "child died 2 times" in str(error) and "broken for good" in str(error)
    await supervisor.stop()
