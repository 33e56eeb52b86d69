"""Every service's HTTP API answers as its own OpenAPI document says, whatever it is asked. The planner's has a file of
its own (test_planner_openapi.py)."""

import tempfile
from pathlib import Path
from typing import Any

import schemathesis
from fastapi import FastAPI
from hypothesis import settings
from prometheus_client import CollectorRegistry
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.types import Receive, Scope, Send

from tonnage_bench.app import Ports as BenchPorts
from tonnage_bench.app import build_app as bench_app
from tonnage_bench.ports import Ref
from tonnage_bench.settings import BenchSettings
from tonnage_coldstart.app import Ports as ColdstartPorts
from tonnage_coldstart.app import build_app as coldstart_app
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver
from tonnage_gpu_agent.main import assemble
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_router.app import build_app as router_app
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.settings import EndpointSpec, RouterSettings
from tonnage_runtime.clock import ManualClock, SystemClock

STATE = tempfile.TemporaryDirectory(prefix="tonnage-openapi-")


def _router() -> FastAPI:
    registry = CollectorRegistry()
    spec = RouterSettings(endpoints=[EndpointSpec(url="http://127.0.0.1:9", model="m")])
    return router_app(Gateway(spec, RouterMetrics(registry)), registry)


def _coldstart() -> FastAPI:
    chosen = ColdstartSettings(cache_dir=Path(STATE.name, "cache"), local_sources=False, attempts=1)
    return coldstart_app(chosen, ColdstartPorts(SystemClock(), CollectorRegistry()))


def _agent() -> FastAPI:
    """Without telemetry threads there is no GPU, so no probe runs."""
    return assemble(AgentSettings(state_dir=str(Path(STATE.name, "agent"))), FakeDriver(), ManualClock()).app


class NoQueue:
    """Takes runs and has no worker."""

    async def put(self, ref: Ref) -> None:
        return None

    async def close(self) -> None:
        return None


class NoRunner:
    """Knows nothing against a job and makes none."""

    async def run(self, question: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError(question)

    async def refused(self, question: dict[str, Any]) -> str | None:
        return None


def _bench() -> FastAPI:
    chosen = BenchSettings(database=Path(STATE.name, "bench.sqlite"))
    return bench_app(chosen, BenchPorts(SystemClock(), CollectorRegistry(), NoRunner(), NoQueue()))


def _loaded(app: FastAPI) -> BaseSchema:
    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        """The app without its background work, which only runs once a process."""
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})

    return schemathesis.openapi.from_asgi("/openapi.json", answering)


AGENT, BENCH, COLDSTART, ROUTER = map(_loaded, (_agent(), _bench(), _coldstart(), _router()))


def _check(case: "Case[Any]") -> None:
    # A question may be of the right form and still name something that is not there: 404 or 409, documented.
    excluded: list[Any] = [positive_data_acceptance]
    if case.path == "/readyz":
        excluded.append(not_a_server_error)  # 503 with the reason is the documented answer of what is not ready
    case.call_and_validate(excluded_checks=excluded)


@AGENT.parametrize()
@settings(max_examples=10, deadline=None)
def test_the_agent_answers_as_documented(case: "Case[Any]") -> None:
    _check(case)


@BENCH.parametrize()
@settings(max_examples=5, deadline=None)
def test_the_bench_answers_as_documented(case: "Case[Any]") -> None:
    _check(case)


@COLDSTART.parametrize()
@settings(max_examples=10, deadline=None)
def test_the_cold_start_service_answers_as_documented(case: "Case[Any]") -> None:
    _check(case)


@ROUTER.parametrize()
@settings(max_examples=10, deadline=None)
def test_the_router_answers_as_documented(case: "Case[Any]") -> None:
    _check(case)
