"""Endpoints that come, go and change by file; the process itself."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tonnage_runtime.ports import free_ports

BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * 500 + b'"}]}'


def write(file: Path, engines: list[Any], **fields: Any) -> Path:
    file.write_text(yaml.safe_dump({"endpoints": [{"url": e.url, "model": "m", **fields} for e in engines]}))
    return file


def names(router: Any) -> set[str]:
    return {e.id for e in router.gateway.fleet if e.candidate.healthy}


def ids(engines: list[Any]) -> set[str]:
    return {f"127.0.0.1:{e.port}" for e in engines}


async def test_endpoints_join_and_leave_with_the_file_and_streams_end(engines: Any, route: Any, tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slow(call: Any) -> None:
        call.stream_head()
        await call.chunk(b"data: x\n\n")
        await go.wait()
        call.end()

    old = await engines(1, script=slow)
    new = await engines(2)
    file = write(tmp_path / "e.yaml", old)
    specs = [{"url": e.url, "model": "m"} for e in old]
    router = await route(old, endpoints=specs, endpoints_file=file, reload_interval_s=0.02)
    client = await router.client()
    client.send(b'{"model":"m","stream":true}')
    await router.until(lambda: len(old[0].calls) == 1)
    write(file, new)
    await router.until(lambda: names(router) == ids(new))
    assert (await router.post(BODY)).status == 200
    go.set()
    assert (await client.read()).complete
    assert len(old[0].calls) == 1


async def test_a_broken_file_keeps_the_last_good_set(engines: Any, route: Any, tmp_path: Path) -> None:
    made = await engines(1)
    file = write(tmp_path / "e.yaml", made)
    specs = [{"url": e.url, "model": "m"} for e in made]
    router = await route(made, endpoints=specs, endpoints_file=file, reload_interval_s=0.02)
    file.write_text("endpoints: [")
    await asyncio.sleep(0.1)
    file.unlink()
    await asyncio.sleep(0.1)
    assert names(router) == ids(made)


async def test_an_address_that_changes_its_spec_starts_without_prefixes(
    engines: Any, route: Any, tmp_path: Path
) -> None:
    made = await engines(1)
    file = write(tmp_path / "e.yaml", made)
    specs = [{"url": e.url, "model": "m"} for e in made]
    router = await route(made, endpoints=specs, endpoints_file=file, reload_interval_s=0.02)
    await router.post(BODY)
    before = next(iter(router.gateway.fleet))
    assert router.gateway.scheduler.index.blocks(before.candidate.slot) > 0
    write(file, made, cost=2.0)
    await router.until(lambda: names(router) == ids(made) and next(iter(router.gateway.fleet)) is not before)
    assert router.gateway.scheduler.index.memory_bytes == 0


async def start(engine_url: str, port: int, admin: int, **fields: str) -> asyncio.subprocess.Process:
    env = {
        **os.environ,
        "TONNAGE_ROUTER_PORT": str(port),
        "TONNAGE_ROUTER_ADMIN_PORT": str(admin),
        "TONNAGE_ROUTER_ENDPOINTS": f'[{{"url": "{engine_url}", "model": "m"}}]',
        **fields,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tonnage_router.main", env=env, stderr=asyncio.subprocess.PIPE
    )


async def ready(client: httpx.AsyncClient, port: int) -> None:
    for _ in range(400):
        try:
            if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.025)
    raise TimeoutError("the router did not become ready")


async def test_two_workers_share_the_port_and_end_on_sigterm(engines: Any) -> None:
    (engine,) = await engines()
    port, admin, second = free_ports(3)
    admin = min(admin, second) if abs(admin - second) == 1 else admin
    process = await start(engine.url, port, admin, TONNAGE_ROUTER_WORKERS="2")
    async with httpx.AsyncClient() as client:
        await ready(client, admin)
        await ready(client, admin + 1)
        for _ in range(10):
            async with httpx.AsyncClient() as fresh:
                answer = await fresh.post(f"http://127.0.0.1:{port}/v1/completions", content=b'{"model":"m"}')
            assert answer.status_code == 200
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0


async def test_a_drain_told_to_one_worker_is_every_workers(engines: Any) -> None:
    (engine,) = await engines()
    port, admin, second = free_ports(3)
    admin = min(admin, second) if abs(admin - second) == 1 else admin
    process = await start(engine.url, port, admin, TONNAGE_ROUTER_WORKERS="3")
    admins = [f"http://127.0.0.1:{admin + worker}" for worker in range(3)]
    async with httpx.AsyncClient() as client:
        for worker in range(3):
            await ready(client, admin + worker)

        async def drained() -> list[list[str]]:
            answers = [(await client.get(f"{url}/admin/endpoints")).json() for url in admins]
            return [answer["endpoints"][0]["drained_by"] for answer in answers]

        path = f"/admin/endpoints/127.0.0.1:{engine.port}/drain"
        for query, expected in (("", ["admin"]), ("?undo=true", [])):
            assert (await client.post(admins[1] + path + query)).status_code == 200
            for _ in range(200):
                if (found := await drained()) == [expected] * 3:
                    break
                await asyncio.sleep(0.025)
            assert found == [expected] * 3
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0


async def test_a_taken_port_is_one_line_and_exit_2(engines: Any) -> None:
    (engine,) = await engines()
    (admin,) = free_ports(1)
    process = await start(engine.url, engine.port, admin)
    _, stderr = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 2
    assert stderr.decode().count("\n") == 1 and "is in use" in stderr.decode()


async def test_a_wrong_setting_is_one_line_and_exit_2() -> None:
    process = await start("http://127.0.0.1:1", 1, 1, TONNAGE_ROUTER_POLCY="x")
    _, stderr = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 2
    assert stderr.decode().count("\n") == 1 and "TONNAGE_ROUTER_POLCY: no such setting" in stderr.decode()
