"""A simulated engine beside a real one: the same prompts, one at a time, find the same tokens in the cache.

Engines are named in TONNAGE_E2E_ENGINES, comma- or space-separated, and must tell cached tokens
(`--enable-prompt-tokens-details`) and have served nothing yet, or be in development mode, so that the test can empty
their caches.
"""

import os
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind
from tonnage_sim.app import Ports, build_app
from tonnage_sim.http1.server import Server
from tonnage_sim.settings import SimSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

URLS = [url for url in re.split(r"[,\s]+", os.environ.get("TONNAGE_E2E_ENGINES", "")) if url]
SEED = 20261129
REQUESTS = 200
LONGEST = 3500
IDS = (10, 250)
"""Token ids that any byte-level vocabulary has."""


@dataclass(frozen=True)
class Ask:
    """One request of the run."""

    prompt: list[int]
    max_tokens: int


def asks() -> list[Ask]:
    """Prompts that share prefixes of all lengths: documents cut anywhere, with and without an end of their own, some
    asked twice, some with a change in the middle."""
    rng = random.Random(SEED)

    def fresh(length: int) -> list[int]:
        return [rng.randrange(*IDS) for _ in range(length)]

    documents = [fresh(rng.randrange(100, 2600)) for _ in range(12)]
    made: list[Ask] = []
    while len(made) < REQUESTS:
        document = rng.choice(documents)
        shape = rng.random()
        if shape < 0.15 and made:
            prompt = list(rng.choice(made).prompt)
        elif shape < 0.3:
            prompt = document[: rng.randrange(1, len(document))]
        elif shape < 0.4:
            prompt = list(document)
            prompt[rng.randrange(len(prompt))] = rng.randrange(*IDS)
        else:
            cut = rng.choice((len(document), len(document) // 32 * 32, rng.randrange(1, len(document))))
            prompt = document[:cut] + fresh(rng.randrange(0, 900))
        made.append(Ask(prompt[:LONGEST], rng.choice((1, 2, 8, 40))))
    return made


async def cached_tokens(client: httpx.AsyncClient, model: str, ask: Ask) -> int:
    body = {"model": model, "prompt": ask.prompt, "max_tokens": ask.max_tokens, "ignore_eos": True, "temperature": 0}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ask.prompt), ask.max_tokens)
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    return found


async def facts(client: httpx.AsyncClient) -> dict[str, Any]:
    """Model name, context and cache geometry of a running engine."""
    card = (await client.get("/v1/models")).json()["data"][0]
    exposition = (await client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(exposition)}
    cache = families["vllm:cache_config_info"].samples[0].labels
    return {
        "model": card["id"],
        "max_model_len": card["max_model_len"],
        "block_size": int(cache["block_size"]),
        "num_blocks": int(cache["num_gpu_blocks"]),
        "version": (await client.get("/version")).json()["version"],
    }


@asynccontextmanager
async def simulated(engine: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    settings = SimSettings(
        served_model_name=(engine["model"],),
        time_scale=1000.0,
        block_size=engine["block_size"],
        num_blocks=engine["num_blocks"],
        max_model_len=engine["max_model_len"],
    )
    ports = Ports(
        clock=SystemClock(),
        registry=CollectorRegistry(),
        shape=load_model(settings.model),
        gpu=load_gpu(settings.gpu),
        crash=lambda: None,
    )
    app = build_app(settings, ports)
    server = Server(app)
    sock = bind("127.0.0.1", 0)
    base_url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with app.running(), httpx.AsyncClient(base_url=base_url, timeout=60) as client:
        await server.start(sock)
        yield client
        await server.stop(0.0)


@pytest.mark.parametrize("url", URLS or ["none"])
async def test_cached_tokens_are_equal_request_by_request(
    url: str, told: Callable[[str, str], None], saved: Callable[[str, Any], None]
) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as real:
        engine = await facts(real)
        await real.post("/reset_prefix_cache")
        async with simulated(engine) as sim:
            rows = []
            for ask in asks():
                pair = [await cached_tokens(client, engine["model"], ask) for client in (real, sim)]
                rows.append((len(ask.prompt), ask.max_tokens, *pair))
    different = [(i, row) for i, row in enumerate(rows) if row[2] != row[3]]
    saved(f"parity/{urlsplit(url).netloc}", report(engine, rows, len(different)))
    told(
        f"simulated beside real, {urlsplit(url).netloc}",
        f"{len(rows) - len(different)} of {len(rows)} prompts: equal cached tokens, {sum(r[2] for r in rows)} in all",
    )
    assert different == []
    assert sum(row[2] for row in rows) > 0


def report(engine: dict[str, Any], rows: list[tuple[int, ...]], different: int) -> dict[str, Any]:
    return {
        "engine": engine,
        "seed": SEED,
        "requests": len(rows),
        "equal": len(rows) - different,
        "prompt_tokens": sum(row[0] for row in rows),
        "cached_tokens_real": sum(row[2] for row in rows),
        "cached_tokens_simulated": sum(row[3] for row in rows),
    }
