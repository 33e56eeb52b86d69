"""The queue through the whole router: turns, floods, length classes, deadlines, pools that scale from zero."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest

from tests.integration.router.tenant_files import key, write
from tonnage_router.admission import Contention
from tonnage_router.settings import EndpointSpec

STREAM = b'{"model":"m","stream":true,"messages":[]}'


def held_until(go: asyncio.Event) -> Callable[[Any], Awaitable[None]]:
    """An engine's script: every request waits for `go`."""

    async def held(call: Any) -> None:
        await go.wait()
        call.answer()

    return held


async def test_a_flood_of_one_tenant_leaves_anothers_turn(engines: Any, route: Any, tmp_path: Path) -> None:
    order: list[str] = []

    async def slow(call: Any) -> None:
        order.append(orjson.loads(call.body)["user"])
        await asyncio.sleep(0.005)
        call.answer()

    router = await route(await engines(script=slow), tenants_file=write(tmp_path, a={}, b={}), endpoint_requests=1)

    async def send(name: str) -> int:
        body = orjson.dumps({"model": "m", "user": name, "prompt": "x" * 4000})
        return int((await router.post(body, b"/v1/completions", key(name))).status)

    flood = [asyncio.create_task(send("a")) for _ in range(60)]
    await router.until(lambda: len(order) > 5)
    few = [asyncio.create_task(send("b")) for _ in range(3)]
    assert {await task for task in few + flood} == {200}
    assert max(i for i, name in enumerate(order) if name == "b") < 40
    assert router.counters() == [(0, 0, 0)]


@pytest.mark.parametrize(("others", "ahead"), [((), 20), (("b",), 3)], ids=["alone", "contended"])
async def test_while_others_send_too_a_flood_waits_here_and_not_in_the_engine(
    others: tuple[str, ...], ahead: int, engines: Any, route: Any, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def held(call: Any) -> None:
        if b'"user":"a"' in call.body:
            await go.wait()
        call.answer()

    made = await engines(script=held)
    router = await route(made, tenants_file=write(tmp_path, a={}, b={}))

    async def send(name: str, number: int = 0) -> int:
        body = orjson.dumps({"model": "m", "user": name, "prompt": f"{number:03d} " * 1000})
        return int((await router.post(body, b"/v1/completions", key(name))).status)

    assert [await send(name) for name in others] == [200] * len(others)
    flood = [asyncio.create_task(send("a", number)) for number in range(20)]
    await router.until(lambda: len(router.gateway.active) == 20)
    await router.until(lambda: len(made[0].calls) == len(others) + ahead)
    assert router.gateway.admission.waiting == 20 - ahead
    go.set()
    assert {await task for task in flood} == {200}
    assert router.counters() == [(0, 0, 0)]


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        # The holder may have less ahead than the prefix saves: 5,000 tokens, of which a prompt adds 3,000.
        ({}, [1, 3]),
        ({"contended_prefill_tokens": 10_000_000, "endpoint_requests": 2}, [2, 3]),
    ],
)
async def test_a_flood_goes_where_room_let_it_go_and_not_all_to_the_prefix_it_shares(
    limits: dict[str, int], taken: list[int], engines: Any, route: Any, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def held(call: Any) -> None:
        if b'"user":"a"' in call.body:
            await go.wait()
        call.answer()

    made = await engines(2, script=held)
    router = await route(made, tenants_file=write(tmp_path, a={}, b={}), **limits)

    async def send(name: str, number: int = 0) -> int:
        prompt = "known to one engine " * 1000 + f"{number:03d} " * 3000
        body = orjson.dumps({"model": "m", "user": name, "prompt": prompt, "stream": True})
        return int((await router.post(body, b"/v1/completions", key(name))).status)

    assert await send("b") == 200
    flood = [asyncio.create_task(send("a", number)) for number in range(1, 21)]
    await router.until(lambda: router.gateway.admission.waiting == 21 - sum(taken))  # the first request was of b
    await router.until(lambda: sum(len(engine.calls) for engine in made) == sum(taken))
    assert sorted(len(engine.calls) for engine in made) == taken
    go.set()
    assert {await task for task in flood} == {200}
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]


async def test_tenants_contend_for_a_model_whatever_length_class_they_send(
    engines: Any, route: Any, tmp_path: Path
) -> None:
    """The limits of contention hold in both queues, though each sees one tenant alone."""
    go = asyncio.Event()
    made = await engines(2, script=held_until(go))
    specs = [{"url": e.url, "model": "m", "length_class": c} for e, c in zip(made, ("short", "long"), strict=True)]
    router = await route(made, endpoints=specs, tenants_file=write(tmp_path, a={}, b={}))

    async def send(name: str, words: int) -> int:
        body = orjson.dumps({"model": "m", "prompt": f"{words:05d} " + "four " * words, "stream": True})
        return int((await router.post(body, b"/v1/completions", key(name))).status)

    prompts = [asyncio.create_task(send("b", 20_000))]
    await router.until(lambda: len(made[1].calls) == 1)
    assert not router.gateway.admission.contended("m")
    prompts += [asyncio.create_task(send("a", 1200 + number)) for number in range(10)]
    await router.until(lambda: len(router.gateway.active) == 11)
    await router.until(lambda: len(made[0].calls) + router.gateway.admission.waiting == 10)
    assert router.gateway.admission.contended("m")
    assert (len(made[0].calls), router.gateway.admission.waiting) == (2, 8), "2,048 tokens, not 32,768"
    go.set()
    assert {await task for task in prompts} == {200}
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]


