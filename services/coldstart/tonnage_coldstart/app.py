"""The cold-start service's HTTP API: stage, watch, list, pin, delete, scrub."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.documents import cache_document, entry_document
from tonnage_coldstart.errors import CacheError, NotCachedError
from tonnage_coldstart.fetch.workers import FetchOptions
from tonnage_coldstart.jobs import RUNNING, WAITING, Job, Jobs
from tonnage_coldstart.metrics import CacheFigures, ColdstartMetrics
from tonnage_coldstart.peers.fleet import Membership, check_membership
from tonnage_coldstart.peers.routes import add_peer_routes
from tonnage_coldstart.peers.shelf import Shelf
from tonnage_coldstart.scrubber import Scrubber
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.sources.s3 import S3Options
from tonnage_coldstart.staging import Stager
from tonnage_coldstart.starts import Starts, add_start_routes
from tonnage_core.errors import TonnageError
from tonnage_runtime.access import SharedToken
from tonnage_runtime.clock import Clock
from tonnage_runtime.http_app import build_base_app
from tonnage_runtime.store import Store
from tonnage_runtime.tls import client_context

EVENT_INTERVAL_S = 0.25


class UnknownJobError(TonnageError):
    """No such job: answered with 404."""


class StageRequest(BaseModel):
    """What to stage."""

    model_config = ConfigDict(extra="forbid")

    uri: str = Field(min_length=1, max_length=4096)
    verify: bool = False
    """Read a snapshot that is already there again, byte by byte."""
    pin: bool = False
    """Keep it from eviction."""


class ScrubRequest(BaseModel):
    """What to scrub: one snapshot or, without a key, all."""

    model_config = ConfigDict(extra="forbid")

    key: str | None = Field(default=None, max_length=200)
    refetch: bool = True
    """Fetch damaged chunks again."""


class PinRequest(BaseModel):
    """Pin or unpin."""

    model_config = ConfigDict(extra="forbid")

    pinned: bool


@dataclass(frozen=True)
class Ports:
    """The service's adapters."""

    clock: Clock
    registry: CollectorRegistry
    store: Store | None = None
    """The fleet's store; None: this node is alone, whatever the settings say."""


def build_app(settings: ColdstartSettings, ports: Ports) -> FastAPI:
    """The service; transfers and scrubs end with the app."""
    metrics = ColdstartMetrics(ports.registry)
    cache = NodeCache(
        settings.cache_dir,
        ports.clock,
        quota_bytes=settings.quota_bytes,
        keep_free_bytes=settings.keep_free_bytes,
        on_evict=lambda key: metrics.evictions.inc(),
    )
    cache.prepare()
    stager = Stager(cache, ports.clock, _fetch_options(settings))
    member = None
    if check_membership(settings) and ports.store is not None:
        member = Membership(settings, ports.store, cache, ports.clock, metrics)
        stager.fleet = member.turns
    http_token = SharedToken(settings.http_token)
    client_context(settings.ca_file)  # authorities that cannot be read are told before anything is staged
    jobs = Jobs(
        stager,
        lambda uri: open_source(uri, _source_options(settings, http_token)),
        metrics,
        ports.clock,
        at_once=settings.transfers,
        kept=settings.jobs_kept,
    )
    scrubber = Scrubber(cache, jobs, metrics, settings.scrub_interval_s)
    metrics.cache.attach(lambda: _figures(cache, jobs))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        scrubber.start()
        if member is not None:
            member.start()
        yield
        await asyncio.to_thread(scrubber.close)
        await asyncio.to_thread(jobs.close)
        if member is not None:
            await asyncio.to_thread(member.close)

    app = build_base_app(
        "Tonnage cold start",
        ports.registry,
        not_ready=lambda: _not_ready(cache),
        lifespan=lifespan,
        access_file=settings.access_file,
        beside=("/v1/manifests/", "/v1/chunks/"),  # nodes show the fleet's own token there
    )
    app.add_exception_handler(UnknownJobError, not_found)
    app.add_exception_handler(NotCachedError, not_found)
    app.add_exception_handler(CacheError, _conflict)
    _add_stage_routes(app, jobs)
    _add_cache_routes(app, cache, scrubber)
    add_start_routes(app, Starts(metrics.starts))
    add_peer_routes(app, Shelf(cache, SharedToken(settings.peer_token)), metrics)
    return app


def _fetch_options(settings: ColdstartSettings) -> FetchOptions:
    drop, cap = settings.drop_behind, settings.bytes_per_s
    return FetchOptions(settings.connections, settings.attempts, drop_behind=drop, bytes_per_s=cap)


def _source_options(settings: ColdstartSettings, token: SharedToken) -> SourceOptions:
    headers = {"Authorization": f"Bearer {token.value()}"} if token else {}
    return SourceOptions(
        connections=settings.connections,
        timeout_s=settings.timeout_s,
        headers=headers,
        ca_file=settings.ca_file,
        local=settings.local_sources,
        hosts=tuple(settings.source_hosts),
        s3=S3Options(settings.s3_endpoint, settings.s3_region, settings.s3_anonymous, settings.s3_path_style),
    )


