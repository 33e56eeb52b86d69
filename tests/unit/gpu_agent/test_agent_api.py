"""The agent's HTTP API over a fake driver: modes, metrics, profiles, probe runs and refusals."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.main import Agent, assemble
from tonnage_gpu_agent.port import Device, GpuDriver
from tonnage_gpu_agent.prober import Prober
from tonnage_gpu_agent.runs import RunOptions, RunReport
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_gpu_agent.telemetry import DeviceState, Mode
from tonnage_runtime.clock import SystemClock


class ScriptedRun:
    """Stands in for the probe child: `speed` scales the copy rate, `outcome` cuts the run short."""

    def __init__(self) -> None:
        self.speed = 1.0
        self.outcome = "ok"
        self.status = PointStatus.OK

    def __call__(self, driver: GpuDriver | None, devices: Sequence[Device], options: RunOptions) -> RunReport:
        point = Measurement("hbm_copy", self.status, 4227.0 * self.speed, "GB/s", detail="relative error 0.5")
        points = [point] if self.outcome == "ok" else []
        return RunReport(self.outcome, "another process came: 99", points, {"torch": "2.11.0"}, seconds=0.01)


@pytest.fixture
def scripted() -> ScriptedRun:
    return ScriptedRun()


def settings(tmp_path: Path, **changes: Any) -> AgentSettings:
    defaults = {"node": "n1", "interval_s": 0.02, "probe_cooldown_s": 0.0, "state_dir": str(tmp_path)}
    return AgentSettings(**{**defaults, **changes})


def with_run(agent: Agent, scripted: ScriptedRun) -> Agent:
    prober: Prober = agent.prober
    prober._run = scripted
    return agent


@asynccontextmanager
async def started(agent: Agent) -> AsyncIterator[httpx.AsyncClient]:
    async with agent.app.router.lifespan_context(agent.app):
        transport = httpx.ASGITransport(app=agent.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
            await asyncio.to_thread(answered, agent)
            yield client


def answered(agent: Agent) -> None:
    telemetry = agent.ports.telemetry
    deadline = time.monotonic() + 10
    while telemetry.mode is Mode.STARTING or any(v.state is DeviceState.STARTING for v in telemetry.views()):
        assert time.monotonic() < deadline, "the agent did not start"
        time.sleep(0.005)


@pytest.fixture
async def client(tmp_path: Path, scripted: ScriptedRun) -> AsyncIterator[httpx.AsyncClient]:
    agent = with_run(assemble(settings(tmp_path), FakeDriver([fake_gpu()]), SystemClock()), scripted)
    async with started(agent) as client:
        yield client


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with started(assemble(settings(tmp_path), FakeDriver([]), SystemClock())) as client:
        yield client


async def probe(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/probe", json={"wait": True, **body})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def test_without_a_gpu_the_agent_is_ready_and_says_why_it_watches_none(bare: httpx.AsyncClient) -> None:
    assert (await bare.get("/readyz")).status_code == 200
    text = (await bare.get("/metrics")).text
    assert 'tonnage_gpu_agent_mode_info{mode="no_gpu",reason="no NVIDIA driver library on this node"} 1.0' in text
    assert "tonnage_gpu_power_watts{" not in text
    assert (await bare.get("/v1/gpus")).json()["mode"] == "no_gpu"


async def test_without_a_gpu_a_probe_is_refused_with_the_reason(bare: httpx.AsyncClient) -> None:
    answer = await bare.post("/v1/probe", json={})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "no_gpu"
    assert 'tonnage_gpu_probe_skipped_total{reason="no_gpu"} 1.0' in (await bare.get("/metrics")).text


async def test_telemetry_is_exported_under_our_own_names(client: httpx.AsyncClient) -> None:
    text = (await client.get("/metrics")).text
    assert 'tonnage_gpu_power_watts{gpu="0",uuid="GPU-00000000-0000-0000-0000-000000000000"} 118.3' in text
    assert 'tonnage_gpu_clock_event_active{gpu="0",reason="gpu_idle"' in text
    assert "DCGM" not in text


async def test_a_probe_gives_a_profile_over_http(client: httpx.AsyncClient) -> None:
    report = await probe(client)
    assert report["schema"] == "tonnage.probe/1"
    assert report["gpus"][0]["name"] == "H200-SXM-141GB"
    assert report["gpus"][0]["verdict"]["status"] == "OK"
    profile = (await client.get("/v1/profiles")).json()["profiles"][0]
    assert profile["ceilings"] == {"hbm_copy_gbps": 4227.0}
    assert (await client.get("/v1/profiles/0")).json() == profile
    text = (await client.get("/metrics")).text
    assert 'tonnage_gpu_ceiling_bytes_per_second{gpu="0",uuid="GPU-00000000-0000-0000-0000-000000000000"' in text
    assert ',what="hbm_copy"} 0.88' in "".join(x for x in text.splitlines() if "ceiling_spec_ratio{" in x)
    assert 'tonnage_gpu_verdict{gpu="0",status="OK",uuid="GPU-00000000-0000-0000-0000-000000000000"} 1.0' in text


async def test_a_fake_gpu_slowed_by_15_percent_goes_warn_fail_and_back(
    client: httpx.AsyncClient, scripted: ScriptedRun
) -> None:
    async def status() -> str:
        return str((await probe(client))["gpus"][0]["verdict"]["status"])

    assert [await status() for _ in range(5)] == ["OK"] * 5
    scripted.speed = 0.85
    assert [await status() for _ in range(2)] == ["WARN", "FAIL"]
    scripted.speed = 1.0
    assert [await status() for _ in range(3)] == ["FAIL", "FAIL", "OK"]


async def test_a_wrong_result_at_full_speed_is_fail(client: httpx.AsyncClient, scripted: ScriptedRun) -> None:
    scripted.status = PointStatus.WRONG
    verdict = (await probe(client))["gpus"][0]["verdict"]
    assert verdict["status"] == "FAIL"
    assert "wrong_result:hbm_copy" in verdict["reasons"][0]


async def test_a_run_that_another_process_cut_short_is_unknown_and_keeps_the_last_profile(
    client: httpx.AsyncClient, scripted: ScriptedRun
) -> None:
    await probe(client)
    scripted.outcome = "busy"
    verdict = (await probe(client))["gpus"][0]["verdict"]
    assert (verdict["status"], verdict["held"]) == ("UNKNOWN", "OK")
    assert verdict["reasons"] == ["busy: another process came: 99"]
    assert (await client.get("/v1/profiles/0")).json()["ceilings"] == {"hbm_copy_gbps": 4227.0}


async def test_profiles_and_verdicts_survive_a_restart(client: httpx.AsyncClient, tmp_path: Path) -> None:
    await probe(client)
    async with started(assemble(settings(tmp_path), FakeDriver([fake_gpu()]), SystemClock())) as again:
        assert (await again.get("/v1/profiles/0")).json()["verdict"]["status"] == "OK"


async def test_an_operator_clears_a_sticky_verdict_with_a_reason(
    client: httpx.AsyncClient, scripted: ScriptedRun
) -> None:
    scripted.status = PointStatus.WRONG
    await probe(client)
    cleared = (await client.post("/v1/gpus/0/clear", json={"by": "ana", "why": "replaced"})).json()
    assert cleared["status"] == "UNKNOWN"
    assert "ana" in cleared["reasons"][0]
    assert (await client.post("/v1/gpus/0/clear", json={"by": "", "why": "x"})).status_code == 400


@pytest.mark.parametrize(
    "body, status, part",
    [
        ({"only": ["nothing"]}, 400, "known:"),
        ({"gpu": "7"}, 404, "no GPU '7'"),
        ({"suite": "all"}, 400, "suite"),
        ({"sute": "full"}, 400, "sute"),
    ],
)
async def test_a_wrong_request_is_refused_and_names_what_is_wrong(
    client: httpx.AsyncClient, body: dict[str, Any], status: int, part: str
) -> None:
    answer = await client.post("/v1/probe", json=body)
    assert answer.status_code == status
    assert part in answer.text


async def test_a_cooldown_is_a_refusal_with_its_reason(tmp_path: Path, scripted: ScriptedRun) -> None:
    agent = with_run(
        assemble(settings(tmp_path, probe_cooldown_s=300.0), FakeDriver([fake_gpu()]), SystemClock()), scripted
    )
    async with started(agent) as client:
        await probe(client)
        assert (await probe(client))["refused"][0]["code"] == "cooldown"
        assert 'tonnage_gpu_probe_skipped_total{reason="cooldown"} 1.0' in (await client.get("/metrics")).text


async def test_a_run_is_found_by_its_id(client: httpx.AsyncClient) -> None:
    begun = await client.post("/v1/probe", json={})
    assert begun.status_code == 202
    run_id = begun.json()["id"]
    assert (await client.get(f"/v1/probe/{run_id}")).json()["id"] == run_id
    assert (await client.get("/v1/probe/none")).status_code == 404


async def test_a_lease_that_cannot_be_opened_ends_the_run_and_not_the_next_one(
    tmp_path: Path, scripted: ScriptedRun
) -> None:
    agent = assemble(settings(tmp_path, lease_path=str(tmp_path / "none" / "lease")), FakeDriver([fake_gpu()]),
                     SystemClock())  # fmt: skip
    async with started(with_run(agent, scripted)) as client:
        for _ in range(2):
            document = await probe(client)
            assert document["state"] == "done"
            assert document["refused"][0]["code"] == "error" and "lease" in document["refused"][0]["reason"]


def broken(driver: GpuDriver | None, devices: Sequence[Device], options: RunOptions) -> RunReport:
    raise RuntimeError("ours")


async def test_a_fault_of_our_own_ends_the_run_and_not_the_next_one(tmp_path: Path, scripted: ScriptedRun) -> None:
    agent = with_run(assemble(settings(tmp_path), FakeDriver([fake_gpu()]), SystemClock()), scripted)
    async with started(agent) as client:
        agent.prober._run = broken
        assert (await probe(client))["refused"][0] == {"index": 0, "code": "error", "reason": "RuntimeError('ours')"}
        with_run(agent, scripted)
        assert (await probe(client))["gpus"][0]["verdict"]["status"] == "OK"


async def test_an_agent_that_is_told_to_stop_ends_the_run_that_goes_on(tmp_path: Path) -> None:
    agent = assemble(settings(tmp_path), FakeDriver([fake_gpu()]), SystemClock())
    told: list[str] = []
    begun = threading.Event()

    def endless(driver: GpuDriver | None, devices: Sequence[Device], options: RunOptions) -> RunReport:
        begun.set()
        while (why := options.cancelled()) is None:
            time.sleep(0.01)
        told.append(why)
        return RunReport("error", why, seconds=0.01)

    agent.prober._run = endless
    async with started(agent) as client:
        assert (await client.post("/v1/probe", json={})).status_code == 202
        assert await asyncio.to_thread(begun.wait, 30.0)
    assert told == ["the agent was told to stop"]
    assert not agent.prober.running


@pytest.mark.parametrize(
    "body", [{"only": ["x" * 101]}, {"gpu": "y" * 101}, {"gpu": "\n"}, {"only": ["hbm_copy"] * 101}]
)
async def test_endless_names_are_refused_and_not_repeated(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await client.post("/v1/probe", json=body)
    assert answer.status_code in (400, 422) and len(answer.content) < 2000


@pytest.mark.parametrize("why", ["   ", "two\nlines", "\x00", "\ud800"])
async def test_a_verdict_is_cleared_with_a_line_that_can_be_read(client: httpx.AsyncClient, why: str) -> None:
    await probe(client)
    body = json.dumps({"by": "an operator", "why": why})
    answer = await client.post("/v1/gpus/0/clear", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert (await client.get("/v1/profiles/0")).json()["verdict"]["status"] == "OK"


async def test_a_body_that_no_request_needs_is_refused_before_it_is_held(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/probe", content=b" " * 70_000, headers={"content-type": "application/json"})
    assert answer.status_code == 413
