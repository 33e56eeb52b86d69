"""A start's timeline from the command line to the service's histograms."""

import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from tonnage_cli.main import run
from tonnage_coldstart.metrics import StartMetrics
from tonnage_coldstart.starts import KEPT, StartReport, Starts, add_start_routes
from tonnage_core.errors import BadInputError
from tonnage_runtime.ports import free_port

POD = {
    "kind": "Pod",
    "metadata": {
        "name": "m-0",
        "creationTimestamp": "2026-11-30T01:00:00Z",
        "labels": {"tonnage.dev/pool": "chat"},
    },
    "status": {
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T01:00:20Z"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T01:02:00Z"},
        ],
        "containerStatuses": [{"name": "engine", "state": {"running": {"startedAt": "2026-11-30T01:00:30Z"}}}],
    },
}
LOG = "INFO 11-30 01:00:31 [a.py:1] hello\nINFO 11-30 01:01:00 [b.py:2] Loading weights took 12.50 seconds\n"
REPORT: dict[str, Any] = {
    "schema": "tonnage.start/1",
    "name": "m-0",
    "pool": "chat",
    "total_s": 1e9,
    "spans": [
        {"phase": "provision", "start_s": 100.0, "end_s": 120.0},
        {"phase": "load", "start_s": 130.0, "end_s": 150.0},
        {"phase": "load", "detail": "weights", "start_s": 131.0, "end_s": 149.0},
        {"phase": "init", "start_s": None, "end_s": 190.0},
    ],
}


class Service:
    """The routes over a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.starts = Starts(StartMetrics(self.registry))
        self.app = FastAPI()
        add_start_routes(self.app, self.starts)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"tonnage_coldstart_{name}", labels)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://node") as made:
        yield made


async def test_a_reported_start_is_counted_by_phase_and_listed(service: Service, client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/starts", json=REPORT)
    assert answer.status_code == 201
    assert answer.json()["total_s"] == 50  # worked out anew; init's beginning is not known
    assert answer.json()["phases"] == {"provision": 20, "pull": None, "fetch": None, "load": 20, "init": None}
    assert service.value("start_duration_seconds_sum") == 50
    assert service.value("start_phase_duration_seconds_sum", phase="load") == 20
    assert service.value("start_phase_duration_seconds_count", phase="init") == 0
    listed = (await client.get("/v1/starts")).json()
    assert [one["name"] for one in listed["starts"]] == ["m-0"]


async def test_a_start_told_twice_counts_once_and_the_list_is_bounded(
    service: Service, client: httpx.AsyncClient
) -> None:
    for _ in range(2):
        await client.post("/v1/starts", json=REPORT)
    assert service.value("start_duration_seconds_count") == 1
    for number in range(KEPT):
        await client.post("/v1/starts", json=REPORT | {"name": f"n{number}"})
    names = [one["name"] for one in service.starts.all()]
    assert len(names) == KEPT
    assert "m-0" not in names


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": "tonnage.stage/1"},
        {"spans": []},
        {"spans": [{"phase": "boot", "start_s": 1, "end_s": 2}]},
        {"spans": [{"phase": "load", "start_s": -1, "end_s": 2}]},
        {"name": ""},
    ],
)
async def test_what_is_no_start_is_refused(client: httpx.AsyncClient, damage: dict[str, Any]) -> None:
    assert (await client.post("/v1/starts", json=REPORT | damage)).status_code == 422


def test_a_start_of_over_a_day_is_a_wrong_clock_and_counts_for_nothing(service: Service) -> None:
    days = REPORT | {"spans": [{"phase": "load", "start_s": 1.0, "end_s": 100_000.0}]}
    with pytest.raises(BadInputError, match="over a day"):
        service.starts.add(StartReport(**days))
    assert service.value("start_duration_seconds_count") == 0


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    (tmp_path / "engine.log").write_text(LOG)
    staged = {"schema": "tonnage.stage/1", "seconds": 6.0, "ended_at": 1796000429.0}  # 01:00:29
    (tmp_path / "stage.json").write_text(json.dumps(staged))
    return tmp_path


def arguments(files: Path, *more: str) -> list[str]:
    pod, log, stage = (str(files / name) for name in ("pod.json", "engine.log", "stage.json"))
    return ["timeline", "--pod", pod, "--log", log, "--stage", stage, *more]


def test_the_command_joins_pod_staging_and_log(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(files, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["phases"] == {"provision": 20, "pull": None, "fetch": 6, "load": 12.5, "init": 17.5 + 60}
    assert found["total_s"] == 120
    assert found["unexplained_s"] == pytest.approx(4)  # from 01:00:20 to :23, and from :29 to :30
    assert found["unknown"] == ["pull"]


def test_the_table_and_the_drawing_show_each_span(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = files / "made" / "start.svg"
    assert run(arguments(files, "--plot", str(drawing))) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("m-0: 120.0 s", "provision", "fetch", "weights", "pull", "unknown"))
    root = ElementTree.fromstring(drawing.read_text())
    bars = [one for one in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert len(bars) == 7  # provision, fetch, init twice, process, load, weights
    assert all(float(bar.attrib["x"]) >= 0 and float(bar.attrib["width"]) >= 1 for bar in bars)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--events", "pod.json"], "--pod too"),
        (["--stage", "pod.json"], "not a report"),
        (["--log", "pod.json"], "no line of a vLLM log"),
        (["--pod", "engine.log"], "not JSON"),
        (["--log", "engine.log", "--log-offset", "nan"], "--log-offset"),
        ([], "nothing to read"),
    ],
)
def test_bad_files_are_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: list[str], said: str
) -> None:
    monkeypatch.chdir(files)
    assert run(["timeline", *more]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_the_command_tells_the_service(files: Path, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(service.app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    ready, real = threading.Event(), server.startup

    async def started(sockets: Any = None) -> None:
        await real(sockets)
        ready.set()

    server.startup = started  # type: ignore[method-assign]
    thread.start()
    try:
        assert ready.wait(60)
        assert run(arguments(files, "--report", f"http://127.0.0.1:{port}")) == 0
    finally:
        server.should_exit = True
        thread.join()
    assert [(one["name"], one["pool"], one["total_s"]) for one in service.starts.all()] == [("m-0", "chat", 120)]
    assert run(arguments(files, "--report", f"http://127.0.0.1:{free_port()}")) == 2
    assert "is the server up?" in capsys.readouterr().err
