"""Admission by predicted TTFT over loopback: who is refused, with what words, and how the explain API tells it."""

import asyncio
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from tonnage_router.app import build_app
from tonnage_router.settings import SloSpec

TEXT = "every word of this prompt is new and counts for about one token of four bytes "


def chat(name: str, tokens: int, **fields: Any) -> bytes:
    """A prompt of about `tokens` tokens that no other `name` begins like."""
    words = f"{name} " * 40 + TEXT * (4 * tokens // len(TEXT))
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": words}], **fields})


def measured(router: Any, tokens_per_s: float) -> None:
    """As if five streams had shown this pace on every endpoint."""
    for endpoint in router.gateway.fleet:
        for _ in range(5):
            endpoint.pace.learn(8000, 8000 / tokens_per_s)


async def asked(router: Any, path: str) -> Any:
    """The admin API's answer to GET, without a socket."""
    sent: list[dict[str, Any]] = []
    scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": [], "scheme": "http"}
    scope |= {"root_path": "", "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2)}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await build_app(router.gateway, CollectorRegistry())(scope, receive, send)
    return orjson.loads(b"".join(m.get("body", b"") for m in sent))


async def test_a_request_that_would_begin_late_is_429_with_the_time_to_come_back(engines: Any, route: Any) -> None:
    held = asyncio.Event()

    async def wait(call: Any) -> None:
        await held.wait()
        call.answer()

    (engine,) = await engines(script=wait)
    router = await route([engine], slo=SloSpec(ttft_ms=2000, admit=True))
    measured(router, 1000.0)
    first = await router.client()
    first.send(chat("a", 6000))
    await router.until(lambda: len(engine.calls) == 1)
    refused = await router.post(chat("b", 1000), extra=b"X-Request-Id: late\r\n")
    error = orjson.loads(refused.body)["error"]
    assert (refused.status, error["code"]) == (429, "ttft_over_slo")
    assert 4 <= int(refused.header(b"retry-after")) <= 7
    assert len(engine.calls) == 1

    told = (await asked(router, "/admin/decisions"))["refusals"]
    assert [(row["request_id"], row["reason"], row["slo_ttft_ms"]) for row in told] == [
        ("late", "ttft_over_slo", 2000.0)
    ]
    (forecast,) = told[0]["forecasts"]
    assert forecast["ttft_ms"] > 6000 and forecast["tokens_per_s"] == 1000.0
    assert router.gateway.metrics.outcomes["ttft_over_slo"] == 1

    held.set()
    assert (await first.read()).status == 200
    assert (await router.post(chat("b", 1000))).status == 200
    shown = (await asked(router, "/admin/decisions"))["decisions"][0]["admission"]
    assert shown["slo_ttft_ms"] == 2000.0 and shown["forecasts"][0]["ttft_ms"] < 2000
    assert router.counters() == [(0, 0, 0)]


async def test_a_long_prompt_is_held_to_a_limit_of_its_own(engines: Any, route: Any) -> None:
    opened = asyncio.Event()

    async def wait(call: Any) -> None:
        await opened.wait()
        call.answer()

    (engine,) = await engines(script=wait)
    router = await route([engine], slo=SloSpec(ttft_ms=100, ttft_ms_per_prompt_token=3, admit=True))
    measured(router, 1000.0)
    first, long = await router.client(), await router.client()
    first.send(chat("a", 6000))
    await router.until(lambda: len(engine.calls) == 1)
    assert (await router.post(chat("b", 500))).status == 429
    long.send(chat("c", 6000))  # 12 s of 18
    await router.until(lambda: len(engine.calls) == 2)
    (told,) = (await asked(router, "/admin/decisions"))["refusals"]
    assert told["slo_ttft_ms"] == 100 + 3 * told["prompt_tokens"]
    opened.set()
    assert [(await client.read()).status for client in (first, long)] == [200, 200]


async def test_nothing_is_refused_without_admission_or_while_paces_are_unknown(engines: Any, route: Any) -> None:
    async def never(call: Any) -> None:
        await asyncio.Event().wait()

    (engine,) = await engines(script=never)
    plain = await route([engine], slo=SloSpec(ttft_ms=1))
    unknown = await route([engine], slo=SloSpec(ttft_ms=1, admit=True))
    measured(plain, 1000.0)
    for router in (plain, unknown):
        for name in ("a", "b"):
            (await router.client()).send(chat(name, 3000))
        await router.until(lambda router=router: len(router.gateway.active) == 2)
        await router.until(lambda router=router: router.counters()[0][0] == 2)
    assert plain.gateway.admission.slo.document() == []


async def test_the_limit_of_one_model_leaves_the_others_alone(engines: Any, route: Any) -> None:
    async def never(call: Any) -> None:
        await asyncio.Event().wait()

    (engine,) = await engines(script=never)
    router = await route([engine], slos={"other": SloSpec(ttft_ms=1, admit=True)})
    measured(router, 1000.0)
    for name in ("a", "b"):
        (await router.client()).send(chat(name, 3000))
    await router.until(lambda: router.counters()[0][0] == 2)


async def a_second_behind_a_first(router: Any, engine: Any, tokens: int) -> tuple[Any, Any, Any]:
    """Both clients, and the second's exchange, which waits in the router for the first, a short answer."""
    first, second = await router.client(), await router.client()
    first.send(chat("a", 10, max_tokens=5))
    await router.until(lambda: len(engine.calls) == 1)
    second.send(chat("b", tokens, max_tokens=50))
    await router.until(lambda: len(router.gateway.active) == 2)
    (exchange,) = (each for each in router.gateway.active if each.endpoint is None)
    return first, second, exchange


async def latest_forecast(router: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    decision = (await asked(router, "/admin/decisions"))["decisions"][0]
    (forecast,) = decision["admission"]["forecasts"]
    return decision, forecast


def one_by_one(opened: asyncio.Event) -> Any:
    """An engine's script: only the first request waits for `opened`."""

    async def script(call: Any) -> None:
        if len(call.engine.calls) == 1:
            await opened.wait()
        call.answer()

    return script


async def test_a_prompt_that_may_be_held_is_not_refused_for_it_and_is_held_no_longer_than_it_can_be(
    engines: Any, route: Any
) -> None:
    """5 of its 10 s are its own; for 6 it would be held by its share."""
    opened = asyncio.Event()
    (engine,) = await engines(script=one_by_one(opened))
    router = await route([engine], slo=SloSpec(ttft_ms=10_000, admit=True))
    measured(router, 4000.0)
    first, second, exchange = await a_second_behind_a_first(router, engine, 20_000)
    assert exchange.held_at and not router.gateway.admission.slo.document()
    exchange.started -= 4.7
    exchange.held_at -= 4.7
    router.gateway.holding.sweep()
    assert (await second.read()).status == 200, "the answer in flight has not ended"
    decision, forecast = await latest_forecast(router)
    assert 4700 <= decision["held_ms"] <= forecast["waited_ms"] + 0.001
    assert forecast["ttft_ms"] == pytest.approx(forecast["waited_ms"] + 5000, rel=0.02)
    assert forecast["ttft_ms"] < 10_000 and forecast["queued_ms"] == 0
    assert forecast["ahead_tokens"] < 100, "without its own"
    opened.set()
    assert (await first.read()).status == 200


async def test_what_is_forecast_of_a_request_that_was_queued_counts_its_wait(engines: Any, route: Any) -> None:
    opened = asyncio.Event()
    (engine,) = await engines(script=one_by_one(opened))
    router = await route([engine], endpoint_requests=1, slo=SloSpec(ttft_ms=20_000, admit=True))
    measured(router, 4000.0)
    first, second, exchange = await a_second_behind_a_first(router, engine, 2000)
    assert router.gateway.admission.waiting == 1
    exchange.started -= 25.0
    opened.set()
    assert [(await client.read()).status for client in (first, second)] == [200, 200], "it was let in"
    _, forecast = await latest_forecast(router)
    assert forecast["waited_ms"] >= 25_000 and forecast["ttft_ms"] >= forecast["waited_ms"] + 500


async def test_what_is_forecast_of_a_request_that_failed_elsewhere_counts_that_time(engines: Any, route: Any) -> None:
    async def fail_late(call: Any) -> None:
        (exchange,) = router.gateway.active
        exchange.started -= 3.0
        call.answer(status="500 Internal Server Error" if sum(len(each.calls) for each in made) == 1 else "200 OK")

    made = await engines(2, script=fail_late)
    router = await route(made, slo=SloSpec(ttft_ms=20_000, admit=True))
    measured(router, 4000.0)
    assert (await router.post(chat("a", 2000))).status == 200
    rows = (await asked(router, "/admin/decisions"))["decisions"]
    waited = [row["admission"]["forecasts"][0]["waited_ms"] for row in rows]
    assert waited[0] >= 3000 > waited[1]


async def test_the_time_since_a_request_came_counts(engines: Any, route: Any) -> None:
    """It took long to measure its prompt: 0.6 s are its own, a little is ahead."""
    opened = asyncio.Event()
    (engine,) = await engines(script=one_by_one(opened))
    router = await route([engine], endpoint_requests=1, slo=SloSpec(ttft_ms=2000, admit=True))
    measured(router, 1000.0)
    first, second, exchange = await a_second_behind_a_first(router, engine, 600)
    slo = router.gateway.admission.slo
    exchange.started -= 1.0
    assert slo.admits(exchange, "m", 0.0)
    exchange.started -= 1.0
    assert not slo.admits(exchange, "m", 0.0)
    assert (await second.read()).status == 429
    opened.set()
    assert (await first.read()).status == 200
