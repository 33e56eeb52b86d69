"""Adapters: found where they are, loaded where they are not, one load at a time, the least used leaving first."""

import asyncio
import time
from typing import Any

import orjson
import pytest

ADAPTERS = [{"name": f"lora-{n}", "parent": "m", "path": f"/adapters/{n}"} for n in range(4)]


def body(name: str, text: str = "x") -> bytes:
    return orjson.dumps({"model": name, "messages": [{"role": "user", "content": text}]})


def loads(engine: Any, verb: str = "load") -> list[str]:
    path = f"POST /v1/{verb}_lora_adapter ".encode()
    return [orjson.loads(call.body)["lora_name"] for call in engine.calls if call.head.startswith(path)]


async def engine_with_adapters(call: Any) -> None:
    if b"_lora_adapter" in call.head.split(b"\r\n")[0]:
        await asyncio.sleep(0.02)
    call.answer()


async def test_an_adapter_is_loaded_once_for_many_waiting_requests(engines: Any, route: Any) -> None:
    (engine,) = await engines(script=engine_with_adapters)
    router = await route([engine], adapters=ADAPTERS)
    answers = await asyncio.gather(*(router.post(body("lora-1")) for _ in range(10)))
    assert {a.status for a in answers} == {200}
    assert loads(engine) == ["lora-1"]
    first = engine.calls[0]
    assert orjson.loads(first.body) == {"lora_name": "lora-1", "lora_path": "/adapters/1"}


async def test_requests_follow_the_adapter_that_is_resident(engines: Any, route: Any) -> None:
    made = await engines(3, script=engine_with_adapters)
    router = await route(made, adapters=ADAPTERS)
    for number in range(12):
        assert (await router.post(body("lora-2", f"{number}"))).status == 200
    assert sorted(len(loads(engine)) for engine in made) == [0, 0, 1]


async def test_a_hot_adapter_spreads_when_its_holder_is_busy(engines: Any, route: Any) -> None:
    go = asyncio.Event()

    async def slow(call: Any) -> None:
        if b"_lora_adapter" not in call.head.split(b"\r\n")[0]:
            await go.wait()
        call.answer()

    made = await engines(2, script=slow)
    router = await route(made, adapters=ADAPTERS)
    tasks = [asyncio.create_task(router.post(body("lora-1", f"{n}" + "y" * 8000))) for n in range(8)]
    await router.until(lambda: all(loads(engine) for engine in made))
    go.set()
    assert {(await task).status for task in tasks} == {200}


async def test_the_least_recently_used_adapter_makes_room(engines: Any, route: Any) -> None:
    (engine,) = await engines(script=engine_with_adapters)
    spec = {"url": engine.url, "model": "m", "adapter_slots": 2}
    router = await route([engine], endpoints=[spec], adapters=ADAPTERS)
    for name in ("lora-0", "lora-1", "lora-0", "lora-2"):
        assert (await router.post(body(name))).status == 200
    assert loads(engine) == ["lora-0", "lora-1", "lora-2"]
    assert loads(engine, "unload") == ["lora-1"]
    assert next(iter(router.gateway.fleet)).candidate.adapters == {"lora-0", "lora-2"}


async def refuses_to_load(call: Any) -> None:
    if b"_lora_adapter" in call.head.split(b"\r\n")[0]:
        call.answer(b'{"error":{"message":"no such path"}}', "404 Not Found")
    else:
        call.answer()


async def test_a_load_that_fails_says_nothing_of_a_half_open_endpoint_and_keeps_nobody_from_it(
    engines: Any, route: Any
) -> None:
    router = await route(await engines(script=refuses_to_load), adapters=ADAPTERS)
    (endpoint,) = router.gateway.fleet
    breaker = endpoint.breaker
    for _ in range(breaker.faults):
        breaker.fault(time.monotonic() - 30.0)
    breaker._current_wait_s = 20.0
    assert (await router.post(body("lora-1"))).status == 502
    assert not breaker.closed and endpoint.candidate.healthy
    assert (await router.post(body("m"))).status == 200
    assert breaker.closed


async def test_a_load_that_fails_is_tried_elsewhere_without_opening_the_breaker(engines: Any, route: Any) -> None:
    (bad,) = await engines(script=refuses_to_load)
    (good,) = await engines(script=engine_with_adapters)
    router = await route([bad, good], adapters=ADAPTERS)
    for number in range(6):
        assert (await router.post(body("lora-3", f"{number}"))).status == 200
    assert all(e.candidate.healthy for e in router.gateway.fleet)
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]


async def test_an_adapter_the_engine_already_holds_is_used(engines: Any, route: Any) -> None:
    async def already(call: Any) -> None:
        if b"_lora_adapter" in call.head.split(b"\r\n")[0]:
            message = b"The lora adapter 'lora-1' has already been loaded."
            call.answer(b'{"error":{"message":"%b"}}' % message, "400 Bad Request")
        else:
            call.answer()

    router = await route(await engines(script=already), adapters=ADAPTERS)
    assert (await router.post(body("lora-1"))).status == 200


