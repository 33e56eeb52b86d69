"""What engines are asked besides requests: over how many connections, how soon after a failure, how often at most."""

import asyncio
import time
from typing import Any

import pytest

from tonnage_router import prober
from tonnage_router.adapters import http_call
from tonnage_router.prober import SHORTEST_REST_S
from tonnage_router.settings import EndpointSpec


def watched(engine: Any) -> list[tuple[bytes, Any]]:
    """Path and connection of each call that is no request, as they come."""
    seen: list[tuple[bytes, Any]] = []
    plain = engine._control

    def control(call: Any) -> bool:
        known = bool(plain(call))
        if known:
            seen.append((call.head.split(b" ")[1], call.writer))
        return known

    engine._control = control
    return seen


async def test_health_is_asked_over_new_connections_and_all_else_over_the_last_of_them(
    engines: Any, route: Any
) -> None:
    (engine,) = await engines()
    engine.metrics = b"vllm:num_requests_waiting 3\n"
    seen = watched(engine)
    router = await route([engine], metrics_interval_s=0.1, models_interval_s=0.1, health_interval_s=0.25)
    await router.until(lambda: sum(path == b"/metrics" for path, _ in seen) >= 8)
    (endpoint,) = router.gateway.fleet
    assert endpoint.candidate.waiting == 3
    health = [connection for path, connection in seen if path == b"/health"]
    assert len(set(health)) == len(health) > 1, "an engine that takes no connection any more is not healthy"
    assert {connection for _, connection in seen} == set(health)


