"""KV events from engines through the router: what it predicts is what engines find in their caches."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
import pytest

from tonnage_router.gateway import Gateway
from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind
from tonnage_runtime.metrics import new_registry
from tonnage_sim.app import Ports, Simulator, build_app
from tonnage_sim.http1.server import Server
from tonnage_sim.settings import SimSettings

EXPLAIN = b"x-tonnage-explain: 1\r\n"
BLOCK = 16


@dataclass
class Sim:
    app: Simulator
    url: str
    model: str = "m"

    @property
    def ports(self) -> tuple[int, int | None]:
        publisher = self.app.kv_events
        assert publisher is not None
        stream, replay = publisher.endpoint, publisher.replay_endpoint
        return int(stream.rpartition(":")[2]), None if replay is None else int(replay.rpartition(":")[2])

    @property
    def number(self) -> int:
        publisher = self.app.kv_events
        assert publisher is not None
        return publisher.number

    def spec(self, **fields: Any) -> dict[str, Any]:
        stream, replay = self.ports
        return {"url": self.url, "model": "m", "kv_events_port": stream, "kv_events_replay_port": replay, **fields}


@asynccontextmanager
async def simulator(events: dict[str, Any], **settings: Any) -> AsyncIterator[Sim]:
    chosen = SimSettings.model_validate(
        {
            "model": "Qwen/Qwen3-0.6B",
            "served_model_name": "m",
            "time_scale": 2000.0,
            "num_blocks": 160,
            "max_model_len": 1024,
            "max_loras": 2,
            "lora_modules": {"lora-a": "/a", "lora-b": "/b"},
            "kv_events_config": {"endpoint": "tcp://127.0.0.1:*", **events},
            **settings,
        }
    )
    shape, gpu = load_model(chosen.model), load_gpu(chosen.gpu)
    app = build_app(chosen, Ports(SystemClock(), new_registry(), shape, gpu, lambda: None))
    server, sock = Server(app), bind("127.0.0.1", 0)
    async with app.running():
        await server.start(sock)
        try:
            yield Sim(app, f"http://127.0.0.1:{sock.getsockname()[1]}")
        finally:
            await server.stop(0.0)


Start = Callable[..., Awaitable[Sim]]
REPLAY = {"replay_endpoint": "tcp://127.0.0.1:*"}


@pytest.fixture
async def sims() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(events: dict[str, Any] | None = None, **settings: Any) -> Sim:
            return await stack.enter_async_context(simulator(REPLAY if events is None else events, **settings))

        yield start


def endpoint_of(router: Any, sim: Sim) -> Any:
    return next(e for e in router.gateway.fleet if e.spec.url == sim.url)


async def told(router: Any, *engines: Sim) -> None:
    """Until the router has followed all that the engines have published."""
    for sim in engines:
        follower = endpoint_of(router, sim).follower
        await router.until(lambda f=follower, s=sim: f.document()["live"] and f.document()["next"] == s.number)


async def ask(router: Any, prompt: list[int], model: str = "m", **fields: Any) -> tuple[int, int]:
    """Hit tokens as the router predicts them and as the engine reports them."""
    body = {"model": model, "prompt": prompt, "max_tokens": 3, "ignore_eos": True, **fields}
    answer = await router.post(orjson.dumps(body), b"/v1/completions", EXPLAIN)
    assert answer.status == 200, answer.body
    usage = orjson.loads(answer.body)["usage"]
    return int(answer.header(b"x-tonnage-hit-tokens") or b"-1"), usage["prompt_tokens_details"]["cached_tokens"]


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(256, 60_000) for _ in range(count)]


async def test_predicted_hits_are_the_engines_own_over_evictions_adapters_and_salts(sims: Start, route: Any) -> None:
    """Caches of 160 blocks under 200 prompts of up to 25: blocks are evicted all the time."""
    engines = [await sims(), await sims()]
    router = await route(engines, endpoints=[sim.spec() for sim in engines])
    await told(router, *engines)
    rng = random.Random(7)
    stems = [words(rng, length) for length in (40, 130, 200, 290)]
    hits = 0
    for _ in range(200):
        prompt = rng.choice(stems)[: rng.choice((16, 33, 128, 290))] + words(rng, rng.randrange(1, 110))
        model = rng.choice(("m", "m", "lora-a", "lora-b"))
        salt = rng.choice(({}, {}, {"cache_salt": "tenant-a"}))
        predicted, found = await ask(router, prompt, model, **salt)
        assert predicted == found
        hits += found
        await told(router, *engines)
    assert hits > 3000
    assert all(sim.app.service.loop.stats.counters.evicted_blocks > 100 for sim in engines)
    for sim in engines:
        endpoint = endpoint_of(router, sim)
        assert endpoint.follower.document()["blocks"] == sim.app.service.loop.stats.cached_blocks
        assert endpoint.candidate.kv_complete and endpoint.candidate.kv_block_size == BLOCK
    metrics = router.gateway.metrics
    assert {outcome for _, outcome in metrics.kv_events} == {"stored", "removed"}
    assert metrics.prompt_keys == {"exact": 199}  # the first came before any block was stored


async def test_a_router_that_starts_later_learns_what_is_cached_by_replay(sims: Start, route: Any) -> None:
    sim = await sims()
    prompt = words(random.Random(1), 300)
    early = await route([sim], endpoints=[sim.spec()])
    await told(early, sim)
    assert await ask(early, prompt) == (0, 0)
    late = await route([sim], endpoints=[sim.spec()])
    await told(late, sim)
    assert await ask(late, prompt) == (288, 288)


async def test_history_beyond_the_replay_buffer_counts_what_was_routed_too(sims: Start, route: Any) -> None:
    sim = await sims({**REPLAY, "buffer_steps": 1})
    rng = random.Random(2)
    old, new = words(rng, 200), words(rng, 200)
    early = await route([sim], endpoints=[sim.spec()])
    await told(early, sim)
    await ask(early, old)
    await ask(early, new)
    late = await route([sim], endpoints=[sim.spec()])
    await told(late, sim)
    assert not endpoint_of(late, sim).candidate.kv_complete
    predicted, found = await ask(late, old)
    assert (predicted, found) == (0, 192)
    await told(late, sim)
    assert endpoint_of(late, sim).follower.document()["complete"] is False
    assert await ask(late, old) == (128, 192)  # the engine stored nothing anew: what was routed is all that is known


async def test_a_cleared_cache_is_known_at_once(sims: Start, route: Any) -> None:
    sim = await sims()
    router = await route([sim], endpoints=[sim.spec()])
    await told(router, sim)
    prompt = words(random.Random(3), 200)
    await ask(router, prompt)
    await told(router, sim)
    assert sim.app.service.loop.reset_prefix_cache()
    await told(router, sim)
    assert await ask(router, prompt) == (0, 0)
    assert router.gateway.metrics.kv_events[endpoint_of(router, sim).id, "cleared"] == 1


async def test_an_engine_that_restarts_at_its_address_starts_with_an_empty_view(route: Any) -> None:
    prompt = words(random.Random(4), 200)
    async with AsyncExitStack() as first:
        sim = await first.enter_async_context(simulator(REPLAY))
        stream, replay = sim.ports
        router = await route([sim], endpoints=[sim.spec()], health_interval_s=0.05)
        await told(router, sim)
        await ask(router, prompt)
        await told(router, sim)
        port = int(sim.url.rpartition(":")[2])
        endpoint = endpoint_of(router, sim)
        assert endpoint.follower.document()["blocks"] > 0
    await router.until(lambda: endpoint.candidate.kv_block_size is None)
    assert endpoint.follower.document()["blocks"] == 0
    events = {"endpoint": f"tcp://127.0.0.1:{stream}", "replay_endpoint": f"tcp://127.0.0.1:{replay}"}
    async with simulator(events) as again:
        server, sock = Server(again.app), bind("127.0.0.1", port)
        await server.start(sock)
        await told(router, sim_at(again, endpoint.spec.url))
        await router.until(lambda: endpoint.candidate.healthy)
        assert (await ask(router, prompt))[1] == 0
        await told(router, sim_at(again, endpoint.spec.url))
        assert await ask(router, prompt) == (192, 192)
        await server.stop(0.0)
    assert router.gateway.metrics.kv_events[endpoint.id, "disconnect"] >= 1


def sim_at(sim: Sim, url: str) -> Sim:
    return Sim(sim.app, url)


async def test_a_burst_of_equal_prompts_stays_together_before_the_engine_has_told(sims: Start, route: Any) -> None:
    engines = [await sims(time_scale=50.0) for _ in range(3)]
    router = await route(engines, endpoints=[sim.spec() for sim in engines])
    await told(router, *engines)
    rng = random.Random(5)
    await ask(router, words(rng, 40))
    await told(router, *engines)
    prompt = words(rng, 600)
    await asyncio.gather(*(ask(router, prompt + words(rng, 20)) for _ in range(4)))
    chosen = [record.document() for record in list(router.gateway.decisions)[-4:]]
    assert [row["hit_tokens"] for row in chosen] == [0, 592, 592, 592]
    assert len({row["chosen"] for row in chosen}) == 1
    assert router.counters() == [(0, 0, 0)] * 3


def told_of(gateway: Gateway) -> list[dict[str, Any]]:
    return [e.follower.document() for e in gateway.fleet if e.follower is not None]


async def connected(router: Any) -> None:
    await router.until(lambda: all(row["live"] for row in told_of(router.gateway)))


async def predicted(router: Any, prompt: list[int]) -> int:
    body = orjson.dumps({"model": "m", "prompt": prompt})
    answer = await router.post(body, b"/v1/completions", EXPLAIN)
    assert answer.status == 200
    return int(answer.header(b"x-tonnage-hit-tokens") or b"-1")


async def test_bytes_that_are_no_events_are_counted_and_survived(engines: Any, route: Any, publisher: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], endpoints=[{"url": engine.url, "model": "m", "kv_events_port": publisher.bind()}])
    await connected(router)
    tokens = list(range(1000, 1064))
    rubbish = [
        b"", b"\xc1", b"\x93\x01\x02", msgspec.msgpack.encode({"ts": 1}), msgspec.msgpack.encode([1, "no"]),
        msgspec.msgpack.encode([1, [None, 3, [], ["BlockMoved", 1], {"type": "BlockStored", "block_hashes": 3}]]),
        msgspec.msgpack.encode([1, [["BlockStored", [b"a"], None, [1, 2], 16, None]], 0]),
        b"\x81" * 5000,
    ]  # fmt: skip
    for payload in rubbish:
        publisher.send(payload)
    publisher.sockets[0].send_multipart([b"", b"short", b""])
    publisher.stored(tokens)
    await router.until(lambda: told_of(router.gateway)[0]["blocks"] == 4)
    assert await predicted(router, [*tokens, 1]) == 64
    (count,) = (n for (_, outcome), n in router.gateway.metrics.kv_events.items() if outcome == "malformed")
    assert count == 13
    assert not told_of(router.gateway)[0]["complete"]


async def test_events_as_arrays_of_older_engines_are_read(engines: Any, route: Any, publisher: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], endpoints=[{"url": engine.url, "model": "m", "kv_events_port": publisher.bind()}])
    await connected(router)
    tokens = list(range(2000, 2032))
    publisher.send(msgspec.msgpack.encode([0.0, [["BlockStored", [11, 12], None, tokens, BLOCK, None]]]))
    await router.until(lambda: told_of(router.gateway)[0]["blocks"] == 2)
    assert await predicted(router, [*tokens, 1]) == 32
    publisher.send(msgspec.msgpack.encode([0.0, [["BlockRemoved", [12]]]]))
    await router.until(lambda: told_of(router.gateway)[0]["blocks"] == 1)
    assert await predicted(router, [*tokens, 1]) == 16
    assert told_of(router.gateway)[0]["complete"]


async def test_a_gap_without_replay_empties_the_view(engines: Any, route: Any, publisher: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], endpoints=[{"url": engine.url, "model": "m", "kv_events_port": publisher.bind()}])
    await connected(router)
    first, second = list(range(100, 132)), list(range(200, 232))
    publisher.stored(first, b"f")
    publisher.numbers[0] += 1
    publisher.stored(second, b"s")
    await router.until(lambda: told_of(router.gateway)[0]["next"] == 3)
    assert (await predicted(router, [*first, 1]), await predicted(router, [*second, 1])) == (0, 32)
    assert told_of(router.gateway)[0]["complete"] is False


async def test_an_endpoint_that_leaves_takes_its_blocks_and_sockets_along(
    engines: Any, route: Any, publisher: Any
) -> None:
    gone, stays = await engines(2)
    specs = [{"url": gone.url, "model": "m", "kv_events_port": publisher.bind()}, {"url": stays.url, "model": "m"}]
    router = await route([gone, stays], endpoints=specs)
    await connected(router)
    tokens = list(range(3000, 3160))
    publisher.stored(tokens)
    await router.until(lambda: told_of(router.gateway)[0]["blocks"] == 10)
    gateway = router.gateway
    endpoint = endpoint_of(router, gone)
    slot = endpoint.candidate.slot
    gateway.fleet.remove(endpoint)
    router.service.prober.follow()
    publisher.stored(list(range(5000, 5016)), b"late")
    await asyncio.sleep(0.05)
    assert gateway.scheduler.exact.blocks(slot) == 0 and not gateway.prompts._sizes
    assert await predicted(router, [*tokens, 1]) == 0
