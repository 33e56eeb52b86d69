"""The bench service's HTTP API: jobs for callers, runs for workers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Depends, FastAPI, Path, Query
from fastapi.responses import Response, StreamingResponse
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from tonnage_bench.adapters.in_process import InProcessQueue
from tonnage_bench.conductor import Conductor
from tonnage_bench.desk import LedgerDesk
from tonnage_bench.documents import BenchRequest, JobDocument, JobList, ReportDocument, StepRef, WorkerWord
from tonnage_bench.errors import (
    BusyError,
    DeskError,
    LedgerError,
    NotThereError,
    UnauthorizedError,
    UnknownJobError,
)
from tonnage_bench.ledger import Ledger
from tonnage_bench.making import Worker
from tonnage_bench.metrics import BenchMetrics
from tonnage_bench.ports import Ref, StepQueue, StepRunner
from tonnage_bench.service import BenchService
from tonnage_bench.settings import BenchSettings
from tonnage_runtime.access import SharedToken
from tonnage_runtime.body_limit import BodyLimit
from tonnage_runtime.clock import Clock
from tonnage_runtime.http_app import build_base_app
from tonnage_runtime.http_errors import error_object

Identity = Annotated[str, Path(max_length=64)]
_MISSING: dict[int | str, dict[str, Any]] = {404: {"description": "No such job"}}
_NOT_YET: dict[int | str, dict[str, Any]] = _MISSING | {409: {"description": "The job has none, yet or ever"}}
EVENT_S = 0.5
QUIET_LOOKS = 30
ERRORS: dict[type[Exception], tuple[int, str]] = {
    UnknownJobError: (404, "not_found_error"),
    NotThereError: (409, "conflict_error"),
    BusyError: (429, "rate_limit_error"),
    UnauthorizedError: (401, "authentication_error"),
    LedgerError: (503, "unavailable_error"),
    DeskError: (503, "unavailable_error"),
}


class CsvResponse(Response):
    """A table as text."""

    media_type = "text/csv"


@dataclass(frozen=True)
class Ports:
    """The service's adapters. `queue` None: runs are made in this process by `runner`."""

    clock: Clock
    registry: CollectorRegistry
    runner: StepRunner
    queue: StepQueue | None = None


def build_app(settings: BenchSettings, ports: Ports) -> FastAPI:
    """The service. Raises `LedgerFileError` when the database is not usable, `SettingsError` when the token is not."""

    def wake() -> None:
        conductor.wake()

    metrics = BenchMetrics(ports.registry)
    ledger = Ledger(settings.database)
    desk = LedgerDesk(ledger, settings, metrics, ports.clock, wake)
    queue = ports.queue or InProcessQueue(Worker("in-process", desk, ports.runner, ports.clock))
    conductor = Conductor(ledger, queue, settings, metrics, ports.clock)
    service = BenchService(ledger, conductor, ports.runner, settings, metrics, ports.clock)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        conductor.start()
        yield
        await conductor.close()
        await queue.close()
        ledger.close()

    app = build_base_app("Tonnage bench", ports.registry, not_ready=service.not_ready, lifespan=lifespan)
    app.add_middleware(BodyLimit, limit_bytes=settings.request_body_limit_bytes)
    for kind, (status, name) in ERRORS.items():
        app.add_exception_handler(kind, _answer(status, name))
    _add_jobs(app, service, _bearer(settings.token))
    _add_results(app, service, _bearer(settings.token))
    if ports.queue is not None:
        _add_worker_routes(app, desk, _bearer(settings.worker_token))
    return app


def _bearer(setting: str) -> Callable[[Request], Awaitable[None]]:
    """A dependency that wants the token, when there is one."""
    token = SharedToken(setting)

    async def check(request: Request) -> None:
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        if token and not (kind.lower() == "bearer" and token.admits(sent)):
            raise UnauthorizedError("a bearer token is needed: send authorization: Bearer TOKEN")

    return check


