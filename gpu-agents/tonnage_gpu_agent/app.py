"""The GPU agent's HTTP API: state of the GPUs, GpuProfile documents, probe runs."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ConfigDict, Field

from tonnage_gpu_agent.errors import ProbeRefusedError, UnknownGpuError
from tonnage_gpu_agent.prober import Prober, ProbeRequest, ProberPorts
from tonnage_gpu_agent.probes import PROBES, SUITES
from tonnage_runtime.body_limit import BodyLimit
from tonnage_runtime.http_app import Lifespan, build_base_app

MOST_BODY_BYTES = 65536
Name = Annotated[str, Field(max_length=100, pattern=r"^[\x20-\x7e]*$")]
PRINTED = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"
"""One line with something to read in it."""


class ProbeBody(BaseModel):
    """Body of `POST /v1/probe`."""

    model_config = ConfigDict(extra="forbid")

    suite: str = Field(default="quick", pattern="^(quick|full)$", description="quick (seconds) or full (minutes)")
    only: list[Name] = Field(default=[], max_length=100, description="run these probes only")
    gpu: Name | None = Field(default=None, description="index or uuid; none: every GPU in turn")
    wait: bool = Field(default=False, description="answer when the run is done instead of at once")


class ClearBody(BaseModel):
    """Body of `POST /v1/gpus/{gpu}/clear`."""

    model_config = ConfigDict(extra="forbid")

    by: str = Field(min_length=1, max_length=200, pattern=PRINTED, description="who clears the verdict")
    why: str = Field(min_length=1, max_length=500, pattern=PRINTED, description="why, for the audit")


def build_app(
    ports: ProberPorts,
    prober: Prober,
    registry: CollectorRegistry,
    version: str,
    lifespan: Lifespan | None = None,
    access_file: Path | None = None,
) -> FastAPI:
    """The application; `lifespan` starts and stops what `main` owns."""
    app = build_base_app(
        "Tonnage GPU agent",
        registry,
        not_ready=ports.telemetry.not_ready,
        lifespan=lifespan,
        access_file=access_file,
    )
    app.add_middleware(BodyLimit, limit_bytes=MOST_BODY_BYTES)
    app.add_exception_handler(ProbeRefusedError, _refused)
    app.add_exception_handler(UnknownGpuError, _not_found)
    _add_state(app, ports, version)
    _add_probes(app, prober, version)
    return app


def _add_state(app: FastAPI, ports: ProberPorts, version: str) -> None:
    @app.get("/v1/gpus", tags=["gpus"])
    async def gpus() -> dict[str, Any]:
        """Mode of the agent, and each GPU's state with its latest readings."""
        telemetry = ports.telemetry
        listed = [_view(view) for view in telemetry.views()]
        return {
            "schema": "tonnage.gpus/1",
            "version": version,
            "mode": telemetry.mode.value,
            "reason": telemetry.reason,
            "gpus": listed,
        }

    @app.get("/v1/profiles", tags=["profiles"])
    async def profiles() -> dict[str, Any]:
        """Every GpuProfile this agent has measured."""
        found = [record.profile for record in ports.book.records.values() if record.profile is not None]
        return {
            "schema": "tonnage.gpu_profiles/1",
            "version": version,
            "mode": ports.telemetry.mode.value,
            "profiles": sorted(found, key=lambda p: p["index"]),
        }

    @app.get("/v1/profiles/{gpu}", tags=["profiles"], responses={404: {"description": "No such GPU or profile"}})
    async def profile(gpu: str) -> dict[str, Any]:
        """One GpuProfile, by index or uuid."""
        for uuid, record in ports.book.records.items():
            if record.profile is not None and gpu in (uuid, str(record.profile["index"])):
                return dict(record.profile)
        raise UnknownGpuError(f"no profile of GPU {gpu!r}: POST /v1/probe measures one")

    @app.post("/v1/gpus/{gpu}/clear", tags=["gpus"], responses={404: {"description": "No such GPU"}})
    async def clear(gpu: str, body: ClearBody) -> dict[str, Any]:
        """Clear a GPU's verdict, with who and why; it is UNKNOWN until the next probe."""
        known = {uuid: record.profile for uuid, record in ports.book.records.items()}
        uuids = [uuid for uuid, p in known.items() if gpu == uuid or (p is not None and gpu == str(p["index"]))]
        if not uuids:
            raise UnknownGpuError(f"no GPU {gpu!r} has a verdict")
        return ports.book.clear(uuids[0], body.by, body.why, ports.clock.wall()).document()


def _view(view: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"index": view.index, "state": view.state.value, "detail": view.detail}
    if view.identity is not None:
        found |= asdict(view.identity)
    if view.snapshot is not None:
        found["readings"] = {
            name: {"/".join(labels) or "value": value for labels, value in readings}
            for name, readings in view.snapshot.readings.items()
        }
        processes = view.snapshot.processes
        found["processes"] = None if processes is None else [asdict(p) for p in processes]
        found["mig_instances"] = [asdict(instance) for instance in view.snapshot.mig_instances]
    return found


def _add_probes(app: FastAPI, prober: Prober, version: str) -> None:
    @app.get("/v1/probes", tags=["probes"])
    async def probes() -> dict[str, Any]:
        """The probes there are and their suites."""
        listed = [{"name": p.name, "quick": p.quick, "summary": p.summary} for p in PROBES]
        return {"schema": "tonnage.probes/1", "version": version, "suites": list(SUITES), "probes": listed}

    @app.post(
        "/v1/probe",
        tags=["probes"],
        status_code=202,
        responses={
            200: {"description": "Done"},
            400: {"description": "No such probe"},
            404: {"description": "No GPU"},
            409: {"description": "Refused, with the reason"},
        },
    )
    async def probe(body: ProbeBody) -> Response:
        """Start a probe run; `wait` answers when it is done."""
        run = prober.start(ProbeRequest(body.suite, tuple(body.only), body.gpu))
        if body.wait:
            await asyncio.shield(prober.finish())
            return JSONResponse(run.document(version))
        return JSONResponse(run.document(version), status_code=202)

    @app.get("/v1/probe/{run_id}", tags=["probes"], responses={404: {"description": "No such run"}})
    async def probe_run(run_id: str) -> dict[str, Any]:
        """A run's state and report."""
        if run_id not in prober.runs:
            raise UnknownGpuError(f"no probe run {run_id!r}: only the last ones are kept")
        return prober.runs[run_id].document(version)


async def _refused(_: Any, error: Exception) -> Response:
    code = getattr(error, "code", "busy")
    return JSONResponse({"error": {"message": str(error), "type": "refused", "code": code}}, status_code=409)


async def _not_found(_: Any, error: Exception) -> Response:
    return JSONResponse({"error": {"message": str(error), "type": "not_found"}}, status_code=404)
