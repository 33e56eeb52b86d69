"""The planning part of the API: plans as jobs, GpuProfiles, bench points."""

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI, Path, Query, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.requests import Request

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec, find_gpu
from tonnage_core.hardware.profile import gpu_from_profile
from tonnage_core.models import ModelShape
from tonnage_core.planning.page import plan_page
from tonnage_core.planning.spec import Lookups, PlanSpec, read_spec
from tonnage_planner.calibration import answer_by_points, note_drift, plan_by_points
from tonnage_planner.documents import Document
from tonnage_planner.library import Library, UnknownProfileError, read_points
from tonnage_planner.memory import named_shape
from tonnage_planner.plan_jobs import BusyError, Job, PlanJobs, UnknownPlanError
from tonnage_planner.predict import PredictAnswer, PredictQuestion

Identity = Annotated[str, Path(max_length=64)]
Wait = Annotated[float, Query(ge=0, le=60)]
_MISSING: dict[int | str, dict[str, Any]] = {404: {"description": "No such plan"}}


class CsvResponse(Response):
    """A table as text."""

    media_type = "text/csv"


class PlanJob(Document):
    """How far a plan is; `plan` is its `tonnage.plan/1` document once it is done."""

    id: str
    """Names the job in the other paths."""
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    """Where it is."""
    progress: float
    """Share done, 0 to 1."""
    doing: str
    """What is being done."""
    error: str | None
    """Why it failed."""
    plan: dict[str, Any] | None
    """The plan."""

    @classmethod
    def of(cls, job: Job, *, whole: bool = True) -> "PlanJob":
        """From the job; not `whole`: without the plan."""
        return cls(
            id=job.id,
            state=job.state,
            progress=round(job.progress, 4),
            doing=job.doing,
            error=job.error,
            plan=job.plan if whole else None,
        )


class PlanList(Document):
    """Every job kept, oldest first, without the plans."""

    plans: list[PlanJob]
    """The jobs."""


class ProfileAnswer(Document):
    """Where a profile is kept."""

    reference: str
    """`node/index`: a plan's offers may name it as `gpu`."""


class ProfileList(Document):
    """Every profile kept, by reference."""

    profiles: dict[str, dict[str, Any]]
    """The documents."""


class PointsAnswer(Document):
    """What became of bench points."""

    added: int
    """Rows taken from this request."""
    held: int
    """Rows kept now."""


def add_plan_routes(app: FastAPI, jobs: PlanJobs, library: Library) -> None:
    """Every path of this part, and how its errors are answered."""
    app.add_exception_handler(UnknownPlanError, _answer(404, "not_found_error"))
    app.add_exception_handler(UnknownProfileError, _answer(404, "not_found_error"))
    app.add_exception_handler(BusyError, _answer(429, "rate_limit_error"))
    _add_plans(app, jobs, library)
    _add_library(app, library)
    _add_points(app, jobs, library)


def _add_plans(app: FastAPI, jobs: PlanJobs, library: Library) -> None:
    refused: dict[int | str, dict[str, Any]] = {
        400: {"description": "The specification is not well formed"},
        429: {"description": "Too many plans wait"},
    }

    @app.post("/v1/plan", tags=["plan"], status_code=202, responses=refused)
    async def start(spec: Annotated[dict[str, Any], Body()], wait_s: Wait = 0.0) -> PlanJob:
        """Start a plan from a specification, as JSON what `tonnage plan` takes as YAML; traces excepted.

        `config` may hold the config.json of a model that is not in the catalogue. With `wait_s` the answer waits that
        long for the plan to end. Kept bench points of the model and engine on an offered GPU, in the layout of a
        candidate, refit its step times: `calibration` and each candidate's `step_times` say so.
        """
        asked = await _specification(spec, library)
        job = jobs.start(await asyncio.to_thread(plan_by_points, asked, await library.held()))
        if wait_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.ended.wait(), wait_s)
        return PlanJob.of(job)

    @app.get("/v1/plan", tags=["plan"])
    async def listed() -> PlanList:
        """Every job kept."""
        return PlanList(plans=[PlanJob.of(job, whole=False) for job in jobs.jobs])

    @app.get("/v1/plan/{plan_id}", tags=["plan"], responses=_MISSING)
    async def one(plan_id: Identity) -> PlanJob:
        """A job's progress, and its plan once done."""
        return PlanJob.of(jobs.get(plan_id))

    @app.delete("/v1/plan/{plan_id}", tags=["plan"], responses=_MISSING)
    async def cancel(plan_id: Identity) -> PlanJob:
        """Stop a plan; one that ended stays as it is."""
        return PlanJob.of(jobs.cancel(plan_id), whole=False)

    not_done: dict[int | str, dict[str, Any]] = {409: {"description": "The plan is not done"}}

    @app.get("/v1/plan/{plan_id}/report", tags=["plan"], response_class=HTMLResponse, responses=_MISSING | not_done)
    async def report(plan_id: Identity) -> Response:
        """The plan as one HTML page: memory, roofline, curve, Pareto front, candidates, advice."""
        job = jobs.get(plan_id)
        if job.plan is None:
            error = {"message": f"plan {job.id} is {job.state}: no report", "type": "conflict_error"}
            return JSONResponse({"error": error}, status_code=409)
        return HTMLResponse(plan_page(job.plan))