def _add_stage_routes(app: FastAPI, jobs: Jobs) -> None:
    missing: dict[int | str, dict[str, Any]] = {404: {"description": "No such job"}}

    refused: dict[int | str, dict[str, Any]] = {400: {"description": "No URI of a source that may be read"}}

    @app.post("/v1/stage", tags=["stage"], status_code=202, responses=refused)
    async def stage(request: StageRequest) -> JSONResponse:
        """Start staging a URI, or join the job that stages it; watch it under `/v1/stage/{id}`."""
        job = await asyncio.to_thread(jobs.submit, request.uri, verify=request.verify, pin=request.pin)
        return JSONResponse(job.document(), status_code=202, headers={"location": f"/v1/stage/{job.id}"})

    @app.get("/v1/stage", tags=["stage"])
    async def list_jobs() -> JSONResponse:
        """Every job still known, oldest first."""
        return JSONResponse({"jobs": [job.document() for job in jobs.all()]})

    @app.get("/v1/stage/{job_id}", tags=["stage"], responses=missing)
    async def job(job_id: str, request: Request, stream: Annotated[bool, Query()] = False) -> Response:
        """A job's progress and report; as server-sent events with `?stream=1` or `Accept: text/event-stream`."""
        found = jobs.get(job_id)
        if found is None:
            raise UnknownJobError(f"no job {job_id[:40]!r}: it never was, or ended long ago")
        if stream or "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(
                _events(found), media_type="text/event-stream", headers={"cache-control": "no-store"}
            )
        return JSONResponse(found.document())


def _add_cache_routes(app: FastAPI, cache: NodeCache, scrubber: Scrubber) -> None:
    missing: dict[int | str, dict[str, Any]] = {404: {"description": "No such snapshot"}}

    @app.get("/v1/cache", tags=["cache"])
    async def entries() -> JSONResponse:
        """Every snapshot of the cache."""
        return JSONResponse(cache_document(cache, await asyncio.to_thread(cache.entries)))

    @app.get("/v1/cache/{key}", tags=["cache"], responses=missing)
    async def entry(key: str) -> JSONResponse:
        """One snapshot."""
        found = await asyncio.to_thread(cache.find, key)
        if found is None:
            raise NotCachedError(f"{key}: not in the cache")
        return JSONResponse(entry_document(found))

    @app.delete(
        "/v1/cache/{key}", tags=["cache"], status_code=204, responses={**missing, 409: {"description": "In use"}}
    )
    async def delete(key: str) -> Response:
        """Remove a snapshot that nobody reads."""
        await asyncio.to_thread(cache.delete, key)
        return Response(status_code=204)

    @app.put("/v1/cache/{key}/pin", tags=["cache"], responses=missing)
    async def pin(key: str, request: PinRequest) -> JSONResponse:
        """Keep a snapshot from eviction, or let it go."""
        await asyncio.to_thread(cache.pin, key, pinned=request.pinned)
        return JSONResponse({"key": key, "pinned": request.pinned})

    @app.post("/v1/cache/scrub", tags=["cache"], responses=missing)
    async def scrub(request: ScrubRequest) -> JSONResponse:
        """Read every byte again; damaged chunks are fetched again by the job that the result names."""
        found = await asyncio.to_thread(scrubber.run, request.key, refetch=request.refetch)
        return JSONResponse({"schema": "tonnage.scrub/1", "version": 1, "snapshots": found})


async def _events(job: Job) -> AsyncIterator[bytes]:
    """`progress` events while it runs, then one `done` or `failed` with the whole document."""
    while not job.ended.is_set():
        yield b"event: progress\ndata: " + orjson.dumps(job.document()) + b"\n\n"
        for _ in range(5):
            if job.ended.is_set():
                break
            await asyncio.sleep(EVENT_INTERVAL_S / 5)
    yield b"event: " + job.state.encode() + b"\ndata: " + orjson.dumps(job.document()) + b"\n\n"


def _figures(cache: NodeCache, jobs: Jobs) -> CacheFigures:
    running, waiting = jobs.count(RUNNING), jobs.count(WAITING)
    try:
        entries = cache.entries()
        free = shutil.disk_usage(cache.layout.root).free
    except (CacheError, OSError):
        return CacheFigures(None, None, None, cache.quota_bytes, None, running, waiting)
    size = sum(cached.manifest.size_bytes for cached in entries)
    pinned = sum(1 for cached in entries if cached.pinned)
    return CacheFigures(size, len(entries), pinned, cache.quota_bytes, free, running, waiting)


def _not_ready(cache: NodeCache) -> str | None:
    return None if cache.layout.incoming.is_dir() else f"the cache {cache.layout.root} is gone"


async def not_found(_: Request, error: Exception) -> JSONResponse:
    """What is not there, as 404."""
    return JSONResponse({"error": {"message": str(error), "type": "not_found_error"}}, status_code=404)


async def _conflict(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error), "type": "conflict_error"}}, status_code=409)
