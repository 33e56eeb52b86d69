"""`tonnage bench --service`: the command's options as a job of a real service, its report as the command's own."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tonnage_bench.adapters import step_process
from tonnage_bench.adapters.planner_http import post_points
from tonnage_bench.adapters.step_process import StepProcess
from tonnage_bench.app import Ports, build_app
from tonnage_bench.documents import BenchRequest
from tonnage_bench.settings import BenchSettings
from tonnage_cli.bench import command
from tonnage_cli.main import run
from tonnage_core.benchmarking.series import Series, sure_asks
from tonnage_loadgen.paced_mock import Pace, PacedMock
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports as PlannerPorts
from tonnage_planner.app import build_app as planner_app
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.ports import free_port


@dataclass(frozen=True)
class Urls:
    """A bench service and something for it to measure."""

    bench: str
    mock: str


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    settings = BenchSettings(database=tmp_path_factory.mktemp("bench") / "b.sqlite", tick_s=0.05, token="t")
    app = build_app(settings, Ports(SystemClock(), CollectorRegistry(), StepProcess()))
    sock = bind("127.0.0.1", free_port())
    mock = loop.run_until_complete(PacedMock(Pace(3, 0.01, 0.005)).serve())

    def work() -> None:
        loop.run_until_complete(serve(app, sock, drain_timeout_s=1.0, stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    port, served = sock.getsockname()[1], mock.sockets[0].getsockname()[1]
    yield Urls(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{served}")
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    mock.close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_the_same_options_give_the_same_report_and_points_by_a_service(
    urls: Urls, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TONNAGE_BENCH_TOKEN", "t")
    load = ["--sweep", "20", "--sweep-users", "1,2", "--requests", "12", "--duration-s", "1", "--warmup-s", "0"]
    what = ["--gpu", "L40S", "--engine", "vllm:0.32.0", "--catalogue-model", "meta-llama/Llama-3.1-8B"]
    shared = ["--url", urls.mock, "--output-tokens", "constant:3", *load, *what, "--json"]
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    assert run(["bench", *shared, "--points", str(here)]) == 0
    own = json.loads(capsys.readouterr().out)
    assert run(["bench", *shared, "--points", str(there), "--service", urls.bench]) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert set(report) >= set(own)
    assert report["prompts_sha256"] == own["prompts_sha256"]
    assert [row["users"] for row in report["runs"]] == [row["users"] for row in own["runs"]] == [1, 2]
    assert there.read_text().splitlines()[0] == here.read_text().splitlines()[0]
    for file in (here, there):  # tokens a second are left out of runs that are mostly start and end
        metrics = [row.split(",")[-4] for row in file.read_text().splitlines()[1:]]
        assert [name for name in metrics if name != "output_tok_s"] == ["ttft_ms", "tpot_ms"] * 2
    assert "runs done" in shown.err
    again = ["bench", "--service", urls.bench, "--job", report["job"]["id"], "--json"]
    assert run(again) == 0
    assert json.loads(capsys.readouterr().out)["prompts_sha256"] == report["prompts_sha256"]


def test_a_job_that_fails_ends_in_its_reason(
    urls: Urls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = ["--service", urls.bench]
    assert run(["bench", "--url", urls.mock, "--rate", "1", *service]) == 2
    assert "answers 401" in capsys.readouterr().err
    monkeypatch.setenv("TONNAGE_BENCH_TOKEN", "t")
    nobody = f"http://127.0.0.1:{free_port()}"
    assert run(["bench", "--url", nobody, "--rate", "1", *service]) == 1
    assert "is the server up?" in capsys.readouterr().err
    assert run(["bench", "--url", "http://192.0.2.1", "--rate", "1", *service]) == 2
    assert "not among the service's targets" in capsys.readouterr().err
    assert run(["bench", "--url", urls.mock, "--rate", "1", "--journal", "j", "--sweep", "1", *service]) == 2
    assert "--journal" in capsys.readouterr().err
    assert run(["bench", "--service", nobody, "--job", "x"]) == 2
    assert "Connection refused" in capsys.readouterr().err, "at once: nothing was followed yet"
    assert run(["bench", "--job", "../bench x", *service]) == 2
    assert "answers 404" in capsys.readouterr().err
    assert run(["bench", "--job", "x"]) == 2
    assert run(["bench", "--rate", "1"]) == 2
    assert "--url is missing" in capsys.readouterr().err


@pytest.mark.parametrize("token", [None, "between-parts"])
def test_points_of_a_job_reach_the_planner_that_was_down_and_become_its_drift(
    token: str | None, tmp_path: Path
) -> None:
    """Real services on both sides: the planner starts only after the job is done, and may want a token."""
    shown, known = (tmp_path / "token", tmp_path / "hashes") if token else (None, None)
    if token and shown and known:
        shown.write_text(token)
        known.write_text(hashlib.sha256(token.encode()).hexdigest())
    headers = {"authorization": f"Bearer {token}"} if token else {}
    port = free_port()
    points = "id,model,engine,engine_version,gpu,isl,osl,concurrency,metric,value\n"
    points += "j.0.c1.tpot_ms,meta-llama/Llama-3.1-8B,vllm,0.32.0,L40S,512,128,1,tpot_ms,40\n"
    url = f"http://127.0.0.1:{port}"
    settings = BenchSettings(
        database=tmp_path / "b.sqlite", tick_s=0.05, planner_url=url, api_token_file=shown, resend_s=0.2
    )

    async def story() -> str:
        app = build_app(settings, Ports(SystemClock(), CollectorRegistry(), PointsRunner(points)))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://b") as bench,
        ):
            body = {"url": "http://127.0.0.1:9", "sweep_users": [1], "requests": 1}
            job = (await bench.post("/v1/bench", json=body)).json()["id"]
            await reached(bench, job, "pending")
            planner = planner_app(
                PlannerSettings(access_file=known),
                PlannerPorts(StaticEndpoints(()), Unused(), SystemClock(), CollectorRegistry()),
            )
            stop = asyncio.Event()
            serving = asyncio.create_task(serve(planner, bind("127.0.0.1", port), drain_timeout_s=1.0, stop=stop))
            await reached(bench, job, "sent")
            if token:
                assert await post_points(url, points) == "unreachable", "a token may still be brought"
            async with httpx.AsyncClient(headers=headers) as client:
                kept = (await client.get(f"{url}/v1/bench-points")).text
                metrics = (await client.get(f"{url}/metrics")).text
            stop.set()
            await serving
            return kept + metrics

    told = asyncio.run(story())
    assert "j.0.c1.tpot_ms" in told
    assert 'tonnage_planner_bench_points_total{outcome="compared"} 1.0' in told
    assert 'tonnage_planner_bench_drift_ratio_count{metric="tpot_ms"} 1.0' in told


async def test_a_process_says_what_cannot_be_and_nothing_against_what_can(tmp_path: Path) -> None:
    fields = BenchRequest(url="http://127.0.0.1:9", rate=5.0, lengths_text="no log").model_dump(mode="json")
    asks = [asdict(ask) for ask in sure_asks(Series(rates=(5.0,)))]
    question = {"request": fields | {"job": "j"}, "asks": asks, "longest_s": 100.0}
    why = await StepProcess().refused(question)
    assert why is not None
    assert "lengths_from" in why
    assert await StepProcess().refused(question | {"request": fields | {"job": "j", "lengths_text": None}}) is None


async def test_a_check_that_hangs_says_nothing_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = asyncio.subprocess.PIPE
    silent = await asyncio.create_subprocess_exec("sleep", "1000", stdin=pipe, stdout=pipe, stderr=pipe)

    async def started() -> asyncio.subprocess.Process:
        return silent

    monkeypatch.setattr(step_process, "_started", started)
    monkeypatch.setattr(step_process, "CHECK_S", 0.1)
    assert await StepProcess().refused({}) is None
    assert silent.returncode is not None, "it was ended"


class PointsRunner:
    """Every run has these points."""

    def __init__(self, points: str) -> None:
        self._points = points

    async def run(self, question: dict[str, Any]) -> dict[str, Any]:
        return {"met": True, "document": {}, "points": self._points}

    async def refused(self, question: dict[str, Any]) -> str | None:
        return None


class Unused:
    """No endpoint is listed, so nothing is scraped."""

    async def text(self, url: str) -> str:
        raise AssertionError(url)

    async def addresses(self, url: str) -> Sequence[str]:
        raise AssertionError(url)


async def reached(bench: httpx.AsyncClient, job: str, points: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await bench.get(f"/v1/bench/{job}")).json()["points"] == points:
                return
            await asyncio.sleep(0.02)


def test_the_service_has_the_command_s_defaults() -> None:
    """A request that leaves a field out means what the command means without the option."""
    fields = BenchRequest.model_fields
    shared = [option for option in command.params if option.name in fields and option.name != "url"]
    assert len(shared) > 40
    for option in shared:
        mine = fields[option.name or ""].get_default(call_default_factory=True)
        theirs = option.default if isinstance(option.default, str | int | float) else None
        assert (mine or None) == (theirs or None), option.name