async def test_an_adapter_and_its_base_never_share_prefixes(engines: Any, route: Any) -> None:
    (engine,) = await engines(script=engine_with_adapters)
    other = await engines(1, script=engine_with_adapters)
    router = await route([engine, *other], adapters=ADAPTERS)
    text, explain = "word " * 900, b"x-tonnage-explain: 1\r\n"
    hits = []
    for name in ("m", "lora-1", "lora-1", "lora-2"):
        answer = await router.post(body(name, text), extra=explain)
        hits.append(int(answer.header(b"x-tonnage-hit-tokens") or b""))
    assert hits[0] == hits[1] == hits[3] == 0 and hits[2] > 500


async def test_known_adapters_are_listed_with_their_parent_before_they_are_loaded(engines: Any, route: Any) -> None:
    router = await route(await engines(), adapters=ADAPTERS)
    client = await router.client()
    client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n")
    rows = orjson.loads((await client.read()).body)["data"]
    assert {(row["id"], row.get("parent")) for row in rows} == {("m", None), *((a["name"], "m") for a in ADAPTERS)}


async def test_a_client_that_leaves_during_a_load_leaves_no_count(engines: Any, route: Any) -> None:
    async def never(call: Any) -> None:
        await call.reader.read(1)

    router = await route(await engines(script=never), adapters=ADAPTERS)
    client = await router.client()
    client.send(body("lora-1"))
    await router.until(lambda: bool(router.gateway.active))
    client.close()
    await router.settled()
    assert router.counters() == [(0, 0, 0)]


async def test_adapters_and_their_base_wait_in_one_queue(engines: Any, route: Any) -> None:
    go = asyncio.Event()

    async def slow(call: Any) -> None:
        if b"_lora_adapter" not in call.head.split(b"\r\n")[0]:
            await go.wait()
        call.answer()

    router = await route(await engines(script=slow), adapters=ADAPTERS, endpoint_requests=1)
    tasks = [asyncio.create_task(router.post(body(name))) for name in ("m", "m", "lora-1", "m", "lora-2")]
    await router.until(lambda: router.gateway.admission.lengths() == {"m": 4})
    go.set()
    assert {(await task).status for task in tasks} == {200}
    assert router.gateway.admission.lengths() == {"m": 0}


def listed(*names: str) -> list[dict[str, Any]]:
    return [{"id": "m"}, *({"id": name, "parent": "m"} for name in names)]


async def test_an_adapter_that_only_the_engine_can_load_is_never_unloaded(engines: Any, route: Any) -> None:
    (engine,) = await engines(script=engine_with_adapters)
    engine.listed = listed("theirs")
    spec = {"url": engine.url, "model": "m", "adapter_slots": 2}
    router = await route([engine], endpoints=[spec], adapters=ADAPTERS)
    await router.until(lambda: "theirs" in next(iter(router.gateway.fleet)).candidate.adapters)
    for name in ("theirs", "lora-0", "lora-1", "theirs", "lora-2"):
        assert (await router.post(body(name))).status == 200
    assert loads(engine) == ["lora-0", "lora-1", "lora-2"]
    assert loads(engine, "unload") == ["lora-0", "lora-1"]


async def test_adapters_that_only_engines_list_count_as_their_bases_demand(engines: Any, route: Any) -> None:
    go = asyncio.Event()

    async def slow(call: Any) -> None:
        await go.wait()
        call.answer()

    (engine,) = await engines(script=slow)
    engine.listed = listed("theirs")
    router = await route([engine], endpoint_requests=1)
    await router.until(lambda: "theirs" in router.gateway.fleet.seen_models)
    tasks = [asyncio.create_task(router.post(body(name))) for name in ("m", "m", "theirs")]
    await router.until(lambda: router.gateway.admission.lengths() == {"m": 2})
    rows = router.gateway.admission.document()
    assert [(row["pool"], row["adapter"], row["requests"]) for row in rows] == [("m", None, 1), ("m", "theirs", 1)]
    go.set()
    assert {(await task).status for task in tasks} == {200}
    assert set(router.gateway.metrics.tokens) == {"m"}


async def test_a_load_that_is_refused_is_logged_with_what_the_engine_said(
    engines: Any, route: Any, caplog: pytest.LogCaptureFixture
) -> None:
    router = await route(await engines(script=refuses_to_load), adapters=ADAPTERS)
    await router.post(body("lora-1"))
    (record,) = [record for record in caplog.records if record.getMessage() == "adapter not loaded"]
    assert (vars(record)["adapter"], vars(record)["status"]) == ("lora-1", 404)
    assert "no such path" in vars(record)["answer"]
