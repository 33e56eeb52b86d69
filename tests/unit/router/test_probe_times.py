"""When an engine is asked for what: each on its own schedule, and together where that is nearly the same."""

import asyncio
from collections.abc import Callable, Coroutine
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


async def asked(monkeypatch: pytest.MonkeyPatch, for_s: float, **settings: Any) -> tuple[dict[str, list[float]], int]:
    """The times at which each thing was asked for, and how often the endpoint was waited for."""
    spec = EndpointSpec(url="http://127.0.0.1:1", model="m")
    gateway = Gateway(RouterSettings(endpoints=[spec], **settings), RouterMetrics(CollectorRegistry()))
    prober = Prober(gateway)
    (endpoint,) = gateway.fleet
    endpoint.probe_ok = True
    now, rests = 1000.0, 0
    times: dict[str, list[float]] = {"check_health": [], "read_models": [], "read_metrics": []}

    def noted(name: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
        async def ask(_: Any) -> None:
            times[name].append(now - 1000.0)

        return ask

    async def rested(_: asyncio.Event, longest_s: float) -> None:
        nonlocal now, rests
        now, rests = now + longest_s + LATE_S, rests + 1
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
