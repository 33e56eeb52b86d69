"""Reports of other routers' users that need a whole router, beyond those the other files cover."""

import asyncio
import time
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from tonnage_router.app import build_app

CHAT = b'{"model":"m","messages":[]}'


def entry(name: str, parent: str | None = None) -> dict[str, Any]:
    return {"id": name, "object": "model", **({"parent": parent} if parent else {})}


async def test_an_adapter_loaded_behind_the_routers_back_is_routable_and_gone_again(engines: Any, route: Any) -> None:
    (engine,) = await engines(listed=[entry("m")])
    router = await route([engine], models_interval_s=0.05)
    assert (await router.post(b'{"model":"late"}')).status == 404
    engine.listed = [entry("m"), entry("late", "m")]
    await router.until(lambda: "late" in router.gateway.fleet.seen_models)
    assert (await router.post(b'{"model":"late"}')).status == 200
    engine.listed = [entry("m")]
    await router.until(lambda: not router.gateway.scheduler.eligible("late"))
    assert (await router.post(b'{"model":"late"}')).status == 503


async def test_a_context_limit_that_has_changed_is_heeded_beyond_the_shortlist(engines: Any, route: Any) -> None:
    made = await engines(10, listed=[entry("m") | {"max_model_len": 64}])
    router = await route(made, models_interval_s=0.05)
    assert (await router.post(b'{"model":"m"}')).status == 200
    made[9].listed = [entry("m") | {"max_model_len": 4096}]
    await router.until(lambda: any(e.candidate.max_model_len == 4096 for e in router.gateway.fleet))
    for number in range(20):
        long = b'{"model":"m","prompt":"' + b"%d " % number * 1000 + b'"}'
        assert (await router.post(long, b"/v1/completions")).status == 200
    assert len([call for call in made[9].calls if len(call.body) > 1000]) == 20


async def test_adapters_in_flight_are_not_taken_for_adapters_resident(engines: Any, route: Any) -> None:
    page = b'vllm:lora_requests_info{max_lora="2",running_lora_adapters="busy",waiting_lora_adapters="busy"} 1.8e9\n'
    (engine,) = await engines(listed=[entry("m"), entry("idle", "m")], metrics=page)
    router = await route([engine], metrics_interval_s=0.05)
    candidate = next(iter(router.gateway.fleet)).candidate
    await router.until(lambda: candidate.adapter_slots == 2)
    assert candidate.adapters == {"idle"}


async def test_a_model_name_with_a_colon_is_an_exact_name(engines: Any, route: Any) -> None:
    (engine,) = await engines(model="qwen:7b")
    router = await route([engine])
    assert (await router.post(b'{"model":"qwen:7b"}')).status == 200
    assert (await router.post(b'{"model":"qwen"}')).status == 404


@pytest.mark.parametrize(("policy", "named"), [("session", b"x-session-id: chat-1\r\n"), ("consistent_hash", b"")])
async def test_request_ids_never_scatter_a_conversation(policy: str, named: bytes, engines: Any, route: Any) -> None:
    made = await engines(4)
    router = await route(made, policy=policy)
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"word " * 200)
    for number in range(12):
        extra = named + b"x-request-id: r%d\r\nx-correlation-id: c%d\r\n" % (number, number)
        assert (await router.post(body, extra=extra)).status == 200
    assert sorted(len(engine.calls) for engine in made) == [0, 0, 0, 12]


async def test_sessions_of_like_names_are_different_sessions(engines: Any, route: Any) -> None:
    made = await engines(4)
    router = await route(made, policy="session")
    for number in range(40):
        await router.post(CHAT, extra=b"x-session-id: session-%d\r\n" % number)
    assert sum(1 for engine in made if engine.calls) == 4


async def test_an_engines_error_keeps_its_length_and_every_byte(engines: Any, route: Any) -> None:
    error = b'{"object":"error","message":"too long \xe2\x82\xac","code":400}\n'

    async def script(call: Any) -> None:
        call.answer(error, "400 Bad Request")

    router = await route(await engines(script=script))
    answer = await router.post(CHAT)
    assert (answer.body, answer.header(b"content-length")) == (error, b"%d" % len(error))


