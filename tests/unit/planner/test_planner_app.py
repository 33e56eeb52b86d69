"""The planner over HTTP, with its OpenAPI document held to a golden copy."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from tonnage_core.autoscaling.observation import Outcome
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports, build_app
from tonnage_planner.ports import ScrapeError
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.clock import SystemClock

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "planner_openapi.json"
BUSY = 'vllm:num_requests_running 10\nvllm:num_requests_waiting 20\nvllm:gpu_cache_usage_perc{engine="0"} 0.9\n'
ENDPOINTS = (
    EndpointSettings(url="http://a:1", model="org/model"),
    EndpointSettings(url="http://dead:1", model="org/model"),
)


class OneAnswers:
    """The first endpoint answers, the other is dead."""

    async def text(self, url: str) -> str:
        if url == "http://a:1/metrics":
            return BUSY
        raise ScrapeError(Outcome.UNREACHABLE, "connection refused")

    async def addresses(self, url: str) -> Sequence[str]:
        return (url,)


def make_app(endpoints: tuple[EndpointSettings, ...] = ENDPOINTS) -> FastAPI:
    settings = PlannerSettings(scrape_interval_s=0.02)
    return build_app(settings, Ports(StaticEndpoints(endpoints), OneAnswers(), SystemClock(), CollectorRegistry()))


async def until_ready(http: httpx.AsyncClient) -> None:
    for _ in range(500):
        if (await http.get("/readyz")).status_code == 200:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not ready in five seconds")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = make_app()
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as http:
        await until_ready(http)
        yield http


async def test_a_target_names_its_signal(client: httpx.AsyncClient) -> None:
    document = (await client.get("/v1/targets/org/model")).json()
    assert document["schema"] == "tonnage.target/1"
    assert document["pool"] == "org/model"
    assert document["desired_replicas"] == 2
    assert document["asked_by"] in ("kv_usage", "waiting")
    assert (document["listed_endpoints"], document["known_endpoints"]) == (2, 1)
    assert (await client.get("/v1/targets")).json()["targets"][0]["pool"] == "org/model"


async def test_the_explanation_holds_loads_needs_policy_and_endpoints(client: httpx.AsyncClient) -> None:
    document = (await client.get("/v1/explain/org/model")).json()
    assert document["schema"] == "tonnage.explain/1"
    assert {need["signal"] for need in document["needs"]} == {"kv_usage", "running", "waiting"}
    assert document["load"]["waiting"]["known"] == 20
    assert document["policy"]["max_replicas"] == 16
    assert len(document["endpoints"]) == 2


async def test_a_dead_endpoint_has_nulls_and_a_reason(client: httpx.AsyncClient) -> None:
    alive, dead = (await client.get("/v1/endpoints")).json()["endpoints"]
    assert alive["read_from"]["kv_usage"] == "vllm:gpu_cache_usage_perc"
    assert dead["state"] == "unknown"
    assert (dead["running"], dead["waiting"], dead["kv_usage"], dead["age_s"]) == (None, None, None, None)
    assert dead["reason"] == "unreachable: connection refused"


async def test_an_unknown_pool_is_404_and_names_the_known(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/targets/nope")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "no pool 'nope'; known: org/model"


async def test_metrics_hold_the_target(client: httpx.AsyncClient) -> None:
    text = (await client.get("/metrics")).text
    assert 'tonnage_planner_desired_replicas{pool="org/model"} 2.0' in text


async def test_a_planner_without_endpoints_is_ready() -> None:
    app = make_app(())
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as http:
            await until_ready(http)


def test_the_openapi_document_is_the_golden_copy() -> None:
    """To accept a change: write `json.dumps(app.openapi(), indent=1, sort_keys=True)` to the golden file."""
    assert json.loads(GOLDEN.read_text()) == json.loads(json.dumps(make_app().openapi()))