@pytest.mark.parametrize("taker", ["short", None])
async def test_an_idle_endpoint_for_long_prompts_lets_no_short_ones_out(
    taker: Literal["short"] | None, engines: Any, route: Any
) -> None:
    """Each length class has a queue of its own: else room that short prompts cannot use would empty theirs."""
    go = asyncio.Event()

    short, long = await engines(2, script=held_until(go))
    specs = [
        EndpointSpec(id="short", url=short.url, model="m", length_class=taker),
        EndpointSpec(id="long", url=long.url, model="m", length_class="long"),
    ]
    router = await route([short, long], endpoints=specs, endpoint_requests=2)

    async def send(words: int) -> int:
        body = orjson.dumps({"model": "m", "prompt": "four " * words, "stream": True})
        return int((await router.post(body, b"/v1/completions")).status)

    prompts = [asyncio.create_task(send(10)) for _ in range(6)]
    await router.until(lambda: router.gateway.admission.waiting == 4)
    prompts += [asyncio.create_task(send(20_000)) for _ in range(3)]
    await router.until(lambda: router.gateway.admission.waiting == 5 and len(long.calls) == 2)
    rows = {row["length_class"]: row["requests"] for row in router.gateway.admission.document()}
    assert (len(short.calls), rows) == (2, {"short": 4, "long": 1})
    assert router.gateway.admission.lengths() == {"m": 5}
    go.set()
    assert {await task for task in prompts} == {200}
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]


async def test_what_waits_too_long_is_429_when_endpoints_exist(engines: Any, route: Any) -> None:
    async def never(call: Any) -> None:
        await call.reader.read(1)

    router = await route(await engines(script=never), endpoint_requests=1, queue_ttl_s=0.3)
    first = asyncio.create_task(router.post(STREAM))
    await router.until(lambda: bool(router.gateway.active))
    answer = await router.post(STREAM)
    assert answer.status == 429 and answer.header(b"retry-after") is not None
    first.cancel()


async def test_a_deadline_of_thousands_of_digits_is_no_deadline(engines: Any, route: Any) -> None:
    async def never(call: Any) -> None:
        await call.reader.read(1)

    router = await route(await engines(script=never), endpoint_requests=1, queue_ttl_s=0.3)
    (await router.client()).send(STREAM)
    await router.until(lambda: bool(router.gateway.active))
    answer = await router.post(STREAM, extra=b"x-tonnage-deadline-ms: " + b"9" * 5000 + b"\r\n")
    assert answer.status == 429


async def test_a_queue_longer_than_a_requests_own_deadline_is_said_at_once(engines: Any, route: Any) -> None:
    async def slow(call: Any) -> None:
        await asyncio.sleep(0.03)
        call.answer()

    router = await route(await engines(script=slow), endpoint_requests=1, queue_ttl_s=30)
    body = orjson.dumps({"model": "m", "prompt": "x" * 4000})
    waiting = [asyncio.create_task(router.post(body, b"/v1/completions")) for _ in range(20)]
    await router.until(lambda: router.gateway.admission.waiting == 19)
    await router.until(lambda: router.gateway.admission.waiting < 14)
    answer = await router.post(body, b"/v1/completions", extra=b"x-tonnage-deadline-ms: 1\r\n")
    assert answer.status == 429 and b"longer than its requests may wait" in answer.body
    assert (await router.post(body, b"/v1/completions", extra=b"x-tonnage-deadline-ms: 20000\r\n")).status == 200
    assert {(await task).status for task in waiting} == {200}


async def test_a_burst_after_quiet_hours_is_not_refused_for_what_was_asked_before(engines: Any, route: Any) -> None:
    router = await route(await engines(), endpoint_requests=1, queue_ttl_s=1)
    body = orjson.dumps({"model": "m", "prompt": "x" * 40_000})
    for _ in range(8):
        assert (await router.post(body, b"/v1/completions")).status == 200
        await asyncio.sleep(0.05)
    assert {
        answer.status for answer in await asyncio.gather(*(router.post(body, b"/v1/completions") for _ in range(60)))
    } == {200}


async def test_a_full_queue_is_429_and_a_client_that_leaves_it_frees_its_place(engines: Any, route: Any) -> None:
    async def never(call: Any) -> None:
        await call.reader.read(1)

    router = await route(await engines(script=never), endpoint_requests=1, queue_requests=1)
    clients = [await router.client() for _ in range(2)]
    for client in clients:
        client.send(STREAM)
        await asyncio.sleep(0.02)
    assert router.gateway.admission.lengths() == {"m": 1}
    assert (await router.post(STREAM)).status == 429
    for client in clients:
        client.close()
    await router.settled()
    assert router.counters() == [(0, 0, 0)]


