"""A planner beside a simulated engine: the target moves with load and names its signal; a dead engine is unknown."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tonnage_runtime.ports import free_port

MODEL = "meta-llama/Llama-3.1-8B"


@contextlib.contextmanager
def process(module: str, log: Path, **settings: str) -> Iterator["subprocess.Popen[bytes]"]:
    """One service process with exactly these settings; killed at the end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TONNAGE_")}
    prefix = f"TONNAGE_{module.split('.')[0].removeprefix('tonnage_').upper()}_"
    environ = clean | {prefix + name: value for name, value in settings.items()}
    with log.open("wb") as output, subprocess.Popen([sys.executable, "-m", module], env=environ, stderr=output) as one:
        try:
            yield one
        finally:
            one.kill()


async def until(what: str, check: Callable[[], Awaitable[bool]], within_s: float = 90.0) -> None:
    for _ in range(int(within_s / 0.1)):
        with contextlib.suppress(httpx.TransportError):
            if await check():
                return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{what}: not after {within_s:g} s")


class Bench:
    """A simulated engine of four sequences and a planner that looks every 0.2 s."""

    def __init__(self, http: httpx.AsyncClient, engine: "subprocess.Popen[bytes]", engine_url: str, url: str) -> None:
        self.http, self.engine, self.engine_url, self.url = http, engine, engine_url, url

    async def explain(self) -> dict[str, Any]:
        document: dict[str, Any] = (await self.http.get(f"{self.url}/v1/explain/{MODEL}")).json()
        return document

    async def endpoint(self) -> dict[str, Any]:
        (one,) = (await self.http.get(f"{self.url}/v1/endpoints")).json()["endpoints"]
        found: dict[str, Any] = one
        return found

    async def load(self, requests: int) -> list[asyncio.Task[httpx.Response]]:
        body = {"model": MODEL, "prompt": "one two three", "max_tokens": 200, "ignore_eos": True}
        return [
            asyncio.create_task(self.http.post(f"{self.engine_url}/v1/completions", json=body, timeout=60))
            for _ in range(requests)
        ]


@dataclass(frozen=True)
class Pair:
    """The two processes."""

    engine: "subprocess.Popen[bytes]"
    engine_url: str
    url: str
    engine_log: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    engine_port, planner_port = str(free_port()), str(free_port())
    engine_url = f"http://127.0.0.1:{engine_port}"
    simulated = {"PORT": engine_port, "MODEL": MODEL, "MAX_NUM_SEQS": "4", "TIME_SCALE": "2"}
    planner = {
        "PORT": planner_port,
        "ENDPOINTS": f'[{{"url": "{engine_url}", "model": "{MODEL}"}}]',
        "SCRAPE_INTERVAL_S": "0.2",
        "SCRAPE_TIMEOUT_S": "3",
        "STALE_AFTER_S": "4",
        "POLICY": '{"scale_down_after_s": 1}',
    }
    with (
        process("tonnage_sim.main", folder / "sim", **simulated) as engine,
        process("tonnage_planner.main", folder / "planner", **planner),
    ):
        yield Pair(engine, engine_url, f"http://127.0.0.1:{planner_port}", folder / "sim")


@pytest.fixture
async def bench(pair: Pair) -> AsyncIterator[Bench]:
    async with httpx.AsyncClient() as http:
        made = Bench(http, pair.engine, pair.engine_url, pair.url)
        await until("planner knows the engine", lambda: fresh(made, pair))
        yield made


async def fresh(bench: Bench, pair: Pair) -> bool:
    assert pair.engine.poll() is None, pair.engine_log.read_text()[-2000:]
    return bool((await bench.endpoint())["state"] == "fresh")


async def test_the_target_rises_with_the_queue_and_falls_after_it(bench: Bench) -> None:
    assert (await bench.explain())["desired_replicas"] == 1
    requests = await bench.load(40)

    async def risen() -> bool:
        return bool((await bench.explain())["desired_replicas"] == 2)

    await until("target rose", risen)
    document = await bench.explain()
    assert document["asked_by"] == "waiting"
    assert document["load"]["waiting"]["known"] > 3
    answers = await asyncio.gather(*requests)
    assert {answer.status_code for answer in answers} == {200}

    async def fallen() -> bool:
        return bool((await bench.explain())["desired_replicas"] == 1)

    await until("target fell", fallen)
    changes = (await bench.http.get(f"{bench.url}/metrics")).text
    assert f'tonnage_planner_target_changes_total{{direction="up",pool="{MODEL}",signal="waiting"}} 1.0' in changes


async def test_a_dead_engine_is_unknown_never_zero_and_holds_the_target(bench: Bench) -> None:
    before = (await bench.explain())["desired_replicas"]
    bench.engine.send_signal(signal.SIGKILL)

    async def stale() -> bool:
        return bool((await bench.endpoint())["state"] == "stale")

    await until("endpoint stale", stale)
    dead = await bench.endpoint()
    assert (dead["running"], dead["waiting"], dead["kv_usage"]) == (None, None, None)
    assert dead["reason"].startswith("unreachable")

    async def holding() -> bool:
        return bool((await bench.explain())["reasons"][-1]["code"] == "all_unknown_hold")

    await until("target holds", holding)
    document = await bench.explain()
    assert document["desired_replicas"] == before
    assert document["load"]["running"]["known"] is None
