"""Cold starts as they are reported (`tonnage timeline --report`): kept, counted, and told to the planner."""

import threading
from collections import OrderedDict
from typing import Annotated, Any, Literal

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from tonnage_coldstart.metrics import StartMetrics
from tonnage_core.coldstart.anatomy import document
from tonnage_core.coldstart.phases import Span, timeline
from tonnage_core.errors import BadInputError

KEPT = 200
SPANS = 200
MAX_TOTAL_S = 86_400.0
"""A start of over a day is a wrong clock: it would become the planner's lead time."""
Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False, strict=True)]


class SpanReport(BaseModel):
    """One phase or a part of it, in Unix seconds; null is unknown."""

    phase: Literal["provision", "pull", "fetch", "load", "init"]
    detail: str = Field(default="", max_length=100)
    start_s: Seconds | None = None
    end_s: Seconds | None = None


class StartReport(BaseModel):
    """A `tonnage.start/1` document; totals are worked out anew from the spans."""

    model_config = ConfigDict(extra="ignore")

    schema_: Literal["tonnage.start/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=253)
    pool: str = Field(default="", max_length=253)
    spans: list[SpanReport] = Field(min_length=1, max_length=SPANS)


class Starts:
    """The last starts, one a name and first instant: a start that is reported again is counted once."""

    def __init__(self, metrics: StartMetrics) -> None:
        self._metrics = metrics
        self._kept: OrderedDict[tuple[str, str, float], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, report: StartReport) -> dict[str, Any]:
        """Keep and count it; returns its document. Raises `BadInputError` when its spans cannot be."""
        spans = [Span(one.phase, one.start_s, one.end_s, one.detail) for one in report.spans]
        try:
            whole = timeline(spans)
        except ValueError as error:
            raise BadInputError(str(error)) from error
        if whole.total_s is None:
            raise BadInputError("no span has both ends: nothing is known of this start")
        if whole.total_s > MAX_TOTAL_S:
            raise BadInputError(f"a start of {whole.total_s:.0f} s is over a day: its instants are of different clocks")
        found = document(report.name, report.pool, spans)
        first = min(one.start_s for one in spans if one.start_s is not None)
        key = (report.pool, report.name, first)
        with self._lock:
            known = key in self._kept
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        if not known:
            self._count(found)
        return found

    def all(self) -> list[dict[str, Any]]:
        """The starts, oldest first."""
        with self._lock:
            return list(self._kept.values())

    def _count(self, found: dict[str, Any]) -> None:
        self._metrics.duration.observe(found["total_s"])
        for phase, seconds in found["phases"].items():
            if seconds is not None:
                self._metrics.phase.labels(phase).observe(seconds)


def add_start_routes(app: FastAPI, starts: Starts) -> None:
    """`/v1/starts`."""

    @app.post("/v1/starts", tags=["starts"], status_code=201, responses={400: {"description": "Spans that cannot be"}})
    async def report(request: StartReport) -> JSONResponse:
        """Take one start."""
        return JSONResponse(starts.add(request), status_code=201)

    @app.get("/v1/starts", tags=["starts"])
    async def listed() -> JSONResponse:
        """The last starts that were reported, oldest first."""
        return JSONResponse({"schema": "tonnage.starts/1", "version": 1, "starts": starts.all()})
