import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind
from tonnage_runtime.metrics import new_registry
from tonnage_sim.app import Ports, Simulator, build_app
from tonnage_sim.http1.server import Server
from tonnage_sim.settings import SimSettings

FAST = 2000.0
"""A time scale at which steps take microseconds."""


@dataclass
class Sim:
    """A simulator on a loopback port, and a client of it."""

    app: Simulator
    http: httpx.AsyncClient
    url: str
    registry: CollectorRegistry
    crashes: list[bool] = field(default_factory=list)

    async def post(self, path: str, **body: Any) -> Any:
        """The answer's document; the status must be 200."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def complete(self, prompt: Any, **body: Any) -> Any:
        """A completion that ignores the end of turn."""
        return await self.post("/v1/completions", **{"prompt": prompt, "ignore_eos": True, "max_tokens": 4, **body})

    async def chat(self, *contents: str, **body: Any) -> Any:
        """An answer to a conversation that begins with the user."""
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]
        return await self.post("/v1/chat/completions", **{"messages": messages, **body})

    async def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, [DONE] checked and left out."""
        answer = await self.http.post(path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [orjson.loads(event.removeprefix("data: ")) for event in events[:-2]]

    async def metric(self, name: str, **labels: str) -> float:
        """One series of /metrics."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in (await self.http.get("/metrics")).text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(label in series for label in wanted):
                return float(value)
        raise AssertionError(f"no series {name} {labels}")


async def until(reached: Callable[[], bool | Awaitable[bool]]) -> None:
    """Let the loop run until something holds; the test's own timeout is the limit."""
    while True:
        found = reached()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.001)


@asynccontextmanager
async def simulator(**settings: Any) -> AsyncIterator[Sim]:
    """A simulator of a small model with a small cache, quick unless told otherwise."""
    chosen = SimSettings.model_validate(
        {
            "model": "Qwen/Qwen3-0.6B",
            "served_model_name": "m",
            "time_scale": FAST,
            "num_blocks": 1024,
            "max_model_len": 4096,
            **settings,
        }
    )
    crashes: list[bool] = []
    registry = new_registry()
    ports = Ports(
        clock=SystemClock(),
        registry=registry,
        shape=load_model(chosen.model),
        gpu=load_gpu(chosen.gpu),
        crash=lambda: crashes.append(True),
    )
    app = build_app(chosen, ports)
    server = Server(app)
    sock = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with app.running(), httpx.AsyncClient(base_url=url, timeout=30) as http:
        await server.start(sock)
        try:
            yield Sim(app, http, url, registry, crashes)
        finally:
            await server.stop(0.0)


Start = Callable[..., Awaitable[Sim]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts simulators with given settings; all are stopped at the end."""
    async with AsyncExitStack() as stack:

        async def begin(**settings: Any) -> Sim:
            return await stack.enter_async_context(simulator(**settings))

        yield begin


@pytest.fixture
async def sim(start: Start) -> Sim:
    """A simulator with the usual settings."""
    return await start()
