"""A simulated engine as a process: it starts, says where, and stops when told."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from tonnage_runtime.ports import free_port


@contextlib.contextmanager
def engine(port: int, **env: str) -> Iterator[subprocess.Popen[str]]:
    settings = {"MODEL": "Qwen/Qwen3-0.6B", "TIME_SCALE": "100", "PORT": str(port), **env}
    named = {f"TONNAGE_SIM_{key}": value for key, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "tonnage_sim.main"],
        env={**os.environ, **named},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready(port: int) -> httpx.Client:
    """A client of the engine once it answers; the test's own timeout is the limit."""
    url = f"http://127.0.0.1:{port}"
    while True:
        with contextlib.suppress(httpx.ConnectError):
            if httpx.get(url + "/health").status_code == 200:
                return httpx.Client(base_url=url, timeout=30)
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_success(number: signal.Signals) -> None:
    port = free_port()
    with engine(port) as process, ready(port) as client:
        answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
        process.send_signal(number)
        assert process.wait(20) == 0


def test_a_crash_is_a_crash() -> None:
    port = free_port()
    with engine(port) as process, ready(port) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("/admin/fault", json={"kind": "crash"})
        assert process.wait(20) == 134


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with engine(port) as process:
            _, error = process.communicate(timeout=20)
    assert process.returncode == 2
    assert error.splitlines() == [
        f"tonnage-sim: port {port} on 127.0.0.1 is in use: stop the other process or choose another port"
    ]


def test_a_wrong_setting_is_one_clear_line() -> None:
    with engine(0, BLOCK_SIZE="many") as process:
        _, error = process.communicate(timeout=20)
    assert process.returncode == 2
    assert error.startswith("tonnage-sim: TONNAGE_SIM_BLOCK_SIZE: block_size: ")
    assert len(error.splitlines()) == 1
