"""The router in front of real vLLM engines: streams, adapters on demand, second turns, and KV events told against the
engines' own counters.

Engines are named in TONNAGE_E2E_ENGINES, comma- or space-separated, with their ports of KV events and of replays in
TONNAGE_E2E_KV_PORTS (`5711/5721,5712/5722`). They serve the model whose files are in TONNAGE_E2E_MODEL_DIR, with
`--enable-lora --max-loras 2`, `--enable-prompt-tokens-details` and runtime adapter updates, and have at most a few
hundred KV blocks, so that blocks are evicted. TONNAGE_E2E_LORAS names two adapter directories. An engine's endpoint of
KV events is `tcp://*:PORT`: without the star vLLM connects where it should listen.
"""

import asyncio
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.service import RouterService
from tonnage_router.settings import RouterSettings
from tonnage_runtime.http_app import bind

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]


def listed(name: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+", os.environ.get(name, "")) if part]


URLS = listed("TONNAGE_E2E_ENGINES")
KV_PORTS = [tuple(map(int, pair.split("/"))) for pair in listed("TONNAGE_E2E_KV_PORTS")]
LORAS = listed("TONNAGE_E2E_LORAS")
MODEL_DIR = os.environ.get("TONNAGE_E2E_MODEL_DIR", "")
ADAPTERS = tuple(f"ad-{number}" for number in range(1, 10))
SEED = 20261129
REQUESTS = 160
EXPLAIN = {"x-tonnage-explain": "1"}
if not (URLS and KV_PORTS and LORAS and MODEL_DIR):
    pytest.skip("engines, KV ports, adapters and the model's files are not named", allow_module_level=True)


Told = Callable[[str, str], None]
Saved = Callable[[str, Any], None]


@dataclass
class Running:
    gateway: Gateway
    http: httpx.AsyncClient
    model: str
    service: RouterService

    async def settled(self) -> None:
        """Until engines have told nothing new for a while: they number their batches, but not their answers."""
        last: list[int] = []
        same = 0
        for _ in range(4000):
            await asyncio.sleep(0.08)
            rows = [e.follower.document() for e in self.gateway.fleet if e.follower is not None]
            now = [row["next"] for row in rows]
            same = same + 1 if now == last and all(row["live"] for row in rows) else 0
            last = now
            if same >= 4:
                return
        raise TimeoutError("an engine's KV events do not come: does it listen (tcp://*:PORT)?")

    async def ask(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The answer, and what the router said of it."""
        answer = await self.http.post(path, json=body, headers=EXPLAIN)
        assert answer.status_code == 200, answer.text
        said = {
            "endpoint": answer.headers["x-tonnage-endpoint"],
            "hits": int(answer.headers["x-tonnage-hit-tokens"]),
            "prompt": self.gateway.decisions[-1].document()["prompt_tokens"],
        }
        return answer.json(), said

    async def counters(self, name: str) -> int:
        """A counter of the engines, summed."""
        total = 0.0
        for url in URLS:
            page = (await self.http.get(url + "/metrics")).text
            total += sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))
        return int(total)


async def until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the awaited state did not come")


@asynccontextmanager
async def router() -> AsyncIterator[Running]:
    async with httpx.AsyncClient(timeout=300) as plain:
        model = (await plain.get(URLS[0] + "/v1/models")).json()["data"][0]["id"]
    endpoints = [
        {"url": url, "model": model, "kv_events_port": ports[0], "kv_events_replay_port": ports[1], "adapter_slots": 2}
        for url, ports in zip(URLS, KV_PORTS, strict=True)
    ]
    adapters = [{"name": n, "parent": model, "path": LORAS[i % len(LORAS)]} for i, n in enumerate(ADAPTERS)]
    settings = RouterSettings.model_validate(
        {"endpoints": endpoints, "adapters": adapters, "tokenizers": {model: MODEL_DIR}, "models_interval_s": 1.0}
    )
    gateway = Gateway(settings, RouterMetrics(CollectorRegistry()))
    service, sock = RouterService(gateway), bind("127.0.0.1", 0)
    await service.start(sock)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        running = Running(gateway, http, model, service)
        await until(lambda: all(e.candidate.healthy for e in gateway.fleet))
        await running.settled()
        try:
            yield running
        finally:
            await service.stop()


def sentence(rng: random.Random, words: int) -> str:
    names = ("cache", "block", "prefix", "token", "engine", "queue", "step", "batch", "Größe", "ключ", "数", "\n")
    return " ".join(rng.choice(names) for _ in range(words))


def bodies(model: str) -> list[tuple[str, dict[str, Any]]]:
    """Prompts that share beginnings of all lengths, as ids, as text and as conversations, for the base model and its
    adapters, with and without a salt."""
    rng = random.Random(SEED)
    ids = [[rng.randrange(10, 250) for _ in range(length)] for length in (90, 400, 900, 1500)]
    texts = [sentence(rng, words) for words in (30, 90, 150)]
    system = sentence(rng, 60)
    made: list[tuple[str, dict[str, Any]]] = []
    while len(made) < REQUESTS:
        body: dict[str, Any] = {"model": rng.choice((model, model, model, "ad-1", "ad-2")), "max_tokens": 2}
        if rng.random() < 0.3:
            body["cache_salt"] = "tenant-a"
        shape = rng.randrange(3)
        if shape == 0:
            stem = rng.choice(ids)
            cut = rng.choice((31, 32, 33, len(stem)))
            body["prompt"] = stem[:cut] + [rng.randrange(10, 250) for _ in range(rng.randrange(1, 200))]
        elif shape == 1:
            body["prompt"] = rng.choice(texts) + " " + sentence(rng, rng.randrange(1, 20))
        else:
            turns = rng.randrange(1, 4)
            roles = ("user", "assistant")
            told = random.Random(rng.randrange(4))  # a few conversations, asked at several lengths
            talk = [{"role": roles[i % 2], "content": sentence(told, 25)} for i in range(2 * turns - 1)]
            body["messages"] = [{"role": "system", "content": system}, *talk]
        made.append(("/v1/chat/completions" if shape == 2 else "/v1/completions", body))
    return made


async def test_predicted_hits_are_the_engines_own(told: Told, saved: Saved) -> None:
    """One at a time: every prediction equals the cached tokens of the answer, and their sum the engines' counters. An
    engine tells the size of its blocks with the first ones, so the first prompt of all is only estimated: it is sent
    before."""
    async with router() as running:
        await running.ask("/v1/completions", {"model": running.model, "prompt": list(range(10, 210)), "max_tokens": 2})
        await running.settled()
        before = await running.counters("vllm:prefix_cache_hits_total")
        removed = sum(n for (_, what), n in running.gateway.metrics.kv_events.items() if what == "removed")
        rows: list[tuple[int, int, int, int]] = []
        for path, body in bodies(running.model):
            answer, said = await running.ask(path, body)
            usage = answer["usage"]
            cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
            rows.append((said["hits"], cached, said["prompt"], usage["prompt_tokens"]))
            await running.settled()
        after = await running.counters("vllm:prefix_cache_hits_total")
        metrics = running.gateway.metrics
        outcomes: dict[str, int] = {}
        for (_, what), count in metrics.kv_events.items():
            outcomes[what] = outcomes.get(what, 0) + count
        figures: dict[str, Any] = {
            "requests": len(rows),
            "predictions_equal": sum(p == c for p, c, _, _ in rows),
            "prompt_tokens_equal": sum(a == b for _, _, a, b in rows),
            "predicted_hit_tokens": sum(row[0] for row in rows),
            "reported_hit_tokens": sum(row[1] for row in rows),
            "engine_counter_hit_tokens": after - before,
            "prompt_tokens": sum(row[3] for row in rows),
            "prompt_keys": dict(metrics.prompt_keys),
            "kv_events": outcomes,
            "block_size": sorted({e.candidate.kv_block_size or 0 for e in running.gateway.fleet}),
        }
        saved("router/kv_events", figures)
        told(
            "KV events, hits predicted",
            f"{figures['predictions_equal']} of {len(rows)} prompts, {figures['engine_counter_hit_tokens']} tokens",
        )
        assert figures["predictions_equal"] == figures["prompt_tokens_equal"] == len(rows), rows
        assert figures["predicted_hit_tokens"] == figures["engine_counter_hit_tokens"] > 5_000
        assert outcomes["removed"] > removed and set(outcomes) <= {"stored", "removed", "cleared"}
        assert set(metrics.prompt_keys) == {"exact"} or metrics.prompt_keys.get("approximate", 0) <= 1


async def test_a_new_router_knows_what_engines_cached_before_it_came(told: Told, saved: Saved) -> None:
    rng = random.Random(SEED + 1)
    prompt = [rng.randrange(10, 250) for _ in range(700)]
    async with router() as first:
        _, cold = await first.ask("/v1/completions", {"model": first.model, "prompt": prompt, "max_tokens": 1})
    async with router() as second:
        answer, warm = await second.ask("/v1/completions", {"model": second.model, "prompt": prompt, "max_tokens": 1})
        complete = [e.candidate.kv_complete for e in second.gateway.fleet]
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    saved("router/replay", {"complete": complete, "predicted_hit_tokens": warm["hits"], "reported_hit_tokens": cached})
    told("KV events, a new router", f"{warm['hits']} cached tokens known of {cached}")
    assert warm["endpoint"] == cold["endpoint"]
    assert warm["hits"] == cached == 672


async def test_a_stream_comes_in_pieces_and_says_what_the_engine_says(told: Told, saved: Saved) -> None:
    async with router() as running:
        body = {
            "model": running.model,
            "messages": [{"role": "user", "content": "count to ten"}],
            "max_tokens": 24,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        pieces: list[bytes] = []
        gaps: list[float] = []
        last = time.perf_counter()
        async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            async for piece in answer.aiter_raw():
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
                pieces.append(piece)
        async with running.http.stream("POST", URLS[0] + "/v1/chat/completions", json=body) as direct:
            straight = b"".join([piece async for piece in direct.aiter_raw()])
    through = events(b"".join(pieces))
    saved(
        "router/streams",
        {"events": len(through), "pieces": len(pieces), "tokens": through[-1]["usage"]["completion_tokens"]},
    )
    told("a stream", f"{through[-1]['usage']['completion_tokens']} tokens in {len(pieces)} pieces, as the engine's own")
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
    assert said_by(through) == said_by(events(straight))
    assert through[-1]["usage"]["completion_tokens"] == 24
    assert len(pieces) > 2  # a busy machine's engine sends several tokens at once


def events(stream: bytes) -> list[dict[str, Any]]:
    lines = [line for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


def said_by(stream: list[dict[str, Any]]) -> str:
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in stream if e["choices"])


async def test_adapters_are_loaded_on_demand_and_the_least_used_leaves(told: Told, saved: Saved) -> None:
    """One adapter more than all slots: each is loaded with its first request, finds its own prompt with its second and
    nobody else's, and the last one takes the place of the one that was used longest ago on its engine."""
    rng = random.Random(SEED + 3)
    prompt = [rng.randrange(10, 250) for _ in range(400)]
    salt = str(time.time_ns())  # nothing of an earlier run is found
    names = ADAPTERS[: 2 * len(URLS) + 1]
    async with router() as running:
        await forget_adapters(running)
        cached: list[tuple[int, int]] = []
        homes: dict[str, list[str]] = {}
        for name in names:
            body = {"model": name, "prompt": prompt, "max_tokens": 2, "cache_salt": salt}
            answers = [await running.ask("/v1/completions", body)]
            await running.settled()
            answers.append(await running.ask("/v1/completions", body))
            found = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer, _ in answers]
            assert found == [said["hits"] for _, said in answers]
            cached.append((found[0], found[1]))
            homes.setdefault(answers[0][1]["endpoint"], []).append(name)
            await running.settled()
        held = [await adapters_of(running, url) for url in URLS]
        counts = dict(running.gateway.metrics.adapter_loads)
        saved("router/adapters", {"loads": counts, "cached_first_and_second": cached, "held_at_the_end": held})
        told("LoRA on demand", f"{len(names)} adapters, {counts}, least used one gone")
        assert cached == [(0, 384)] * len(names)
        assert counts == {"loaded": len(names), "unloaded": 1}
        gone = [name for name in names if not any(name in row for row in held)]
        assert gone == [next(first for first, *rest in homes.values() if names[-1] in rest)]
        assert all(len(row) == 2 for row in held)


async def adapters_of(running: Running, url: str) -> list[str]:
    rows = (await running.http.get(url + "/v1/models")).json()["data"]
    return sorted(row["id"] for row in rows if row["parent"])


async def forget_adapters(running: Running) -> None:
    for url in URLS:
        for name in await adapters_of(running, url):
            await running.http.post(url + "/v1/unload_lora_adapter", json={"lora_name": name})
    await until(lambda: not any(e.residency.names for e in running.gateway.fleet))  # the router's next look at lists


async def test_a_second_turn_finds_the_first_where_it_was_answered(told: Told, saved: Saved) -> None:
    rng = random.Random(SEED + 2)
    hits = []
    async with router() as running:
        for _ in range(8):
            talk = [{"role": "user", "content": sentence(rng, 120)}]
            body = {"model": running.model, "messages": talk, "max_tokens": 8, "temperature": 0}
            answer, first = await running.ask("/v1/chat/completions", body)
            await running.settled()
            text = answer["choices"][0]["message"]["content"]
            body["messages"] = [*talk, {"role": "assistant", "content": text}, {"role": "user", "content": "and?"}]
            answer, second = await running.ask("/v1/chat/completions", body)
            usage = answer["usage"]
            assert second["endpoint"] == first["endpoint"]
            assert second["hits"] == usage["prompt_tokens_details"]["cached_tokens"]
            hits.append((second["hits"], usage["prompt_tokens"]))
            await running.settled()
    saved(
        "router/second_turns",
        {"turns": len(hits), "hit_tokens": sum(h for h, _ in hits), "prompt_tokens": sum(p for _, p in hits)},
    )
    told("second turns", f"{sum(h for h, _ in hits)} of {sum(p for _, p in hits)} prompt tokens from the cache")
    assert all(h > 0.8 * p for h, p in hits)


async def test_streams_end_whole_when_their_engine_or_their_router_is_drained(told: Told, saved: Saved) -> None:
    """Streams over both engines; then one engine is drained and asked for nothing more; then the router itself stops
    taking connections and waits for what is open."""
    if len(URLS) < 2:
        pytest.skip("one engine: nothing is left to go to")
    tokens, first = 120, asyncio.Event()

    async def stream(running: Running, number: int) -> tuple[str, bytes]:
        body = {
            "model": running.model,
            "prompt": [20 + number] * 40,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with running.http.stream("POST", "/v1/completions", json=body, headers=EXPLAIN) as answer:
            assert answer.status_code == 200
            pieces = []
            async for piece in answer.aiter_raw():
                pieces.append(piece)
                first.set()
        return answer.headers["x-tonnage-endpoint"], b"".join(pieces)

    async with router() as running:
        fleet = list(running.gateway.fleet)
        open_streams = [asyncio.create_task(stream(running, number)) for number in range(16)]
        await first.wait()
        leaving = next(e for e in fleet if e.candidate.requests)
        running.gateway.fleet.drain(leaving)
        later = await asyncio.gather(*(stream(running, 100 + number) for number in range(4)))
        early = await asyncio.gather(*open_streams)
        running.gateway.fleet.undrain(leaving)
        first.clear()
        last = [asyncio.create_task(stream(running, 200 + number)) for number in range(8)]
        await first.wait()
        await until(lambda: len(running.gateway.active) == len(last))
        await running.service.drain()
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(base_url=running.http.base_url) as fresh:
                await fresh.get("/v1/models")
        ended = await asyncio.gather(*last)
    whole = [
        events(text)[-1]["usage"]["completion_tokens"] == tokens and text.endswith(b"data: [DONE]\n\n")
        for _, text in (*early, *later, *ended)
    ]
    moved = sum(where != leaving.candidate.id for where, _ in later)
    saved("router/drain", {"streams": len(whole), "whole": sum(whole), "new_elsewhere": moved, "new": len(later)})
    told(
        "drain during streams",
        f"{sum(whole)} of {len(whole)} streams whole, {moved} of {len(later)} new ones elsewhere",
    )
    assert all(whole)
    assert moved == len(later)
