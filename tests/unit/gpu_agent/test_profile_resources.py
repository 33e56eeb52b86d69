"""GpuProfile resources: what is kept of each GPU, the probe annotation obeyed once, and failures that cost nothing."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.main import Agent, assemble
from tonnage_gpu_agent.port import Device, GpuDriver
from tonnage_gpu_agent.profile_store import MemoryProfiles, ProfileStoreError, StoredProfile
from tonnage_gpu_agent.profile_sync import ProfileSync, SyncTimes
from tonnage_gpu_agent.runs import RunOptions, RunReport
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_runtime.clock import ManualClock, SystemClock
from tonnage_runtime.kube import KubeConfigError


class Flaky(MemoryProfiles):
    """A store that refuses when told to, and counts what was put."""

    def __init__(self) -> None:
        super().__init__("n1")
        self.refusal: ProfileStoreError | None = None
        self.puts = 0

    def own(self) -> Any:
        if self.refusal is not None and self.refusal.outcome == "starting":
            raise self.refusal
        return super().own()

    def put(self, name: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.puts += 1
        super().put(name, labels, status)


class World:
    """An agent over a fake GPU, its resources in memory, and steps taken by hand."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.store = agent, Flaky()
        self.sync = ProfileSync(self.store, "n1", "0.1.0", SyncTimes(30.0, 900.0, 900.0))
        self.probes: list[str] = []
        agent.prober._run = self._probe

    def _probe(self, driver: GpuDriver | None, devices: Sequence[Device], options: RunOptions) -> RunReport:
        self.probes.append(options.suite)
        return RunReport("ok", "", [Measurement("hbm_copy", PointStatus.OK, 4227.0, "GB/s")], {}, seconds=0.01)

    async def step(self) -> None:
        await self.sync.step(self.agent.ports, self.agent.prober)

    async def settle(self) -> None:
        await self.step()
        await self.agent.prober.finish()
        await self.step()

    @property
    def status(self) -> Mapping[str, Any]:
        return self.store.kept["n1-0"].status

    @property
    def handled(self) -> tuple[str, str] | None:
        found = self.status.get("probeHandled")
        return found and (found["request"], found["outcome"])


def read_once(agent: Agent) -> None:
    deadline = time.monotonic() + 10
    while not any(view.snapshot for view in agent.ports.telemetry.views()):
        assert time.monotonic() < deadline, "the agent did not read its GPU"
        time.sleep(0.005)


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    settings = AgentSettings(node="n1", interval_s=0.02, probe_cooldown_s=0.0, state_dir=str(tmp_path))
    agent = assemble(settings, FakeDriver([fake_gpu()]), SystemClock())
    async with agent.app.router.lifespan_context(agent.app):
        await asyncio.to_thread(read_once, agent)
        yield World(agent)


async def test_a_gpu_that_was_never_measured_is_unknown_and_has_no_ceilings(world: World) -> None:
    await world.step()
    assert world.status["verdict"]["status"] == "UNKNOWN"
    assert not {"ceilings", "curves", "measured_at", "probeHandled"} & world.status.keys()
    assert (world.status["node"], world.status["index"]) == ("n1", 0)


async def test_an_unchanged_profile_is_written_once(world: World) -> None:
    await world.step()
    await world.step()
    assert world.store.puts == 1


async def test_a_profile_that_somebody_deleted_is_written_again(world: World) -> None:
    await world.step()
    world.store.kept.clear()
    await world.step()
    assert world.status["node"] == "n1"


async def test_the_annotation_starts_one_run_and_the_profile_says_so(world: World) -> None:
    await world.step()
    world.store.annotate("n1-0", "quick")
    await world.settle()
    await world.settle()
    assert world.probes == ["quick"]
    assert world.handled == ("quick", "done")
    assert world.status["ceilings"] == {"hbm_copy_gbps": 4227.0}
    assert "probes" not in world.status
    assert world.store.kept["n1-0"].request == "quick"


async def test_a_changed_annotation_and_one_that_was_taken_back_start_again(world: World) -> None:
    await world.step()
    for request in ("quick", "full", None, "full"):
        world.store.annotate("n1-0", request)
        await world.settle()
    assert world.probes == ["quick", "full", "full"]


async def test_another_value_is_refused_with_the_reason(world: World) -> None:
    await world.step()
    world.store.annotate("n1-0", "thorough")
    await world.settle()
    assert world.probes == []
    assert world.handled == ("thorough", "refused")
    assert "it takes quick or full" in world.status["probeHandled"]["reason"]


async def test_a_restarted_agent_does_not_repeat_a_run(world: World) -> None:
    await world.step()
    world.store.annotate("n1-0", "quick")
    await world.settle()
    world.sync = ProfileSync(world.store, "n1", "0.1.0")
    await world.settle()
    assert world.probes == ["quick"]
    crashed = {**world.status, "probeHandled": {"request": "quick", "outcome": "started", "at": "", "reason": ""}}
    world.store.kept["n1-0"] = StoredProfile("quick", crashed)
    world.sync = ProfileSync(world.store, "n1", "0.1.0")
    await world.settle()
    assert (world.probes, world.handled) == (["quick"], ("quick", "interrupted"))


async def test_a_request_that_could_not_be_written_down_is_not_run_until_it_is(world: World) -> None:
    await world.step()
    world.store.annotate("n1-0", "quick")
    world.store.refusal = ProfileStoreError("throttled", "slow down", 40.0)
    await world.settle()
    assert world.probes == []
    assert world.sync.pause_s() >= 40.0
    world.store.refusal = None
    await world.settle()
    assert world.probes == ["quick"]


async def test_nothing_is_written_before_the_resources_were_seen(world: World) -> None:
    world.store.refusal = ProfileStoreError("starting", "not yet")
    await world.step()
    world.store.refusal = None
    assert world.store.kept == {}


async def test_a_refusing_cluster_pauses_the_resources_and_nothing_else(world: World) -> None:
    world.store.refusal = ProfileStoreError("unreachable", "no route")
    for _ in range(20):
        await world.step()
    assert 300.0 <= world.sync.pause_s() <= 360.0
    seen = world.agent.ports.telemetry.views()[0].snapshot
    assert (seen is not None and seen.value("power") is not None) or seen is not None
    assert world.agent.ports.telemetry.not_ready() is None


async def test_other_nodes_gpus_are_evidence_and_the_nodes_own_count_once(world: World) -> None:
    device = world.agent.ports.telemetry.views()[0].identity
    assert device is not None
    statuses = [{"product": device.product, "ceilings": {"hbm_copy_gbps": v}} for v in (4200.0, 4230.0)]
    statuses += [{"product": device.product}, {"product": device.product + "X", "ceilings": {"hbm_copy_gbps": 1.0}}]
    world.sync.fleet.learn(device.product, statuses)
    assert [s["ceilings"]["hbm_copy_gbps"] for s in world.sync.fleet.of(device.product)] == [4200.0, 4230.0]
    world.sync.fleet.now += 4 * 900.0 + 1
    assert world.sync.fleet.of(device.product) == ()


def test_without_a_cluster_the_agent_says_so_at_its_start() -> None:
    with pytest.raises(KubeConfigError, match="name a kubeconfig"):
        assemble(AgentSettings(kubernetes=True), FakeDriver([]), ManualClock())


def test_what_is_not_known_has_no_sample(tmp_path: Path) -> None:
    from tonnage_gpu_agent.metrics import AgentMetrics

    registry = CollectorRegistry()
    AgentMetrics(registry)
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if line.startswith("tonnage_gpu_profile_")] == []
