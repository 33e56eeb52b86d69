"""When an engine is asked for what: each on its own schedule, and together where that is nearly the same."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tonnage_router import prober as module
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.prober import Prober
from tonnage_router.settings import EndpointSpec, RouterSettings

LATE_S = 0.003
"""By which the event loop wakes late."""


class EndError(Exception):
    """The scripted time is over."""


async def asked(
    monkeypatch: pytest.MonkeyPatch,
    for_s: float,
    *,
    healthy: bool = True,
    doubts: Sequence[float] = (),
    **settings: Any,
) -> tuple[dict[str, list[float]], int]:
    """The times at which each thing was asked for, and how often the endpoint was waited for. Its health comes in doubt
    at times `doubts`."""
    spec = EndpointSpec(url="http://127.0.0.1:1", model="m")
    gateway = Gateway(RouterSettings(endpoints=[spec], **settings), RouterMetrics(CollectorRegistry()))
    prober = Prober(gateway)
    (endpoint,) = gateway.fleet
    endpoint.probe_ok = healthy
    now, rests, coming = 1000.0, 0, list(doubts)
    times: dict[str, list[float]] = {"check_health": [], "read_models": [], "read_metrics": []}

    def noted(name: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
        async def ask(_: Any) -> None:
            times[name].append(now - 1000.0)

        return ask

    async def rested(_: asyncio.Event, longest_s: float) -> None:
        nonlocal now, rests
        till, rests = now + longest_s + LATE_S, rests + 1
        if coming and 1000.0 + coming[0] < till:
            till = max(now, 1000.0 + coming.pop(0))
            prober.look_soon(endpoint.id)
        now = till
        if now > 1000.0 + for_s:
            raise EndError

    for name in times:
        monkeypatch.setattr(prober, name, noted(name))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(module, "_set_within", rested)
    with pytest.raises(EndError):
        await prober._look_again_and_again(endpoint)
    return times, rests


async def test_an_engine_is_asked_for_what_is_due_together(monkeypatch: pytest.MonkeyPatch) -> None:
    times, rests = await asked(monkeypatch, 99.5)
    assert [len(seen) for seen in times.values()] == [50, 20, 100]
    assert rests == 100, "once a second"


@pytest.mark.parametrize(("metrics_s", "models_s"), [(1.0, 5.0), (0.7, 3.1), (3.0, 0.2)])
async def test_nothing_is_asked_much_sooner_or_later_than_its_interval_says(
    monkeypatch: pytest.MonkeyPatch, metrics_s: float, models_s: float
) -> None:
    times, _ = await asked(monkeypatch, 200.0, metrics_interval_s=metrics_s, models_interval_s=models_s)
    intervals = {"check_health": 2.0, "read_models": models_s, "read_metrics": metrics_s}
    for name, interval_s in intervals.items():
        gaps = [later - sooner for sooner, later in zip(times[name], times[name][1:], strict=False)]
        assert interval_s * (1 - module.EARLY) - 1e-9 <= min(gaps)
        assert max(gaps) <= interval_s + module.SHORTEST_REST_S + LATE_S + 1e-9


async def test_gauges_that_are_not_wanted_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    times, _ = await asked(monkeypatch, 20.0, metrics_interval_s=0)
    assert times["read_metrics"] == [] and len(times["check_health"]) == 10


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"models_interval_s": 5.2}, 100),
        ({"metrics_interval_s": 2.1, "models_interval_s": 4.0}, 50),
        ({"health_interval_s": 2.1}, 100),
    ],
    ids=["models", "gauges", "health"],
)
async def test_what_is_nearly_due_is_asked_with_what_is(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], wanted: int
) -> None:
    _, rests = await asked(monkeypatch, 99.5, **settings)
    assert rests == wanted


async def test_a_doubt_is_one_look_more(monkeypatch: pytest.MonkeyPatch) -> None:
    times, _ = await asked(monkeypatch, 99.5, doubts=[20.5])
    assert 20.5 in times["check_health"]
    assert 50 <= len(times["check_health"]) <= 51


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.099])
async def test_a_doubt_soon_after_a_look_does_not_wait_for_the_interval(
    monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    times, _ = await asked(monkeypatch, 5.0, doubts=[after_s])
    first, second, third = times["check_health"][:3]
    assert module.SHORTEST_REST_S <= second - first <= 2 * module.SHORTEST_REST_S + LATE_S + 1e-9
    assert third - second > 1.0


async def test_an_engine_that_is_not_healthy_is_asked_for_its_health_alone_and_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, rests = await asked(monkeypatch, 30.0, healthy=False, health_interval_s=15.0)
    gaps = [later - sooner for sooner, later in zip(times["check_health"], times["check_health"][1:], strict=False)]
    assert max(gaps) <= module.FIRST_RETRY_S + LATE_S + 1e-9
    assert rests == len(times["check_health"]) == 100
    assert times["read_models"] == times["read_metrics"] == []


async def test_a_wait_ends_with_its_event_or_its_time_and_leaves_neither() -> None:
    event = asyncio.Event()
    async with asyncio.timeout(20):
        event.set()
        await module._set_within(event, 3600.0)
        assert not event.is_set()
        await module._set_within(event, 0.001)
        assert not event.is_set()
        event.set()
        await module._set_within(event, 0.01)
        await asyncio.sleep(0.05)
    assert not event.is_set(), "its timer is cancelled"