async def test_a_pool_that_can_scale_from_zero_queues_until_an_endpoint_comes(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    engine.healthy = False
    router = await route([engine], ready=False, scale_from_zero=["m"])
    waiting = asyncio.create_task(router.post(STREAM))
    await router.until(lambda: router.gateway.admission.lengths() == {"m": 1})
    engine.healthy = True
    assert (await waiting).status == 200


async def test_prompts_whose_class_has_no_endpoint_go_to_the_others(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], endpoints=[EndpointSpec(url=engine.url, model="m", length_class="long")])
    assert (await router.post(STREAM)).status == 200
    assert router.gateway.admission.waiting == 0


async def test_only_while_tenants_contend_a_full_prefill_queue_is_no_room(route: Any) -> None:
    limits = {"endpoint_prefill_tokens": 1000, "contended_prefill_tokens": 4096, "endpoint_requests": 7}
    router = await route([], ready=False, scale_from_zero=["m"], **limits)
    admission = router.gateway.admission
    calm = admission.room_wanted("m")
    assert (calm.requests, calm.prefill_tokens) == (7, sys.maxsize)
    contention = admission._contention["m"] = Contention()
    for name in "ab":
        contention.sent(name, 0.0)
    room = admission.room_wanted("m")
    assert (room.requests, room.prefill_tokens) == (7, 1000), "the lower of both limits"
    contention.sent("a", 11.0)
    assert not admission.contended("m"), "b has not sent for 10 s"


async def test_what_waited_for_the_first_endpoint_queues_by_class_once_endpoints_have_one(
    engines: Any, route: Any
) -> None:
    go = asyncio.Event()

    short, long = await engines(2, script=held_until(go))
    router = await route([], ready=False, scale_from_zero=["m"], endpoint_requests=2)
    prompts = [asyncio.create_task(router.post(STREAM)) for _ in range(6)]
    await router.until(lambda: router.gateway.admission.lengths() == {"m": 6})
    router.gateway.add_endpoint(EndpointSpec(id="long", url=long.url, model="m", length_class="long"))
    router.gateway.add_endpoint(EndpointSpec(id="short", url=short.url, model="m", length_class="short"))
    router.service.prober.follow()
    await router.until(lambda: len(router.gateway.eligible("m")) == 2)
    await router.until(lambda: len(short.calls) >= 2)
    await asyncio.sleep(0.1)
    taken = len(long.calls)  # two, if it was up first
    assert (len(short.calls), router.gateway.admission.lengths()) == (2, {"m": 4 - taken})
    assert taken in (0, 2)
    go.set()
    assert {(await task).status for task in prompts} == {200}
    assert router.gateway.admission.waiting == 0


async def test_a_queue_that_is_parted_by_class_leaves_each_request_its_time_to_live(route: Any) -> None:
    router = await route([], ready=False, scale_from_zero=["m"], queue_ttl_s=30)
    admission, fleet = router.gateway.admission, router.gateway.fleet
    prompts = [asyncio.create_task(router.post(STREAM)) for _ in range(2)]
    await router.until(lambda: admission.waiting == 2)
    old, young = sorted(router.gateway.active, key=lambda exchange: exchange.started)
    old.started -= 29.0  # as if it had come so long ago
    spec = EndpointSpec(id="short", url="http://127.0.0.1:9", model="m", length_class="short")
    endpoint = router.gateway.add_endpoint(spec)
    endpoint.candidate.requests = 1_000_000
    fleet.set_healthy(endpoint, True)
    now = time.monotonic()
    admission._pump()
    assert [(row["length_class"], row["requests"]) for row in admission.document()] == [(None, 0), ("short", 2)]
    admission.sweep(now + 0.9)
    assert admission.waiting == 2
    admission.sweep(now + 1.1)
    assert (old.ended, young.ended, admission.waiting) == (True, False, 1)
    admission.sweep(now + 31.0)
    assert [(await task).status for task in prompts] == [429, 429]


async def test_a_router_that_never_saw_an_engine_is_ready_and_queues_for_a_pool_at_zero(
    engines: Any, route: Any
) -> None:
    (engine,) = await engines()
    router = await route([], ready=False, scale_from_zero=["m"])
    assert router.gateway.not_ready() is None
    client = await router.client()
    client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n")
    assert [row["id"] for row in orjson.loads((await client.read()).body)["data"]] == ["m"]
    waiting = asyncio.create_task(router.post(STREAM))
    await router.until(lambda: router.gateway.admission.lengths() == {"m": 1})
    router.gateway.add_endpoint(EndpointSpec(url=engine.url, model="m"))
    router.service.prober.follow()
    assert (await waiting).status == 200
    assert (await router.post(b'{"model":"other"}')).status == 404