def _add_jobs(app: FastAPI, service: BenchService, allowed: Callable[[Request], Awaitable[None]]) -> None:
    wrong: dict[int | str, dict[str, Any]] = {
        400: {"description": "Not such a job, or its target is not allowed"},
        401: {"description": "No or wrong token"},
        429: {"description": "Too many jobs wait"},
    }

    @app.post("/v1/bench", tags=["jobs"], status_code=202, responses=wrong, dependencies=[Depends(allowed)])
    async def submit(request: BenchRequest) -> JobDocument:
        """Start a series of runs; its fields are the options of `tonnage bench`."""
        return await service.submit(request)

    @app.get("/v1/bench", tags=["jobs"], dependencies=[Depends(allowed)])
    async def listed() -> JobList:
        """Every job kept."""
        return JobList(jobs=await service.all())

    @app.get(
        "/v1/bench/{job}",
        tags=["jobs"],
        responses=_MISSING,
        response_model=JobDocument,
        dependencies=[Depends(allowed)],
    )
    async def look(job: Identity, request: Request, stream: Annotated[bool, Query()] = False) -> Response | JobDocument:
        """How far a job is; as server-sent events until it ends with `?stream=1` or `Accept: text/event-stream`."""
        found = await service.look(job)
        if stream or "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(_events(service, found), media_type="text/event-stream")
        return found

    @app.delete("/v1/bench/{job}", tags=["jobs"], responses=_MISSING, dependencies=[Depends(allowed)])
    async def cancel(job: Identity) -> JobDocument:
        """Stop a job, the run under way too; results of the runs that are done stay."""
        return await service.cancel(job)


def _add_results(app: FastAPI, service: BenchService, allowed: Callable[[Request], Awaitable[None]]) -> None:
    @app.get("/v1/bench/{job}/report", tags=["results"], responses=_NOT_YET, dependencies=[Depends(allowed)])
    async def report(job: Identity) -> ReportDocument:
        """The report of the runs that are done; `complete` says whether they are all."""
        return ReportDocument.model_validate(await service.report(job))

    @app.get("/v1/bench/{job}/runs/{number}", tags=["results"], responses=_NOT_YET, dependencies=[Depends(allowed)])
    async def run(job: Identity, number: Annotated[int, Path(ge=0, le=10_000)]) -> ReportDocument:
        """What one run measured, or its error."""
        return ReportDocument.model_validate(await service.run(job, number))

    @app.get(
        "/v1/bench/{job}/points",
        tags=["results"],
        responses=_NOT_YET,
        response_class=CsvResponse,
        dependencies=[Depends(allowed)],
    )
    async def points(job: Identity) -> Response:
        """The job's bench points."""
        return CsvResponse(await service.points(job))


def _add_worker_routes(app: FastAPI, desk: LedgerDesk, allowed: Callable[[Request], Awaitable[None]]) -> None:
    def ref_of(ref: StepRef) -> Ref:
        return Ref(ref.job, ref.number, ref.attempt)

    @app.post("/v1/worker/claim", tags=["workers"], dependencies=[Depends(allowed)])
    async def claim(word: WorkerWord) -> dict[str, Any]:
        """The run to make; `work` is null when there is nothing to do."""
        work = await desk.claim(ref_of(word.ref), word.worker)
        if work is None:
            return {"work": None}
        return {"work": {"question": work.question, "lease_s": work.lease_s, "limit_s": work.limit_s}}

    @app.post("/v1/worker/beat", tags=["workers"], dependencies=[Depends(allowed)])
    async def beat(word: WorkerWord) -> dict[str, bool]:
        """The worker lives; `go_on` false: stop."""
        return {"go_on": await desk.beat(ref_of(word.ref), word.worker, word.elapsed_s)}

    @app.post("/v1/worker/finish", tags=["workers"], dependencies=[Depends(allowed)])
    async def finish(word: WorkerWord) -> dict[str, bool]:
        """The run's result."""
        return {"kept": await desk.finish(ref_of(word.ref), word.worker, word.result or {})}


async def _events(service: BenchService, found: JobDocument) -> AsyncIterator[bytes]:
    """`progress` whenever something changed, then one event named by how the job ended: done, failed, cancelled, or
    gone when it is kept no more. A comment now and then keeps the connection of a long run open."""
    last, quiet = b"", 0
    while found.state in ("queued", "running"):
        body = orjson.dumps(found.model_dump(mode="json"))
        quiet = quiet + 1 if body == last else 0
        if not quiet:
            yield b"event: progress\ndata: " + body + b"\n\n"
        elif quiet % QUIET_LOOKS == 0:
            yield b": no change\n\n"
        last = body
        await asyncio.sleep(EVENT_S)
        try:
            found = await service.look(found.id)
        except LedgerError:
            continue  # /readyz says it; the job goes on when the database does
        except UnknownJobError as error:
            yield b"event: gone\ndata: " + orjson.dumps({"id": found.id, "error": str(error)}) + b"\n\n"
            return
    yield b"event: " + found.state.encode() + b"\ndata: " + orjson.dumps(found.model_dump(mode="json")) + b"\n\n"


def _answer(status: int, kind: str) -> Callable[[Request, Exception], Response]:
    def handler(_: Request, error: Exception) -> Response:
        return error_object(str(error), kind, status)

    return handler
