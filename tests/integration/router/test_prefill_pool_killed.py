"""The prefill pool dies in the middle of a run over simulated engines: every client still gets its whole answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson

from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind
from tonnage_runtime.metrics import new_registry
from tonnage_sim.app import Ports, Simulator, build_app
from tonnage_sim.http1.server import Server
from tonnage_sim.settings import SimSettings


@asynccontextmanager
async def simulated(role: str) -> AsyncIterator[tuple[Simulator, Server, str]]:
    fields = {
        "model": "Qwen/Qwen3-0.6B",
        "served_model_name": "m",
        "time_scale": 50.0,
        "num_blocks": 4096,
        "role": role,
    }
    settings = SimSettings.model_validate(fields)
    shape, gpu = load_model(settings.model), load_gpu(settings.gpu)
    ports = Ports(clock=SystemClock(), registry=new_registry(), shape=shape, gpu=gpu, crash=lambda: None)
    app = build_app(settings, ports)
    server, sock = Server(app), bind("127.0.0.1", 0)
    async with app.running():
        await server.start(sock)
        try:
            yield app, server, f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            await server.stop(0.0)


def body(number: int) -> bytes:
    prompt = [(number * 7919 + i) % 50_000 + 1 for i in range(6000)]
    return orjson.dumps(
        {"model": "m", "prompt": prompt, "max_tokens": 5, "ignore_eos": True, "stream": number % 2 == 0}
    )


async def test_no_client_sees_the_prefill_pool_die(route: Any) -> None:
    async with AsyncExitStack() as stack:
        _, pool, prefill_url = await stack.enter_async_context(simulated("prefill"))
        decodes = [await stack.enter_async_context(simulated("decode")) for _ in range(2)]
        listed = [{"url": prefill_url, "model": "m", "role": "prefill"}]
        listed += [{"url": url, "model": "m", "role": "decode"} for _, _, url in decodes]
        moved = [{"model": "m", "kv_bytes_per_token": 114688}]
        router = await route([], endpoints=listed, disaggregation=moved, health_interval_s=0.2)
        for endpoint in router.gateway.fleet:
            endpoint.candidate.decoding += 50 if endpoint.spec.role == "decode" else 0  # so that the rule says it pays
        handovers = router.gateway.metrics.handovers

        async def ask(number: int) -> Any:
            return await router.post(body(number), b"/v1/completions")

        before = await asyncio.gather(*(ask(number) for number in range(6)))
        assert handovers["done"] == 6
        brought = sum(app.service.handover.imported_tokens for app, _, _ in decodes)
        assert brought == 6 * 6000
        running = [asyncio.create_task(ask(number)) for number in range(6, 30)]
        await router.until(lambda: handovers["pays"] > 6)
        await pool.stop(0.0)
        during = await asyncio.gather(*running)
        after = await asyncio.gather(*(ask(number) for number in range(30, 36)))
        assert {answer.status for answer in (*before, *during, *after)} == {200}
        for number, answer in enumerate((*before, *during, *after)):
            assert answer.complete
            if number % 2 == 0:
                assert answer.body.endswith(b"data: [DONE]\n\n")
        assert handovers.get("failed", 0) + handovers.get("no_params", 0) > 0
        await router.settled()
        assert router.counters() == [(0, 0, 0)] * 3