async def test_too_long_prompts_do_not_take_the_fleet_down(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        call.answer(b"{}", "400 Bad Request" if b"long" in call.body else "200 OK")

    made = await engines(2, script=script)
    router = await route(made)
    for _ in range(60):
        assert (await router.post(b'{"model":"m","prompt":"long"}')).status == 400
    assert (await router.post(CHAT)).status == 200


async def test_a_last_endpoint_that_comes_back_is_not_kept_out_by_a_request_that_it_fails(
    engines: Any, route: Any
) -> None:
    async def script(call: Any) -> None:
        call.answer(b"{}", "500 Internal Server Error" if b"poison" in call.body else "200 OK")

    router = await route(await engines(script=script))
    (endpoint,) = router.gateway.fleet
    for _ in range(5):
        endpoint.breaker.fault(time.monotonic() - 60)  # its wait is over
    for _ in range(3):
        assert (await router.post(b'{"model":"m","user":"poison"}')).status == 500
        assert endpoint.candidate.healthy
    assert (await router.post(b'{"model":"m"}')).status == 200
    assert endpoint.breaker.closed


async def test_a_half_open_breaker_ends_in_a_decision_under_many_requests(engines: Any, route: Any) -> None:
    broken, go = True, asyncio.Event()

    async def script(call: Any) -> None:
        if broken:
            call.writer.transport.abort()
        else:
            await go.wait()
            call.answer()

    router = await route(await engines(script=script), retries=0)
    for _ in range(6):
        await router.post(CHAT)
    assert not next(iter(router.gateway.fleet)).candidate.healthy
    broken = False
    await router.until(lambda: next(iter(router.gateway.fleet)).candidate.healthy)
    probes = [asyncio.create_task(router.post(CHAT)) for _ in range(20)]
    await router.until(lambda: sum(probe.done() for probe in probes) >= 10)  # refused: one is on its way
    go.set()
    assert [(await probe).status for probe in probes].count(503) >= 10
    answers = await asyncio.gather(*(router.post(CHAT) for _ in range(50)))
    assert {a.status for a in answers} == {200}


async def test_time_outs_errors_and_failing_closes_leave_no_count(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        turn = len(call.engine.calls) % 4
        if turn == 0:
            await call.reader.read(1)
        elif turn == 1:
            call.answer(b"{}", "500 Internal Server Error")
        elif turn == 2:
            call.writer.write(b"HTTP/1.1 nonsense\r\n\r\n")
        else:
            call.writer.transport.abort()

    made = await engines(2, script=script)
    router = await route(made, first_byte_timeout_s=0.3)
    answers = await asyncio.gather(*(router.post(CHAT) for _ in range(40)))
    assert all(a.status >= 500 for a in answers)
    assert all("error" in orjson.loads(a.body) or a.body == b"{}" for a in answers)
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]


async def test_health_answers_while_a_thousand_requests_wait(engines: Any, route: Any) -> None:
    go = asyncio.Event()

    async def held(call: Any) -> None:
        await go.wait()
        call.answer()

    router = await route(await engines(4, script=held), endpoint_requests=100)
    waiting = [asyncio.create_task(router.post(CHAT)) for _ in range(1000)]
    await router.until(lambda: len(router.gateway.active) == 1000)
    app = build_app(router.gateway, CollectorRegistry())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as admin:
        assert [(await admin.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    assert len(router.gateway.active) == 1000, "it answered before a single one of them ended"
    go.set()
    assert {(await task).status for task in waiting} == {200}


async def test_an_endpoint_that_refuses_connections_is_out_at_the_next_choice(engines: Any, route: Any) -> None:
    gone, stays = await engines(2)
    router = await route([gone, stays])
    gone.stop()
    await asyncio.sleep(0)
    while not (failed := router.gateway.metrics.endpoint_failures):
        assert (await router.post(CHAT)).status == 200
    before = dict(failed)
    assert [(await router.post(CHAT)).status for _ in range(20)] == [200] * 20
    assert router.gateway.metrics.endpoint_failures == before
