"""Prompts held back for answers in flight, over loopback: when they go out, what is told of it, who is never held."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from tonnage_core.scheduling import HoldRule, hold
from tonnage_core.slo import Slo
from tonnage_router import sweeper
from tonnage_router.holding import REST_S, holds_prompts
from tonnage_router.profiles import profile_of
from tonnage_router.settings import RouterSettings, SloSpec

WORDS = "every word of this prompt is new and counts for about one token of four bytes "
PATIENT = SloSpec(ttft_ms=600_000)
INTERNAL = 1


def chat(name: str, tokens: int, answer: int) -> bytes:
    """A prompt of about `tokens` tokens, its answer's length asked for."""
    words = f"{name} " * 40 + WORDS * (4 * tokens // len(WORDS))
    return orjson.dumps({"model": "m", "max_tokens": answer, "messages": [{"role": "user", "content": words}]})


SHORT, LONG = chat("a", 10, 5), chat("b", 20_000, 50)


class Gate:
    """An engine's script: the first request waits for `opened`, others are answered at once."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.at_each: Callable[[], None] = lambda: None

    async def __call__(self, call: Any) -> None:
        self.at_each()
        if len(call.engine.calls) == 1:
            await self.opened.wait()
        call.answer()


async def held_one(engines: Any, route: Any, **settings: Any) -> tuple[Any, Any, Any, Any, Gate]:
    """A router that holds a long prompt for the short answer of its only engine: engine, router, both clients, gate."""
    gate = Gate()
    (engine,) = await engines(script=gate)
    router = await route([engine], **{"slo": PATIENT, **settings})
    first, second = await router.client(), await router.client()
    first.send(SHORT)
    await router.until(lambda: len(engine.calls) == 1)
    second.send(LONG)
    await router.until(lambda: len(router.gateway.active) == 2 or len(engine.calls) == 2)
    return engine, router, first, second, gate


def counted(router: Any) -> dict[str, Any]:
    registry = CollectorRegistry()
    registry.register(router.gateway.metrics)
    names = ("held_requests", "held_seconds")
    return {n: registry.get_sample_value(f"tonnage_router_{n}_total", {"pool": "m"}) for n in names}


async def test_a_prompt_waits_for_the_answer_it_would_break_and_goes_when_that_has_ended(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "TICK_S", 3600.0)
    engine, router, first, second, gate = await held_one(engines, route)
    gateway = router.gateway
    assert len(gateway.holding) == 1 and len(engine.calls) == 1
    (exchange,) = (each for each in gateway.active if each.held_at)
    since, exchange.held_s = exchange.held_at, 60.0  # as if it had been held before, and queued then
    for _ in range(3):
        gateway.holding.sweep()
    assert len(gateway.holding) == 1 and len(engine.calls) == 1 and exchange.held_at == since
    assert counted(router) == {"held_requests": 0.0, "held_seconds": 0.0}
    assert gateway.admission.lengths() == {"m": 1}, "the planner is to see it as demand"
    assert len(gateway.decisions) == 1, "a decision counts when it is taken"
    gate.opened.set()
    await router.until(lambda: len(engine.calls) == 2)
    assert [(await client.read()).status for client in (first, second)] == [200, 200]
    told = gateway.decisions[-1].summary()
    assert told["held_ms"] > 60_000 and gateway.decisions[0].summary()["held_ms"] == 0
    found = counted(router)
    assert gateway.admission.lengths() == {"m": 0}
    assert found["held_requests"] == 1 and 60 < found["held_seconds"] < 600
    assert router.counters() == [(0, 0, 0)] and not gateway.active


async def test_a_prompt_goes_once_its_share_of_the_limit_has_passed(engines: Any, route: Any) -> None:
    engine, _, first, second, gate = await held_one(
        engines, route, slo=SloSpec(ttft_ms=1, ttft_ms_per_prompt_token=0.05), hold_share=1.0
    )
    assert (await second.read()).status == 200, "the answer in flight has not ended"
    assert len(engine.calls) == 2
    gate.opened.set()
    assert (await first.read()).status == 200


async def test_what_a_slow_endpoint_has_ahead_counts_as_waiting(engines: Any, route: Any) -> None:
    _, router, first, second, gate = await held_one(engines, route)
    router.gateway.fleet.by_slot[0].pace.learn(2048, 1e6)
    router.gateway.holding.sweep()
    assert not router.gateway.holding, "the answer in flight has not ended"
    assert (await second.read()).status == 200
    gate.opened.set()
    assert (await first.read()).status == 200


async def test_a_client_that_leaves_while_held_leaves_nothing_behind(engines: Any, route: Any) -> None:
    engine, router, first, second, gate = await held_one(engines, route)
    second.writer.transport.abort()
    await router.until(lambda: len(router.gateway.active) == 1)
    router.gateway.holding.sweep()
    assert len(router.gateway.holding) == 0
    gate.opened.set()
    assert (await first.read()).status == 200
    assert len(engine.calls) == 1 and counted(router)["held_requests"] == 1
    assert router.gateway.metrics.outcomes == {"client_gone": 1, "ok": 1}
    assert router.gateway.buffered == 0


async def test_a_held_request_is_refused_when_nothing_serves_any_more(engines: Any, route: Any) -> None:
    _, router, first, second, gate = await held_one(engines, route)
    for endpoint in router.gateway.fleet:
        router.gateway.fleet.set_healthy(endpoint, False)
    router.gateway.holding.sweep()
    assert (await second.read()).status == 503
    assert counted(router)["held_requests"] == 1
    gate.opened.set()
    assert (await first.read()).status == 200


async def test_a_held_request_waits_for_an_endpoint_where_there_may_soon_be_one(engines: Any, route: Any) -> None:
    engine, router, first, second, gate = await held_one(engines, route, scale_from_zero=["m"])
    (endpoint,) = router.gateway.fleet
    router.gateway.fleet.set_healthy(endpoint, False)
    router.gateway.holding.sweep()
    assert (len(router.gateway.holding), router.gateway.admission.waiting, len(engine.calls)) == (0, 1, 1)
    router.gateway.fleet.set_healthy(endpoint, True)
    gate.opened.set()
    assert [(await client.read()).status for client in (first, second)] == [200, 200]


async def test_a_held_request_has_one_time_to_live_and_no_second_one_in_the_queue(engines: Any, route: Any) -> None:
    _, router, first, second, gate = await held_one(engines, route, scale_from_zero=["m"], queue_ttl_s=30)
    (endpoint,), admission = router.gateway.fleet, router.gateway.admission
    (exchange,) = (each for each in router.gateway.active if each.held_at)
    exchange.started -= 30.0
    router.gateway.fleet.set_healthy(endpoint, False)
    router.gateway.holding.sweep()
    assert (len(router.gateway.holding), admission.waiting) == (0, 1)
    admission.sweep(time.monotonic())
    assert admission.waiting == 0
    assert (await second.read()).status == 503
    gate.opened.set()
    assert (await first.read()).status == 200


async def test_held_prompts_that_find_no_room_take_their_turn_in_the_queue(engines: Any, route: Any) -> None:
    """They count nowhere while they are held: all at once they would be more than an endpoint may have."""
    _, router, first, second, gate = await held_one(engines, route, endpoint_requests=2)
    gateway, others = router.gateway, [await router.client() for _ in range(3)]
    for name, client in zip("cde", others, strict=True):
        client.send(chat(name, 20_000, 50))
    await router.until(lambda: len(gateway.holding) == 4)
    seen: list[int] = []
    gate.at_each = lambda: seen.append(router.counters()[0][0])
    drain = gateway.admission._pools["m", None].drain
    gateway.holding._rule = HoldRule(Slo(), share=0)
    gateway.holding.sweep()
    assert (len(gateway.holding), gateway.admission.waiting) == (0, 3)
    drain._since = float("inf")  # what leaves from now on stays in `_pending`
    queued = sum(exchange.prompt_tokens for exchange in gateway.active if exchange.reservation is None)
    assert [(await client.read()).status for client in (second, *others)] == [200] * 4
    assert len(seen) == 4 and max(seen) <= 2
    assert drain._pending == queued > 0, "they have left the queue once"
    gate.opened.set()
    assert (await first.read()).status == 200
    assert counted(router)["held_requests"] == 4
    assert router.counters() == [(0, 0, 0)] and not gateway.admission.waiting


async def test_answers_that_end_in_a_row_cost_no_choice_each(engines: Any, route: Any) -> None:
    _, router, first, second, gate = await held_one(engines, route)
    gateway, others = router.gateway, [await router.client() for _ in range(19)]
    for number, client in enumerate(others):
        client.send(chat(str(number), 20_000, 50))
    await router.until(lambda: len(gateway.holding) == 20)
    loop = asyncio.get_running_loop()
    begun, before = loop.time(), gateway.scheduler._sequence["m"]
    for _ in range(200):
        gateway.holding._answer_ended(0)
        await asyncio.sleep(0)
    sweeps = 1 + (loop.time() - begun) / 0.25
    assert gateway.scheduler._sequence["m"] - before <= 20 * (1 + sweeps) + (loop.time() - begun) / REST_S
    gate.opened.set()
    assert [(await client.read()).status for client in (first, second, *others)] == [200] * 21


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"hold_share": 0}, id="turned off"),
        pytest.param({"policy": "least_load"}, id="a policy that counts no answers"),
        pytest.param({"slo": SloSpec(ttft_ms=1)}, id="no time to wait"),
        pytest.param({"queue_ttl_s": 1e-6}, id="no limit of its own, and none may wait"),
    ],
)
async def test_who_is_never_held(engines: Any, route: Any, settings: dict[str, Any]) -> None:
    _, router, first, second, gate = await held_one(engines, route, **settings)
    assert (await second.read()).status == 200
    gate.opened.set()
    assert (await first.read()).status == 200
    assert counted(router)["held_requests"] == 0


async def test_a_client_s_own_deadline_is_kept(engines: Any, route: Any) -> None:
    engine, router, first, second, gate = await held_one(engines, route)
    third = await router.client()
    third.send(chat("c", 20_000, 50), extra=b"x-tonnage-deadline-ms: 1\r\n")
    assert (await third.read()).status == 200
    assert b"c c c" in engine.calls[1].body
    gate.opened.set()
    assert [(await client.read()).status for client in (first, second)] == [200, 200]


async def test_no_more_are_held_than_choices_can_be_paid_for(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "MOST_HELD", 1)
    engine, router, first, second, gate = await held_one(engines, route)
    third = await router.client()
    third.send(chat("c", 20_000, 50))
    assert (await third.read()).status == 200
    assert b"c c c" in engine.calls[1].body, "sent past the one that is held"
    gate.opened.set()
    assert [(await client.read()).status for client in (first, second)] == [200, 200]


async def test_a_request_that_has_failed_somewhere_is_not_held(engines: Any, route: Any) -> None:
    """The endpoint without answers in flight refuses the long prompt, and the other must take it at once."""
    opened = asyncio.Event()

    async def script(call: Any) -> None:
        if b"a a a" in call.body:
            await opened.wait()
        busy = any(b"a a a" in each.body for each in call.engine.calls)
        call.answer(status="200 OK" if busy else "503 Service Unavailable")

    made = await engines(2, script=script)
    router = await route(made, slo=PATIENT)
    first, second = await router.client(), await router.client()
    first.send(SHORT)
    await router.until(lambda: any(engine.calls for engine in made))
    second.send(LONG)
    await router.until(lambda: sum(len(engine.calls) for engine in made) == 3)
    assert (await second.read()).status == 200
    assert counted(router)["held_requests"] == 0 and router.gateway.metrics.retries == {"elsewhere": 1}
    opened.set()
    assert (await first.read()).status == 200


async def test_a_model_s_own_limit_says_how_long_and_a_trace_shows_it(engines: Any, route: Any, collector: Any) -> None:
    own = {"slo": SloSpec(ttft_ms=1), "slos": {"m": PATIENT}, "otlp_endpoint": collector.engine.url}
    engine, router, first, second, gate = await held_one(engines, route, **own)
    assert len(router.gateway.holding) == 1 and len(engine.calls) == 1
    gate.opened.set()
    assert [(await client.read()).status for client in (first, second)] == [200, 200]
    await router.until(lambda: len(collector.spans) == 5)
    (held,), attempts = collector.of("hold"), collector.of("attempt")
    (after,) = [span for span in attempts if span.parent == held.parent]
    assert held.kind == INTERNAL and held.begun < held.ended <= after.begun


def test_where_prompts_are_computed_apart_none_is_held() -> None:
    whole = RouterSettings()
    apart = RouterSettings.model_validate({"disaggregation": [{"model": "m", "kv_bytes_per_token": 1e5}]})
    assert holds_prompts(whole, profile_of(whole))
    assert not holds_prompts(apart, profile_of(apart))


async def test_while_tenants_contend_none_is_held(engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tonnage_router.admission.Contention.__bool__", lambda _: True)
    engine, _, first, second, gate = await held_one(engines, route)
    assert (await second.read()).status == 200
    assert len(engine.calls) == 2
    gate.opened.set()
    assert (await first.read()).status == 200


async def test_what_is_held_for_one_endpoint_is_not_forgotten_when_another_has_answered(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "TICK_S", 3600.0)
    opened = {"m": asyncio.Event(), "n": asyncio.Event()}

    async def script(call: Any) -> None:
        if len(call.engine.calls) == 1:
            await opened[call.engine.model].wait()
        call.answer()

    first, second = await engines(2, script=script)
    second.model = "n"
    router = await route([first, second], slo=PATIENT)
    clients = [await router.client() for _ in range(4)]
    for number, (tokens, answer) in enumerate([(10, 5), (10, 5), (20_000, 50), (20_000, 50)]):
        content = f"{number} " * 40 + WORDS * (4 * tokens // len(WORDS))
        body = {"model": "mn"[number % 2], "max_tokens": answer, "messages": [{"role": "user", "content": content}]}
        clients[number].send(orjson.dumps(body))
        if number == 1:
            await router.until(lambda: len(first.calls) == len(second.calls) == 1)
    await router.until(lambda: len(router.gateway.holding) == 2)
    opened["m"].set()
    await router.until(lambda: len(first.calls) == 2)
    assert len(router.gateway.holding) == 1
    opened["n"].set()
    await router.until(lambda: len(second.calls) == 2)
    for client in clients:
        assert (await client.read()).status == 200
