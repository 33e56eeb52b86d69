"""Workers, Redis and the service with its database, real processes, killed in the middle of a sweep.

The sweep ends with each run measured once: what was killed is made again, what was done is not.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.store_server import server_binary
from tonnage_loadgen.paced_mock import Pace, PacedMock
from tonnage_runtime.ports import free_ports

SECRETS = {"TONNAGE_BENCH_WORKER_TOKEN": "w"}
PATIENCE_S = 100.0


class Fleet:
    """Redis, the bench service and workers as processes that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis_port, self.port = free_ports(2)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60.0)

    def start(self, name: str) -> None:
        redis = f"redis://127.0.0.1:{self.redis_port}/0"
        if name == "redis":
            options = ["--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            server = server_binary()
            assert server is not None
            self._run(name, [server, *options, "--dir", str(self.folder)], {})
            self._wait(lambda: self._listens(self.redis_port))
        elif name == "service":
            settings = {
                "PORT": str(self.port),
                "DATABASE": str(self.folder / "bench.sqlite"),
                "QUEUE_URL": redis,
                "LEASE_S": "6",
                "RESEND_S": "1",
                "TICK_S": "0.1",
                "ATTEMPTS": "5",
            }
            env = {f"TONNAGE_BENCH_{key}": value for key, value in settings.items()}
            self._run(name, [sys.executable, "-m", "tonnage_bench.main"], env | SECRETS)
            self._wait(lambda: self._listens(self.port))
        else:
            settings = {"QUEUE_URL": redis, "SERVICE_URL": f"http://127.0.0.1:{self.port}", "NAME": name}
            env = {f"TONNAGE_BENCH_WORKER_{key}": value for key, value in settings.items()}
            self._run(name, [sys.executable, "-m", "tonnage_bench.worker.main"], env | SECRETS)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        self.client.close()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def job(self, job: str) -> dict[str, Any]:
        """The job's document; empty while the service is down."""
        with contextlib.suppress(httpx.HTTPError):
            found: dict[str, Any] = self.client.get(f"/v1/bench/{job}").json()
            return found
        return {}

    def until(self, job: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        self._wait(lambda: wanted(self.job(job)), lambda: f"{self.job(job)} {self.logs()}")
        return self.job(job)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log")))

    def _run(self, name: str, command: list[str], env: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, env=os.environ | env, stdout=log, stderr=log)

    def _wait(self, wanted: Callable[[], bool], said: Callable[[], str] = str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < end, said()
            time.sleep(0.05)

    @staticmethod
    def _listens(port: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return True
        return False


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()


@pytest.fixture
def mock() -> Iterator[tuple[str, PacedMock]]:
    """A completion server that counts what arrives."""
    served = PacedMock(Pace(2, 0.005, 0.005))
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(served.serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", served
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def under_way(number: int) -> Callable[[dict[str, Any]], bool]:
    """Run `number` is being made, for long enough that its load has begun."""

    def look(job: dict[str, Any]) -> bool:
        runs = job.get("runs", [])
        return len(runs) > number and runs[number]["state"] == "claimed" and (runs[number]["elapsed_s"] or 0) > 1

    return look


@pytest.mark.timeout(400)
def test_a_sweep_outlives_its_worker_its_queue_and_its_service(fleet: Fleet, mock: tuple[str, PacedMock]) -> None:
    url, served = mock
    for name in ("redis", "service", "worker-a"):
        fleet.start(name)
    body = {"url": url, "sweep": [20, 21, 22, 23], "duration_s": 4, "warmup_s": 0, "output_tokens": "constant:2"}
    job = str(fleet.client.post("/v1/bench", json=body).json()["id"])

    fleet.until(job, under_way(0))
    fleet.kill("worker-a")
    fleet.start("worker-b")

    fleet.until(job, under_way(1))
    fleet.kill("redis")
    # The run goes on without the queue; the next one waits for it.
    fleet.until(job, lambda found: found.get("runs_done", 0) >= 2)
    held = fleet.until(job, lambda found: "queue" in (found.get("error") or ""))
    assert (held["state"], held["runs_done"]) == ("running", 2)
    fleet.start("redis")

    fleet.until(job, under_way(2))
    fleet.kill("service")
    fleet.start("service")
    found = fleet.until(job, lambda found: found.get("state") in ("done", "failed"))

    assert (found["state"], found["error"], found["runs_done"]) == ("done", None, 4)
    runs = [fleet.client.get(f"/v1/bench/{job}/runs/{n}").json()["document"] for n in range(4)]
    assert len({run["prompts_sha256"] for run in runs}) == 4
    assert found["runs"][0]["attempt"] == 2
    assert (found["runs"][1]["attempt"], found["runs"][3]["attempt"]) == (1, 1)
    counted = [run["requests"]["sent"] for run in runs]
    assert all(count > 0 for count in counted)
    # Every request that arrived is in a result, but for those of loads that were killed.
    again = sum(count * (run["attempt"] - 1) for count, run in zip(counted, found["runs"], strict=True))
    assert sum(counted) <= len(served.arrivals) <= sum(counted) + again
