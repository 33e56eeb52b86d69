"""When the router looks at its connections: each tick, and seldom while there is nothing to look at."""

import asyncio
import time
from typing import Any
from unittest.mock import Mock

import pytest

from tonnage_router import sweeper

BODY = b'{"model": "m", "prompt": "x"}'


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for between sweeps; a rest ends with a client alone."""
    monkeypatch.setattr(sweeper, "TICK_S", 0.01)
    monkeypatch.setattr(sweeper, "REST_S", 3600.0)
    return []


async def started(route: Any, engine: Any, waits: list[float], **settings: Any) -> Any:
    """A router, each of whose sweeps but the first is told to `waits`, and is in `timers`."""
    loop: Any = asyncio.get_running_loop()
    plain, timers = loop.call_later, []

    def call_later(delay: float, callback: Any, *rest: Any, **named: Any) -> Any:
        if getattr(callback, "__name__", "") == "_tick":
            waits.append(delay)
            timers.append(plain(delay, callback, *rest, **named))
            return timers[-1]
        return plain(delay, callback, *rest, **named)

    loop.call_later = call_later
    router = await route([engine], health_interval_s=3600, **settings)
    router.timers = timers
    return router


def to_come(router: Any) -> int:
    """Sweeps that a timer is armed for; one that is due now is none."""
    now = asyncio.get_running_loop().time()
    return sum(not timer.cancelled() and timer.when() > now for timer in router.timers)


async def resting(router: Any, waits: list[float]) -> None:
    await router.until(lambda: waits[-1] == sweeper.REST_S)


async def test_sweeps_rest_while_nobody_is_connected(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits)
    await resting(router, waits)
    client = await router.client()
    await router.until(lambda: waits[-5:] == [sweeper.TICK_S] * 5)
    client.close()
    await resting(router, waits)


async def test_a_client_that_comes_in_a_rest_has_its_limits(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits, keep_alive_s=0.1)
    for _ in range(2):
        await resting(router, waits)
        client = await router.client()
        async with asyncio.timeout(20):
            assert await client.reader.read() == b""


async def test_sweeps_go_on_in_one_chain_after_a_rest(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits)
    for _ in range(3):
        await resting(router, waits)
        client = await router.client()
        await router.until(lambda: waits[-1] == sweeper.TICK_S)
        assert to_come(router) <= 1
        client.close()
    await resting(router, waits)
    assert to_come(router) == 1


async def test_a_router_that_has_stopped_sweeps_no_more(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits)
    await resting(router, waits)
    router.service._sweeper.stop()
    assert to_come(router) == 0


async def test_a_rest_waits_for_requests_whose_client_has_left(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits)
    client = await router.client()
    unfinished: Any = Mock(upstream=None)
    await router.until(lambda: waits[-1] == sweeper.TICK_S and router.gateway.clients)
    router.gateway.active.add(unfinished)
    client.close()
    await router.until(lambda: not router.gateway.clients)
    before = len(waits)
    await router.until(lambda: len(waits) >= before + 5 or waits[-1] == sweeper.REST_S)
    assert waits[-1] != sweeper.REST_S
    router.gateway.active.discard(unfinished)
    await resting(router, waits)


async def test_what_a_rest_has_left_is_done_when_a_client_comes(
    engines: Any, route: Any, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits)
    await resting(router, waits)
    (endpoint,) = router.gateway.fleet
    endpoint.candidate.waiting, endpoint.metrics_at = 3, time.monotonic() - 3600
    monkeypatch.setattr(sweeper, "TICK_S", 3600.0)
    await router.client()
    await router.until(lambda: endpoint.candidate.waiting is None)


async def test_a_rest_waits_for_back_pressure_to_fade(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits)
    client = await router.client()
    (endpoint,) = router.gateway.fleet
    endpoint.candidate.pressure = 10.0  # for forty sweeps: the client has left by then
    client.close()
    await router.until(lambda: endpoint.candidate.pressure == 0.0)
    await resting(router, waits)


async def test_a_rest_waits_for_a_breaker_to_close(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits)
    client = await router.client()
    (endpoint,) = router.gateway.fleet
    for _ in range(endpoint.breaker.faults):
        endpoint.breaker.fault(time.monotonic())
    await router.until(lambda: not endpoint.candidate.healthy)
    client.close()
    await router.until(lambda: endpoint.candidate.healthy)
    endpoint.breaker.success()
    await resting(router, waits)


async def test_a_rest_waits_for_idle_connections_to_engines(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits, upstream_idle_s=0.5)
    assert (await router.post(BODY, b"/v1/completions")).status == 200
    (endpoint,) = router.gateway.fleet
    assert endpoint.pool.idle == 1
    await router.until(lambda: endpoint.pool.idle == 0)
    await resting(router, waits)


async def test_a_sweep_that_fails_is_told_and_not_the_last(engines: Any, route: Any, waits: list[float]) -> None:
    (engine,) = await engines()
    router = await started(route, engine, waits, keep_alive_s=0.1)
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    stranger: Any = object()
    await resting(router, waits)
    router.gateway.clients.add(stranger)
    client = await router.client()
    await router.until(lambda: len(told) >= 2)
    router.gateway.clients.discard(stranger)
    async with asyncio.timeout(20):
        assert await client.reader.read() == b""
