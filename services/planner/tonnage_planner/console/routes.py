"""The console's API: read-only answers, bounded; one action, which needs a token."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Header, Path, Query, Response
from fastapi.responses import JSONResponse
from starlette.requests import Request

from tonnage_core.hardware import find_gpu
from tonnage_core.hardware.gpus import GPUS
from tonnage_planner.console import documents
from tonnage_planner.console.actions import Gate, NotAllowedError, NotDoneError, drain
from tonnage_planner.console.decisions import Decisions, UnknownDecisionError
from tonnage_planner.console.history import History
from tonnage_planner.console.measurements import Measurements
from tonnage_planner.console.pages import add_pages
from tonnage_planner.console.parts import Parts
from tonnage_planner.console.sampling import sampling
from tonnage_planner.console.view import FleetView
from tonnage_planner.documents import Document
from tonnage_planner.fleet import Fleet
from tonnage_planner.library import Library
from tonnage_planner.ports import EndpointSource, Poster, Scraper
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.catalogue import model_names
from tonnage_runtime.clock import Clock

Pool = Annotated[str, Query(max_length=400)]
Token = Annotated[str | None, Header(alias="Authorization", include_in_schema=False)]
_JSON = "application/json"


@dataclass(frozen=True)
class Around:
    """What the console is built over."""

    fleet: Fleet
    source: EndpointSource
    scraper: Scraper
    poster: Poster | None
    library: Library
    clock: Clock
    engine_clock: Clock


class Console:
    """The console of one planner; `running` is part of the service's life."""

    def __init__(self, settings: PlannerSettings, around: Around) -> None:
        self._fleet = around.fleet
        self._clock = around.clock
        self._poster = around.poster
        self._gate = Gate(settings.action_token_sha256)
        self._parts = Parts(settings, around.scraper, around.clock)
        self._history = History()
        self._view = FleetView(
            settings, around.fleet, around.source, self._parts, engine_clock=around.engine_clock, clock=around.clock
        )
        self._decisions = Decisions(self._parts, around.scraper, around.clock)
        self._measurements = Measurements(around.library, self._parts, around.scraper)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take samples of the fleet until the service ends."""
        async with sampling(self._sample):
            yield
        await self._parts.close()

    async def _sample(self) -> None:
        self._history.add(self._clock.wall(), self._view.seen(), self._fleet.decided)
        self._view.profiles = await self._measurements.kept()

    def add_to(self, app: FastAPI) -> None:
        """Every path of the console, and how its errors are answered."""
        app.add_exception_handler(NotAllowedError, _refused)
        app.add_exception_handler(NotDoneError, _refused)
        app.add_exception_handler(UnknownDecisionError, _missing)
        self._add_fleet(app)
        self._add_decisions(app)
        self._add_plan(app)
        self._add_actions(app)
        add_pages(app)

    def _add_fleet(self, app: FastAPI) -> None:
        @app.get("/v1/console/fleet", tags=["console"], responses=_answers(documents.ConsoleFleet))
        async def fleet(request: Request) -> Response:
            """Pools, endpoints, GPUs, starts and the parts themselves, as known now. What is unknown is null."""
            zipped = "gzip" in request.headers.get("accept-encoding", "")
            headers = {"cache-control": "no-store", "vary": "accept-encoding"}
            headers |= {"content-encoding": "gzip"} if zipped else {}
            return Response(await self._view.bytes(zipped=zipped), media_type=_JSON, headers=headers)

        @app.get("/v1/console/history", tags=["console"], responses=_answers(documents.ConsoleHistory))
        async def history(pool: Pool = "") -> Response:
            """The last minutes of a pool, or of the whole fleet."""
            return _json(self._history.document(pool))

    def _add_decisions(self, app: FastAPI) -> None:
        missing: dict[int | str, dict[str, Any]] = {404: {"description": "No such router, or kept no longer"}}

        @app.get("/v1/console/decisions", tags=["console"], responses=_answers(documents.ConsoleDecisions))
        async def decisions(limit: Annotated[int, Query(ge=1, le=500)] = 200) -> Response:
            """The routers' latest decisions, newest first, without candidates."""
            found = await self._decisions.latest(limit)
            return _json({"routers": self._view.parts("router"), "decisions": found})

        answers = _answers(documents.ConsoleDecision) | missing

        @app.get("/v1/console/decisions/{number}", tags=["console"], responses=answers)
        async def decision(
            number: Annotated[int, Path(ge=1, le=2**53)], router: Annotated[str, Query(max_length=400)] = ""
        ) -> Response:
            """One decision with every candidate's scores; `router` names which router's, empty the first's."""
            address, found = await self._decisions.one(number, router)
            return _json({"router": address, "decision": found})

    def _add_plan(self, app: FastAPI) -> None:
        @app.get("/v1/console/catalogue", tags=["console"])
        async def catalogue() -> documents.ConsoleCatalogue:
            """Models and GPUs that a plan may name."""
            measured = {self._measurements.name_of(one) for one in self._view.profiles.values()}
            gpus = [
                documents.ConsoleGpuName(name=gpu.name, memory_gib=gpu.memory_gib, measured=gpu.name in measured)
                for gpu in GPUS
            ]
            return documents.ConsoleCatalogue(
                models=sorted(model_names()), gpus=gpus, profiles=list(self._view.profiles)
            )

        @app.get("/v1/console/roofline/{gpu}", tags=["console"], responses={400: {"description": "No such GPU"}})
        async def roofline(gpu: Annotated[str, Path(max_length=200)]) -> documents.ConsoleRoofline:
            """Ceilings and matrix products measured on a GPU of this catalogue name, if one was."""
            return await self._measurements.roofline(find_gpu(gpu).name)

    def _add_actions(self, app: FastAPI) -> None:
        refused: dict[int | str, dict[str, Any]] = {
            401: {"description": "The token is missing or wrong"},
            403: {"description": "Actions are off"},
            404: {"description": "No router knows the endpoint"},
            502: {"description": "No router took it"},
        }

        @app.get("/v1/console/session", tags=["console"])
        async def session(authorization: Token = None) -> documents.ConsoleSession:
            """What this caller may do."""
            return documents.ConsoleSession(actions=self._gate.session(authorization))

        @app.post("/v1/console/endpoints/{endpoint}/drain", tags=["console"], responses=refused)
        async def drain_endpoint(
            endpoint: Annotated[str, Path(max_length=300)], undo: bool = False, authorization: Token = None
        ) -> documents.DrainAnswer:
            """Send an endpoint no new requests; `undo=true` ends that. Needs the token."""
            self._gate.check(authorization)
            routers = await drain(self._parts, self._poster, endpoint, undo=undo)
            return documents.DrainAnswer(endpoint=endpoint, draining=not undo, routers=routers)


def _answers(model: type[Document]) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model}}


def _json(document: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(document), media_type=_JSON, headers={"cache-control": "no-store"})


async def _refused(_: Request, error: Exception) -> Response:
    status = getattr(error, "status", 500)
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}.get(status, "upstream_error")
    return JSONResponse({"error": {"message": str(error), "type": kind}}, status, headers)


async def _missing(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"message": str(error), "type": "not_found_error"}}, 404)