def _add_library(app: FastAPI, library: Library) -> None:
    wrong: dict[int | str, dict[str, Any]] = {400: {"description": "Not such a document"}}

    @app.post("/v1/profiles", tags=["measurements"], status_code=201, responses=wrong)
    async def add_profile(profile: Annotated[dict[str, Any], Body()]) -> ProfileAnswer:
        """Keep a `tonnage.gpu_profile/1` document, the latest of each GPU."""
        return ProfileAnswer(reference=await library.add_profile(profile))

    @app.get("/v1/profiles", tags=["measurements"])
    async def profiles() -> ProfileList:
        """Every profile kept."""
        return ProfileList(profiles=await library.profiles())

    @app.get("/v1/profiles/{node}/{index}", tags=["measurements"], responses={404: {"description": "No such profile"}})
    async def profile(node: Annotated[str, Path(max_length=253)], index: int) -> dict[str, Any]:
        """One profile."""
        return await library.profile(f"{node}/{index}")


def _add_points(app: FastAPI, jobs: PlanJobs, library: Library) -> None:
    wrong: dict[int | str, dict[str, Any]] = {400: {"description": "Not such a document"}}
    body = {"requestBody": {"required": True, "content": {"text/csv": {"schema": {"type": "string"}}}}}

    @app.post("/v1/bench-points", tags=["measurements"], status_code=201, responses=wrong, openapi_extra=body)
    async def add_points(request: Request) -> PointsAnswer:
        """Keep measured points, a CSV with the columns that `tonnage bench` writes; equal ids replace each other."""
        try:
            text = (await request.body()).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadInputError("bench points are not UTF-8 text") from error
        before = await library.held()
        added, held = await library.add_points(text)
        await asyncio.to_thread(lambda: note_drift(read_points(text), before, jobs.metrics))
        return PointsAnswer(added=added, held=held)

    @app.get("/v1/bench-points", tags=["measurements"], response_class=CsvResponse)
    async def points() -> Response:
        """Every point kept, as CSV."""
        return CsvResponse(await library.points())

    @app.post("/v1/predict/measured", tags=["predict"], responses={400: {"description": "No engine takes this"}})
    async def measured(question: PredictQuestion) -> PredictAnswer:
        """`/v1/predict` with the coefficients refitted to the kept bench points of the same model, GPU, engine and
        layout; without such a point the same answer as there.
        """
        found = await asyncio.to_thread(answer_by_points, question, await library.points())
        return PredictAnswer.model_validate(found)


async def _specification(asked: dict[str, Any], library: Library) -> PlanSpec:
    profiles = await library.profiles()
    config = asked.pop("config", None)
    if config is not None and not isinstance(config, dict):
        raise BadInputError("config is no object: send the model's config.json")

    def gpu(reference: str) -> GpuSpec:
        return gpu_from_profile(profiles[reference]) if reference in profiles else find_gpu(reference)

    def model(reference: str) -> ModelShape:
        return named_shape(reference, config)

    return await asyncio.to_thread(read_spec, asked, Lookups(model, gpu, Random))


def _answer(status: int, kind: str) -> Callable[[Request, Exception], Response]:
    def handler(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": {"message": str(error), "type": kind}}, status_code=status)

    return handler
