"""The planner's HTTP API: targets, their explanation, endpoints; memory; plans and measurements."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from tonnage_core.errors import TonnageError
from tonnage_planner.console.routes import Around, Console
from tonnage_planner.documents import (
    EndpointDocument,
    EndpointsDocument,
    ExplainDocument,
    TargetDocument,
    TargetsDocument,
    explain_fields,
    target_fields,
)
from tonnage_planner.fleet import Decided, Fleet
from tonnage_planner.hooks.serving import serve_hooks
from tonnage_planner.library import Library
from tonnage_planner.memory import MemoryAnswer, MemoryQuestion, answer
from tonnage_planner.metrics import PlannerMetrics
from tonnage_planner.plan_jobs import PlanJobs
from tonnage_planner.plan_routes import add_plan_routes
from tonnage_planner.ports import EndpointSource, Poster, Scraper
from tonnage_planner.predict import PredictAnswer, PredictQuestion, predict_answer
from tonnage_planner.saved_states import SavedStates
from tonnage_planner.settings import PlannerSettings
from tonnage_planner.watch import Watch
from tonnage_runtime.body_limit import BodyLimit
from tonnage_runtime.clock import Clock, ScaledClock
from tonnage_runtime.http_app import build_base_app
from tonnage_runtime.memory_store import MemoryStore
from tonnage_runtime.store import Store


class UnknownPoolError(TonnageError):
    """No such pool: answered with 404."""

    def __init__(self, pool: str, known: list[str]) -> None:
        super().__init__(f"no pool {pool!r}; known: {', '.join(known) or 'none yet'}")


@dataclass(frozen=True)
class Ports:
    """The planner's adapters."""

    source: EndpointSource
    scraper: Scraper
    clock: Clock
    registry: CollectorRegistry
    store: Store | None = None
    """Where measurements sent here and targets are kept; None: in this process."""
    poster: Poster | None = None
    """How the console's actions reach the routers; None: they do not."""


def build_app(settings: PlannerSettings, ports: Ports) -> FastAPI:
    """The service; scraping starts and ends with the app."""
    fleet = Fleet(settings)
    clock = ScaledClock(ports.clock, settings.time_scale)
    metrics = PlannerMetrics(ports.registry)
    metrics.fleet.attach(fleet, clock)
    watch = Watch(
        settings,
        fleet,
        source=ports.source,
        scraper=ports.scraper,
        metrics=metrics,
        clock=clock,
    )

    jobs = PlanJobs(metrics.plan, ports.clock, waiting_limit=settings.plans_waiting, kept=settings.plans_kept)
    store = ports.store or MemoryStore(ports.clock)
    saved = SavedStates(store, clock, interval_s=settings.save_interval_s)
    library = Library(store, profiles=settings.profiles_kept, points=settings.bench_points_kept)
    console = Console(
        settings, Around(fleet, ports.source, ports.scraper, ports.poster, library, ports.clock, engine_clock=clock)
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await saved.restore(fleet)
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(saved.run(fleet))]
        async with serve_hooks(settings, fleet, clock, metrics), console.running():
            yield
        await jobs.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = build_base_app(
        "Tonnage planner",
        ports.registry,
        not_ready=lambda: _not_ready(fleet),
        lifespan=lifespan,
        access_file=settings.access_file,
        beside=("/console", "/v1/console/") if settings.console else (),  # read-only; actions have a token
    )
    app.add_exception_handler(UnknownPoolError, _not_found)
    app.add_middleware(BodyLimit, limit_bytes=settings.request_body_limit_bytes)
    _add_routes(app, settings, fleet, clock)
    add_plan_routes(app, jobs, library)
    if settings.console:
        console.add_to(app)
    return app


def _add_routes(app: FastAPI, settings: PlannerSettings, fleet: Fleet, clock: Clock) -> None:
    missing: dict[int | str, dict[str, Any]] = {404: {"description": "No such pool"}}

    @app.get("/v1/targets", tags=["targets"])
    async def targets() -> TargetsDocument:
        """Every pool's target."""
        return TargetsDocument(targets=[_target(pool, fleet, clock) for pool in fleet.decided])

    @app.get("/v1/targets/{pool:path}", tags=["targets"], responses=missing)
    async def target(pool: str) -> TargetDocument:
        """One pool's target and the reasons."""
        return _target(pool, fleet, clock)

    @app.get("/v1/explain/{pool:path}", tags=["targets"], responses=missing)
    async def explain(pool: str) -> ExplainDocument:
        """One pool's target with the load, the needs, the policy and the endpoints it was derived from."""
        now, decided = clock.monotonic(), _decided(pool, fleet)
        seen = fleet.observations(now, pool)
        fields = target_fields(pool, decided, seen, now) | explain_fields(
            decided, fleet.policy_of(pool), seen, fleet.warm(pool)
        )
        return ExplainDocument.model_validate(fields)

    @app.post("/v1/memory", tags=["memory"], responses={400: {"description": "No engine takes this"}})
    def memory(question: MemoryQuestion) -> MemoryAnswer:
        """Weights, activations, overheads, KV pool, blocks, tokens, concurrency and whether it fits, derived."""
        return MemoryAnswer.model_validate(answer(question))

    @app.post("/v1/predict", tags=["predict"], responses={400: {"description": "No engine takes this"}})
    def predict(question: PredictQuestion) -> PredictAnswer:
        """Time to first token, time per output token and throughput with intervals, class and derivation."""
        return PredictAnswer.model_validate(predict_answer(question))

    @app.get("/v1/endpoints", tags=["endpoints"])
    async def endpoints() -> EndpointsDocument:
        """Every endpoint as seen now; what is unknown is null."""
        seen = [EndpointDocument.of(one) for one in fleet.observations(clock.monotonic())]
        return EndpointsDocument(endpoints=seen, list_error=fleet.source_error)


def _target(pool: str, fleet: Fleet, clock: Clock) -> TargetDocument:
    now, decided = clock.monotonic(), _decided(pool, fleet)
    return TargetDocument.model_validate(target_fields(pool, decided, fleet.observations(now, pool), now))


def _decided(pool: str, fleet: Fleet) -> Decided:
    decided = fleet.decided.get(pool)
    if decided is None:
        raise UnknownPoolError(pool, sorted(fleet.decided))
    return decided


def _not_ready(fleet: Fleet) -> str | None:
    if not fleet.listed and fleet.source_error is None:
        return "the endpoint list was not read yet"
    if fleet.source_error is not None and not fleet.urls:
        return f"the endpoint list cannot be read: {fleet.source_error}"
    waiting = [pool for pool in fleet.pools if pool not in fleet.decided]
    return f"no decision yet for {', '.join(waiting)}" if waiting else None


async def _not_found(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error), "type": "not_found_error"}}, status_code=404)
