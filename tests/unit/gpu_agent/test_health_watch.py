"""The passive look at every GPU's health goes on whatever one look meets, and loses no XID."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tonnage_core.gpu_health.rules import HealthReadings
from tonnage_core.gpu_health.verdict import Status, VerdictState
from tonnage_gpu_agent import main
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.main import Agent, assemble
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_gpu_agent.telemetry import DeviceState
from tonnage_runtime.clock import SystemClock

SICK, WELL = fake_gpu(0).device.uuid, fake_gpu(1).device.uuid
FALLEN_OFF = 79


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver([fake_gpu(0), fake_gpu(1)])


@pytest.fixture
async def agent(driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    monkeypatch.setattr(main, "PASSIVE_S", 0.01)
    settings = AgentSettings(node="n1", interval_s=0.01, state_dir=str(tmp_path))
    made = assemble(settings, driver, SystemClock())
    made.ports.telemetry.start()
    await until(lambda: {v.state for v in made.ports.telemetry.views()} == {DeviceState.OK})
    watching = asyncio.create_task(main._watch_health(made.ports))
    yield made
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    made.ports.telemetry.stop()


def status(agent: Agent, uuid: str) -> Status:
    return agent.ports.book.record(uuid).verdict.status


async def test_a_look_that_fails_is_counted_and_ends_neither_the_watch_nor_the_other_gpus(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look, errors = agent.ports.book.passive, agent.ports.metrics.health_errors
    before = errors._value.get()

    def broken(uuid: str, readings: HealthReadings, now: float) -> VerdictState:
        if uuid == SICK:
            raise RuntimeError("ours")
        return look(uuid, readings, now)

    with monkeypatch.context() as patched:
        patched.setattr(agent.ports.book, "passive", broken)
        await until(lambda: errors._value.get() >= before + 3)
        for uuid in (SICK, WELL):
            agent.ports.xids.add(uuid, FALLEN_OFF, agent.ports.clock.wall(), "driver")
        await until(lambda: status(agent, WELL) is Status.FAIL)
        assert status(agent, SICK) is Status.UNKNOWN
    assert any(r.message == "a verdict was not looked at" and vars(r)["reason"] == "RuntimeError('ours')"
               for r in caplog.records)  # fmt: skip
    await until(lambda: status(agent, SICK) is Status.FAIL)


async def test_the_xid_of_a_gpu_that_fell_off_the_bus_counts_although_it_has_no_readings(
    agent: Agent, driver: FakeDriver
) -> None:
    driver.gpus[0].lost = True
    await until(lambda: agent.ports.telemetry.views()[0].state is DeviceState.LOST)
    agent.ports.xids.add(SICK, FALLEN_OFF, agent.ports.clock.wall(), "kernel")
    await until(lambda: status(agent, SICK) is Status.FAIL)
    assert status(agent, WELL) is Status.UNKNOWN
