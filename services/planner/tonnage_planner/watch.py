"""The loop: scrape every endpoint at its own pace, decide at each tick.

A scrape runs in its own task with its own deadline and records its result when it ends, so an endpoint that hangs
delays nobody; while its scrape is in flight no second one is started.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Coroutine, Mapping, Sequence

from tonnage_core.autoscaling.engine_metrics import WANTED, NoEngineMetricsError, read_engine
from tonnage_core.autoscaling.exposition import UnparsableError, parse
from tonnage_core.autoscaling.observation import Attempt, Outcome
from tonnage_core.autoscaling.state_machine import Decision
from tonnage_planner.fleet import Fleet
from tonnage_planner.metrics import PlannerMetrics
from tonnage_planner.ports import EndpointSource, ScrapeError, Scraper
from tonnage_planner.settings import PlannerSettings
from tonnage_planner.starts import EVERY_S, PATH, starts_of
from tonnage_runtime.clock import Clock
from tonnage_runtime.errors import SettingsError

METRICS_PATHS = ("/metrics", "/prometheus/metrics")
NOT_METRICS = (Outcome.UNPARSABLE, Outcome.HTTP_ERROR, Outcome.NO_ENGINE_METRICS)
ROUTER_QUEUE = "tonnage_router_queue_requests"
log = logging.getLogger("tonnage.planner")


class Watch:
    """Scrapes and decides until cancelled."""

    def __init__(
        self,
        settings: PlannerSettings,
        fleet: Fleet,
        *,
        source: EndpointSource,
        scraper: Scraper,
        metrics: PlannerMetrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._source = source
        self._scraper = scraper
        self._metrics = metrics
        self._clock = clock
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._paths: dict[str, str] = {}
        self._starts_due_s = 0.0

    async def run(self) -> None:
        """Tick for ever; cancels its scrapes when it is cancelled."""
        try:
            self._guarded_tick()
            await self.settle()
            while True:
                self._guarded_tick()
                await asyncio.sleep(self._settings.scrape_interval_s / self._settings.time_scale)
        finally:
            await self._cancel()

    def _guarded_tick(self) -> None:
        """A tick that cannot end the loop: a defect in one decision must not stop every later one."""
        try:
            self.tick()
        except Exception:
            log.exception("tick failed")

    def tick(self) -> None:
        """Follow the endpoint list, decide on what is known, start the next scrapes."""
        self._follow_list()
        if self._fleet.decided or self._fleet.every_endpoint_tried:
            self._decide()
        for url in self._fleet.urls:
            self._start(url, self._scrape(url))
        if self._settings.router_url is not None:
            self._start("router", self._scrape_router(self._settings.router_url))
        now = self._clock.monotonic()
        if self._settings.coldstart_urls and now >= self._starts_due_s:
            self._starts_due_s = now + EVERY_S
            self._start("starts", self._ask_starts(self._settings.coldstart_urls))

    @property
    def in_flight(self) -> int:
        """Scrapes that have not ended."""
        return len(self._in_flight)

    async def settle(self) -> None:
        """Wait for the scrapes in flight."""
        await asyncio.gather(*self._in_flight.values(), return_exceptions=True)

    def _follow_list(self) -> None:
        try:
            endpoints = self._source.endpoints()
        except SettingsError as error:
            if self._fleet.source_error is None:
                log.error("endpoint list cannot be read; the last one stays", extra={"error": str(error)})
            self._fleet.source_error = str(error)
            return
        self._fleet.source_error = None
        self._fleet.list_endpoints(endpoints, self._clock.monotonic())
        self._paths = {url: path for url, path in self._paths.items() if url in set(self._fleet.urls)}

    def _decide(self) -> None:
        before = {pool: decided.decision.target for pool, decided in self._fleet.decided.items()}
        for pool, decision in self._fleet.decide(self._clock.monotonic()).items():
            self._metrics.count_decision(pool, decision, before.get(pool))
            if decision.target != before.get(pool):
                log.info("target", extra=_line(pool, decision, before.get(pool)))

    def _start(self, key: str, work: Coroutine[None, None, None]) -> None:
        if key in self._in_flight:
            work.close()
            return
        task = asyncio.create_task(work)
        self._in_flight[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        self._in_flight.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("scrape failed unexpectedly", exc_info=error, extra={"endpoint": key})

    async def _scrape(self, url: str) -> None:
        attempt = await self._attempt(url)
        self._metrics.scrapes.labels(attempt.outcome.value).inc()
        self._fleet.record(url, attempt)

    async def _attempt(self, url: str) -> Attempt:
        """One scrape. An engine that answers, but not with metrics, is asked at its other path too (TensorRT-LLM keeps
        JSON under `/metrics`); the path that gave metrics is asked first from then on.
        """
        first = self._paths.get(url, METRICS_PATHS[0])
        attempt = await self._attempt_at(url, first)
        if attempt.outcome in NOT_METRICS:
            other = next(path for path in METRICS_PATHS if path != first)
            second = await self._attempt_at(url, other)
            if second.outcome is Outcome.OK:
                self._paths[url] = other
                return second
        return attempt

    async def _attempt_at(self, url: str, path: str) -> Attempt:
        started = self._clock.monotonic()
        try:
            reading = read_engine(parse(await self._scraper.text(url.rstrip("/") + path), WANTED))
        except ScrapeError as error:
            return Attempt(self._clock.monotonic(), error.outcome, detail=error.detail)
        except UnparsableError as error:
            return Attempt(self._clock.monotonic(), Outcome.UNPARSABLE, detail=str(error))
        except NoEngineMetricsError as error:
            return Attempt(self._clock.monotonic(), Outcome.NO_ENGINE_METRICS, detail=str(error))
        ended = self._clock.monotonic()
        self._metrics.scrape_duration.observe((ended - started) / self._settings.time_scale)
        return Attempt(ended, Outcome.OK, reading)

    async def _scrape_router(self, url: str) -> None:
        try:
            addresses = await self._scraper.addresses(url)
            texts = [await self._scraper.text(f"{address.rstrip('/')}/metrics") for address in addresses]
            waiting = router_waiting(texts)
        except ScrapeError as error:
            outcome = error.outcome
        except UnparsableError:
            outcome = Outcome.UNPARSABLE
        else:
            outcome = Outcome.OK
            self._fleet.record_router(waiting, self._clock.monotonic())
        self._metrics.router_scrapes.labels(outcome.value).inc()

    async def _ask_starts(self, urls: Sequence[str]) -> None:
        """Each cold-start service's starts; one that does not answer keeps no other from being asked."""
        for url in urls:
            try:
                for address in await self._scraper.addresses(url):
                    starts = starts_of(await self._scraper.text(address.rstrip("/") + PATH))
                    scale = self._settings.time_scale
                    self._fleet.record_starts(
                        {pool: {name: took * scale for name, took in own.items()} for pool, own in starts.items()}
                    )
            except ScrapeError as error:
                outcome = error.outcome
            except ValueError:
                outcome = Outcome.UNPARSABLE
            else:
                outcome = Outcome.OK
            self._metrics.start_scrapes.labels(outcome.value).inc()

    async def _cancel(self) -> None:
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


def router_waiting(texts: Sequence[str]) -> Mapping[str, float]:
    """Requests that wait in the routers, by pool; a value that is not a finite number >= 0 leaves its pool unknown."""
    waiting: dict[str, float] = {}
    unknown: set[str] = set()
    for sample in (s for text in texts for s in parse(text, {ROUTER_QUEUE}).samples.get(ROUTER_QUEUE, ())):
        pool = sample.label("pool") or ""
        if math.isfinite(sample.value) and sample.value >= 0:
            waiting[pool] = waiting.get(pool, 0.0) + sample.value
        else:
            unknown.add(pool)
    return {pool: value for pool, value in waiting.items() if pool not in unknown}


def _line(pool: str, decision: Decision, before: int | None) -> dict[str, object]:
    return {
        "pool": pool,
        "replicas": decision.target,
        "before": before,
        "moved_by": decision.moved_by.value if decision.moved_by else None,
        "reasons": [f"{reason.code.value}: {reason.text}" for reason in decision.reasons],
    }
