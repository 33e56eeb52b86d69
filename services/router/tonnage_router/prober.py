"""Active health: each engine is asked for its health, its models and its gauges, on its own schedule."""

import asyncio
import logging
import time
from typing import Any

import orjson

from tonnage_router import engine_metrics
from tonnage_router.adapters.http_call import KeptConnection
from tonnage_router.errors import ProbeError
from tonnage_router.fleet import Endpoint
from tonnage_router.gateway import Gateway
from tonnage_router.kv_watch import KvWatch
from tonnage_router.models import listed_models
from tonnage_router.observations import Observations
from tonnage_router.ranks import of_rank

log = logging.getLogger(__name__)

SHORTEST_REST_S = 0.1
"""Between two looks at an endpoint's health, however many of its requests fail meanwhile."""
PROBE_TIMEOUT_S = 2.0
EARLY = 0.1
"""Share of its interval by which anything is asked sooner when the endpoint is asked something anyway: each question by
itself would wake the process for it."""
FIRST_RETRY_S = 0.3
"""Between probes of an endpoint that is not healthy."""


class Prober:
    """One task for each endpoint; endpoints that join or leave are followed."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._observed = Observations(gateway)
        self._events = KvWatch(gateway)
        self._tasks: dict[Endpoint, asyncio.Task[None]] = {}
        self._wanted: dict[str, asyncio.Event] = {}
        """By endpoint id: set when its next probe is due, or shall not wait."""
        self._doubted: set[str] = set()
        """Ids of endpoints whose health is to be looked at soon."""
        self._kept: dict[Endpoint, KeptConnection] = {}
        gateway.prober = self

    def follow(self) -> None:
        """Start probing new endpoints, stop probing gone ones."""
        self._observed.speeds()
        self._events.follow()
        current = set(self._gateway.fleet)
        for endpoint in [e for e in self._tasks if e not in current]:
            self._tasks.pop(endpoint).cancel()
            self._wanted.pop(endpoint.id, None)
            self._doubted.discard(endpoint.id)
        for endpoint in current.difference(self._tasks):
            self._tasks[endpoint] = asyncio.get_running_loop().create_task(self._watch(endpoint))

    async def stop(self) -> None:
        """Stop all probing and following."""
        self._events.stop()
        self._gateway.prompts.stop()
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def look_soon(self, endpoint_id: str) -> None:
        """The endpoint's health is in doubt."""
        if (event := self._wanted.get(endpoint_id)) is not None:
            self._doubted.add(endpoint_id)
            event.set()

    async def _watch(self, endpoint: Endpoint) -> None:
        kept = self._kept[endpoint] = KeptConnection(endpoint.host, endpoint.port)
        try:
            await self._look_again_and_again(endpoint)
        finally:
            del self._kept[endpoint]
            kept.close()

    async def _look_again_and_again(self, endpoint: Endpoint) -> None:
        settings = self._gateway.settings
        wanted = self._wanted[endpoint.id] = asyncio.Event()
        soonest = health_due = models_due = metrics_due = looked = time.monotonic()
        while True:
            now = time.monotonic()
            if endpoint.id in self._doubted:
                self._doubted.discard(endpoint.id)
                soonest = health_due = min(soonest, looked + SHORTEST_REST_S)
            if now >= soonest:
                looked = now
                await self.check_health(endpoint)
                rest_s = settings.health_interval_s if endpoint.probe_ok else FIRST_RETRY_S
                soonest, health_due = now + (1 - EARLY) * rest_s, now + rest_s
            if now >= models_due - EARLY * settings.models_interval_s and endpoint.probe_ok:
                await self.read_models(endpoint)
                models_due = now + settings.models_interval_s
            if (every_s := settings.metrics_interval_s) and now >= metrics_due - EARLY * every_s and endpoint.probe_ok:
                await self.read_metrics(endpoint)
                metrics_due = now + every_s
            due = health_due
            if endpoint.probe_ok:
                due = min(due, models_due)
                if settings.metrics_interval_s:
                    due = min(due, metrics_due)
            await _set_within(wanted, max(SHORTEST_REST_S, due - time.monotonic()))

    async def check_health(self, endpoint: Endpoint) -> None:
        """GET /health once. A success heals at once; failures in a row take the endpoint out.

        Over a new connection: an engine that serves what is open and takes nothing new is not healthy. What else it is
        asked until the next look goes over that connection, and so to who had the address at the last look.
        """
        try:
            answer = await self._kept[endpoint].renewed("/health", timeout_s=PROBE_TIMEOUT_S)
            problem = None if answer.status == 200 else f"/health answered {answer.status}"
        except ProbeError as error:
            problem = str(error)
        if problem is None:
            if not endpoint.probe_ok:
                await self.read_models(endpoint)
                log.info("endpoint healthy", extra={"endpoint": endpoint.id})
            endpoint.probe_ok, endpoint.probe_failures, endpoint.probe_problem = True, 0, None
        else:
            self._failed(endpoint, problem)
        self._gateway.refresh(endpoint)

    def _failed(self, endpoint: Endpoint, problem: str) -> None:
        endpoint.probe_failures += 1
        endpoint.probe_problem = problem
        if endpoint.probe_failures >= self._gateway.settings.unhealthy_after:
            if endpoint.probe_ok:
                log.warning("endpoint unhealthy", extra={"endpoint": endpoint.id, "problem": problem})
            endpoint.probe_ok = False
            self._gateway.endpoint_down(endpoint)

    async def read_models(self, endpoint: Endpoint) -> None:
        """GET /v1/models: names served, context limit, adapters. A failure leaves what was known."""
        try:
            answer = await self._kept[endpoint].get(
                "/v1/models", timeout_s=PROBE_TIMEOUT_S, api_key=endpoint.spec.api_key
            )
            entries = _entries(answer.body) if answer.status == 200 else None
        except ProbeError:
            entries = None
        if entries is None:
            return
        endpoint.listed = entries
        self._observed.models(endpoint, listed_models(endpoint))

    async def read_metrics(self, endpoint: Endpoint) -> None:
        """GET /metrics: queue, KV use, capacity. Unknown stays unknown; old values expire."""
        try:
            answer = await self._kept[endpoint].get("/metrics", timeout_s=PROBE_TIMEOUT_S)
            gauges = (
                engine_metrics.parse(of_rank(answer.body, endpoint.spec.data_parallel_rank))
                if answer.status == 200
                else None
            )
        except ProbeError:
            gauges = None
        self._observed.gauges(endpoint, gauges, time.monotonic())


async def _set_within(event: asyncio.Event, longest_s: float) -> None:
    """Until the event is set, or so long has passed. Then it is clear."""
    timer = asyncio.get_running_loop().call_later(longest_s, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
    event.clear()


def _entries(body: bytes) -> list[dict[str, Any]] | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    data = document.get("data") if type(document) is dict else None
    if type(data) is not list:
        return None
    return [entry for entry in data if type(entry) is dict and type(entry.get("id")) is str]