async def test_between_looks_at_its_health_an_engine_is_asked_over_one_connection(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    seen = watched(engine)
    router = await route([engine], metrics_interval_s=0.1, models_interval_s=0.1)  # health is due each 30 s
    for wanted in (b"/metrics", b"/v1/models"):
        await router.until(lambda wanted=wanted: sum(path == wanted for path, _ in seen) >= 5)
    assert len({connection for _, connection in seen}) == 1


async def test_the_model_list_follows_the_engine_that_has_the_address_now(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_call, "MOST_KEPT_S", 3600.0)
    (old,) = await engines()
    router = await route([old], models_interval_s=0.1, health_interval_s=0.1)
    assert old.server is not None
    old.server.close()
    new = type(old)(listed=[{"id": "m"}, {"id": "newer"}])
    await new.start(old.port)
    await router.until(lambda: "newer" in router.gateway.fleet.seen_models)
    new.stop()


async def test_an_engines_key_goes_with_the_question_for_its_models_alone(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    heads: list[bytes] = []
    plain = engine._control

    def control(call: Any) -> bool:
        heads.append(call.head)
        return bool(plain(call))

    engine._control = control
    spec = EndpointSpec(url=engine.url, model="m", api_key="s3cret")
    router = await route([engine], endpoints=[spec], metrics_interval_s=0.1, models_interval_s=0.1)
    await router.until(lambda: len(heads) >= 8)
    shown = {head.split(b" ")[1] for head in heads if b"authorization: Bearer s3cret\r\n" in head}
    assert shown == {b"/v1/models"}
    assert {head.split(b" ")[1] for head in heads} == {b"/health", b"/v1/models", b"/metrics"}


async def test_an_engine_that_closes_idle_connections_is_asked_on(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    engine.metrics = b"vllm:num_requests_waiting 1\n"
    seen = watched(engine)
    router = await route([engine], metrics_interval_s=0.1)
    (endpoint,) = router.gateway.fleet
    for waiting in (1, 2, 3):
        engine.metrics = b"vllm:num_requests_waiting %d\n" % waiting
        await router.until(lambda waiting=waiting: endpoint.candidate.waiting == waiting)
        for _, connection in seen:
            connection.transport.abort()


async def test_gauges_follow_the_engine_that_has_the_address_now(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one takes nothing new and serves on what is open, as a pod that drains behind a Service."""
    monkeypatch.setattr(http_call, "MOST_KEPT_S", 0.3)
    (old,) = await engines()
    old.metrics = b"process_start_time_seconds 100\n"
    router = await route([old], metrics_interval_s=0.1)
    (endpoint,) = router.gateway.fleet
    await router.until(lambda: endpoint.started_at == 100)
    old.server.close()
    new = type(old)(metrics=b"process_start_time_seconds 200\n")
    await new.start(old.port)
    await router.until(lambda: endpoint.started_at == 200)
    new.stop()


@pytest.mark.parametrize("metrics_interval_s", [0, 0.1], ids=["health alone", "gauges too"])
async def test_an_engine_that_serves_one_connection_at_a_time_stays_healthy(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch, metrics_interval_s: float
) -> None:
    """It takes the next one once the last is closed."""
    monkeypatch.setattr(prober, "PROBE_TIMEOUT_S", 20.0)
    (engine,) = await engines()
    seen = watched(engine)
    turn, plain = asyncio.Lock(), engine._serve

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with turn:
            await plain(reader, writer)

    engine.stop()
    engine._serve = serve
    await engine.start()
    router = await route([engine], health_interval_s=0.1, metrics_interval_s=metrics_interval_s)
    (endpoint,) = router.gateway.fleet
    await router.until(lambda: endpoint.probe_failures or sum(path == b"/health" for path, _ in seen) >= 5)
    assert endpoint.probe_problem is None and endpoint.candidate.healthy
    assert any(path == b"/metrics" for path, _ in seen) == bool(metrics_interval_s)


async def test_an_engine_that_takes_a_connection_late_becomes_healthy(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at its health that fails keeps nothing open that it would serve in place of the next look."""
    monkeypatch.setattr(prober, "PROBE_TIMEOUT_S", 0.3)
    (engine,) = await engines()
    router = await route([engine], health_interval_s=0.1, metrics_interval_s=0.1, unhealthy_after=1)
    (endpoint,) = router.gateway.fleet
    plain, engine._control = engine._control, lambda call: True
    await router.until(lambda: not endpoint.candidate.healthy)
    await router.until(lambda: not engine.writers)
    engine._control = plain
    await router.until(lambda: endpoint.candidate.healthy)


async def test_an_endpoint_that_left_keeps_no_connection(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], metrics_interval_s=0.1)
    await router.until(lambda: len(engine.writers) > 0)
    router.gateway.fleet.remove(next(iter(router.gateway.fleet)))
    router.service.prober.follow()
    await router.until(lambda: not engine.writers)


async def test_a_failed_request_has_its_endpoint_looked_at_soon(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    seen = watched(engine)
    router = await route([engine])  # health is due each 30 s
    before = len(seen)
    router.gateway.endpoint_failed(next(iter(router.gateway.fleet)), "cut", None)
    await router.until(lambda: any(path == b"/health" for path, _ in seen[before:]))


async def test_a_flood_of_failures_is_no_flood_of_probes(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    seen = watched(engine)
    router = await route([engine])
    (endpoint,) = router.gateway.fleet
    before, begun = len(seen), time.monotonic()
    for _ in range(200):
        router.gateway.endpoint_failed(endpoint, "cut", None)
        await asyncio.sleep(0.002)
    looks = sum(path == b"/health" for path, _ in seen[before:])
    assert 1 <= looks <= (time.monotonic() - begun) / SHORTEST_REST_S + 2


@pytest.mark.parametrize("status", ["501 Not Implemented", "505 Version", "529 Overloaded"])
async def test_a_first_call_that_ends_without_a_verdict_gives_its_place_back(
    engines: Any, route: Any, status: str
) -> None:
    """The breaker is half open: nobody else is let through until this one has ended."""

    async def script(call: Any) -> None:
        call.answer(status=status)

    (engine,) = await engines(script=script)
    router = await route([engine])
    (endpoint,) = router.gateway.fleet
    for _ in range(endpoint.breaker.faults):
        endpoint.breaker.fault(time.monotonic() - 4000.0)
    endpoint.breaker._current_wait_s = 3000.0
    router.gateway.refresh(endpoint)
    assert (await router.post(b'{"model": "m", "prompt": "x"}', b"/v1/completions")).status == int(status[:3])
    await router.until(lambda: endpoint.candidate.healthy)
