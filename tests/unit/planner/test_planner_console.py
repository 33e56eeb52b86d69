"""The console's answers and files: unknown stays unknown, a silent part is told, nothing inline or from elsewhere."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from tonnage_core.autoscaling.observation import Outcome
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports, build_app
from tonnage_planner.console import documents
from tonnage_planner.console.actions import Gate
from tonnage_planner.console.pages import read_assets
from tonnage_planner.ports import ScrapeError
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.clock import ManualClock

ROUTER, AGENT, COLD, FLEET = "http://router:1", "http://agent:1", "http://cold:1", "http://fleet:1"
SHA256 = hashlib.sha256(b"let-me").hexdigest()
ROW = {
    "id": "e0:1", "url": "http://e0:1", "models": ["m"], "role": "both", "healthy": True, "requests": 2,
    "load_tokens": 7.5, "draining": False, "drained_by": [], "requests_total": 4, "failures_total": 1,
}  # fmt: skip


class World:
    """Answers by URL; an answer that is an exception is raised."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.posts: list[str] = []
        self.asked: list[str] = []
        self.post_answer: tuple[int, str] = (200, "{}")

    async def text(self, url: str) -> str:
        self.asked.append(url.split("?")[0])
        found = self.answers.get(url.split("?")[0])
        if found is None:
            raise ScrapeError(Outcome.UNREACHABLE, "connection refused")
        return found if isinstance(found, str) else json.dumps(found)

    async def addresses(self, url: str) -> Sequence[str]:
        return (url, "http://router-2:1") if url == ROUTER and "two" in self.answers else (url,)

    async def post(self, url: str) -> tuple[int, str]:
        self.posts.append(url)
        return self.post_answer


@pytest.fixture
def world() -> World:
    made = World()
    made.answers = {
        f"{ROUTER}/admin/endpoints": {"policy": "prefix", "endpoints": [ROW]},
        f"{ROUTER}/admin/queue": {"pools": []},
        f"{AGENT}/v1/gpus": {"mode": "gpu", "reason": None, "gpus": [{"index": 0, "uuid": "G", "state": "ok"}]},
        f"{AGENT}/v1/profiles": {
            "profiles": [
                {"node": "n1", "index": 0, "uuid": "G", "verdict": {"status": "WARN", "reasons": [{"text": "slow"}]}}
            ]
        },
        f"{COLD}/v1/stage": {
            "jobs": [{"id": "j", "uri": "hf://m", "state": "running", "progress": {"phase": "fetch"}}]
        },
        f"{COLD}/v1/cache": {"entries": []},
        f"{FLEET}/": {"processes": [{"name": "router", "state": "ready", "restarts": 1}], "replay": {"trace": "t"}},
    }
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def make_app(world: World, clock: ManualClock, **more: Any) -> FastAPI:
    parts: dict[str, Any] = {
        "router_url": ROUTER,
        "agent_urls": (AGENT,),
        "coldstart_urls": (COLD,),
        "supervisor_url": FLEET,
    }
    settings = PlannerSettings(scrape_interval_s=60.0, **parts, **more)
    endpoints = [
        EndpointSettings(url="http://e0:1", model="m", gpu_profile="n1/0"),
        EndpointSettings(url="http://e1:1"),
    ]
    return build_app(settings, Ports(StaticEndpoints(endpoints), world, clock, CollectorRegistry(), poster=world))


@pytest.fixture
async def http(world: World, clock: ManualClock) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(world, clock, action_token_sha256=SHA256)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        yield client


async def fleet_of(http: httpx.AsyncClient) -> dict[str, Any]:
    document: dict[str, Any] = (await http.get("/v1/console/fleet")).json()
    documents.ConsoleFleet.model_validate(document)
    return document


async def test_the_fleet_is_gathered_from_every_part(http: httpx.AsyncClient) -> None:
    document = await fleet_of(http)
    assert {part["kind"]: part["state"] for part in document["parts"]} == dict.fromkeys(
        ("router", "agent", "coldstart", "fleet"), "up"
    )
    rows = {row["id"]: row for row in document["endpoints"]}
    assert set(rows) == {"e0:1", "e1:1"}
    assert (rows["e0:1"]["in_flight"], rows["e0:1"]["failures_total"], rows["e0:1"]["verdict"]) == (2, 1, "WARN")
    assert document["gpus"][0]["verdict_reasons"] == ["slow"]
    assert (document["starts"][0]["uri"], document["starts_known"]) == ("hf://m", True)
    assert document["replay"]["trace"] == "t"
    assert document["processes"] == [{"name": "router", "state": "ready", "restarts": 1}]


async def test_what_no_part_says_is_null_and_never_zero(http: httpx.AsyncClient) -> None:
    row = next(row for row in (await fleet_of(http))["endpoints"] if row["id"] == "e1:1")
    assert row["state"] == "unknown"
    for name in ("running", "waiting", "kv_usage", "hit_rate", "output_tok_s", "in_flight", "requests_total", "age_s"):
        assert row[name] is None, name


async def test_a_part_that_falls_silent_is_down_with_its_age_and_soon_no_longer_believed(
    http: httpx.AsyncClient, world: World, clock: ManualClock
) -> None:
    await fleet_of(http)
    world.answers = {url: said for url, said in world.answers.items() if not url.startswith((ROUTER, COLD))}
    clock.advance(5.0)
    document = await fleet_of(http)
    router = next(part for part in document["parts"] if part["kind"] == "router")
    assert (router["state"], router["age_s"]) == ("down", 5.0)
    assert "connection refused" in router["problem"]
    assert next(row for row in document["endpoints"] if row["id"] == "e0:1")["in_flight"] == 2
    clock.advance(30.0)
    document = await fleet_of(http)
    assert all(row["in_flight"] is None for row in document["endpoints"])
    assert (document["starts"], document["starts_known"]) == ([], False)
    assert next(part for part in document["parts"] if part["kind"] == "agent")["state"] == "up"


async def test_several_routers_add_up_and_one_of_them_may_not_reach_it(http: httpx.AsyncClient, world: World) -> None:
    world.answers["two"] = True
    second = {**ROW, "healthy": False, "problem": "timeout", "requests": 3}
    world.answers["http://router-2:1/admin/endpoints"] = {"policy": "prefix", "endpoints": [second]}
    world.answers["http://router-2:1/admin/queue"] = {"pools": []}
    row = next(row for row in (await fleet_of(http))["endpoints"] if row["id"] == "e0:1")
    assert (row["routers"], row["in_flight"], row["state"]) == (2, 5, "serving")
    assert row["problem"] == "1 of 2 routers reach it"


@pytest.mark.parametrize("said", ["[]", "not json", '{"endpoints": 3}', '{"endpoints": [{"url": 4, "id": []}, null]}'])
async def test_a_part_that_talks_nonsense_hurts_nobody(http: httpx.AsyncClient, world: World, said: str) -> None:
    world.answers[f"{ROUTER}/admin/endpoints"] = said
    document = await fleet_of(http)
    assert [row["in_flight"] for row in document["endpoints"]] == [None, None]


async def test_an_agent_that_talks_nonsense_hurts_nobody(http: httpx.AsyncClient, world: World) -> None:
    world.answers[f"{AGENT}/v1/gpus"] = {"gpus": [{"uuid": ["G"]}, {"uuid": {}, "index": "0"}]}
    world.answers[f"{AGENT}/v1/profiles"] = {"profiles": [{"uuid": [], "node": [], "verdict": {"status": {}}}]}
    assert [gpu["verdict"] for gpu in (await fleet_of(http))["gpus"]] == [None, None]


async def test_a_crowd_is_answered_from_one_question_to_each_part(
    http: httpx.AsyncClient, world: World, clock: ManualClock
) -> None:
    world.answers[f"{ROUTER}/admin/decisions"] = {"decisions": [{"number": 7, "at": "2026"}] * 300}
    del world.answers[f"{COLD}/v1/stage"]  # what does not answer is asked no more often
    fleet, decisions = "/v1/console/fleet", "/v1/console/decisions"
    answers = await asyncio.gather(*(http.get(path) for path in [fleet, decisions, f"{decisions}?limit=3"] * 30))
    assert {answer.status_code for answer in answers} == {200}
    assert {len(answer.json()["decisions"]) for answer in answers[1::3]} == {200}
    assert {len(answer.json()["decisions"]) for answer in answers[2::3]} == {3}
    for path in (f"{ROUTER}/admin/endpoints", f"{ROUTER}/admin/decisions", f"{COLD}/v1/stage"):
        assert world.asked.count(path) == 1, path
    assert len((await http.get(f"{decisions}?limit=500")).json()["decisions"]) == 300
    clock.advance(1.5)
    await http.get(decisions)
    await http.get(fleet)
    assert world.asked.count(f"{ROUTER}/admin/decisions") == 3
    assert world.asked.count(f"{COLD}/v1/stage") == 2


async def test_answers_are_zipped_when_asked_and_rows_are_bounded(world: World, clock: ManualClock) -> None:
    app = make_app(world, clock, console_rows=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        answer = await client.get("/v1/console/fleet", headers={"accept-encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        assert len(json.loads(answer.content)["endpoints"]) == 1
        assert answer.json()["endpoints_total"] == 1  # no scrape has listed the planner's own yet


async def test_history_and_catalogue_are_as_documented(http: httpx.AsyncClient) -> None:
    documents.ConsoleHistory.model_validate((await http.get("/v1/console/history?pool=m")).json())
    catalogue = (await http.get("/v1/console/catalogue")).json()
    assert "meta-llama/Llama-3.1-8B" in catalogue["models"]
    assert {"name": "L40S", "memory_gib": 44.4, "measured": False} in catalogue["gpus"]
    assert (await http.get("/v1/console/roofline/L40S")).json()["reference"] is None
    assert (await http.get("/v1/console/roofline/abacus")).status_code == 400


async def test_decisions_come_from_every_router_and_only_from_routers(http: httpx.AsyncClient, world: World) -> None:
    world.answers[f"{ROUTER}/admin/decisions"] = {"decisions": [{"number": 7, "at": "2026"}]}
    world.answers[f"{ROUTER}/admin/decisions/7"] = {"decision": {"number": 7}}
    found = (await http.get("/v1/console/decisions")).json()
    assert found["decisions"] == [{"number": 7, "at": "2026", "router": ROUTER}]
    assert (await http.get("/v1/console/decisions/7")).json() == {"router": ROUTER, "decision": {"number": 7}}
    assert (await http.get("/v1/console/decisions/8")).status_code == 404
    elsewhere = await http.get("/v1/console/decisions/7", params={"router": "http://169.254.169.254"})
    assert elsewhere.status_code == 404


async def test_a_drain_needs_the_token_and_reaches_every_router(http: httpx.AsyncClient, world: World) -> None:
    path = "/v1/console/endpoints/a%2F..%2Fb/drain"
    for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {SHA256}"}):
        assert (await http.post(path, headers=headers)).status_code in (401, 404)
    right = {"authorization": "Bearer let-me"}
    done = await http.post("/v1/console/endpoints/e0:1/drain", headers=right)
    assert (done.status_code, done.json()["routers"]) == (200, 1)
    await http.post("/v1/console/endpoints/e0:1/drain?undo=true", headers=right)
    assert world.posts == [
        f"{ROUTER}/admin/endpoints/e0%3A1/drain",
        f"{ROUTER}/admin/endpoints/e0%3A1/drain?undo=true",
    ]
    world.post_answer = (404, "{}")
    assert (await http.post("/v1/console/endpoints/gone/drain", headers=right)).status_code == 404
    assert (await http.get("/v1/console/session", headers=right)).json() == {"actions": "allowed"}


def test_without_a_token_in_the_settings_nobody_may_act() -> None:
    assert Gate(None).session("Bearer let-me") == "off"
    assert Gate(SHA256).session(None) == "token"
    assert Gate(SHA256.upper()).session("bearer let-me") == "allowed"


async def test_pages_are_the_shell_under_a_strict_policy(http: httpx.AsyncClient) -> None:
    for page in ("fleet", "decisions", "plan"):
        answer = await http.get(f"/console/{page}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "trusted-types" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await http.get(f"/console/{page}", headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304
        behind_proxy = {"if-none-match": f'"another", W/{answer.headers["etag"]}'}
        assert (await http.get(f"/console/{page}", headers=behind_proxy)).status_code == 304
        assert (await http.get(f"/console/{page}", headers={"if-none-match": '"another"'})).status_code == 200
        head = await http.head(f"/console/{page}")
        assert (head.status_code, head.headers["etag"]) == (200, answer.headers["etag"])
    assert (await http.get("/console")).headers["location"] == "/console/fleet"
    assert (await http.get("/console/nothing")).status_code == 404
    assert (await http.get("/console/static/../settings.py")).status_code == 404


async def test_the_console_can_be_left_out(world: World, clock: ManualClock) -> None:
    app = make_app(world, clock, console=False)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        assert (await client.get("/console/fleet")).status_code == 404
        assert (await client.get("/v1/console/fleet")).status_code == 404


def test_scripts_make_no_markup_of_texts_and_load_nothing_from_elsewhere() -> None:
    assets = read_assets()
    assert {"index.html", "js/main.js", "css/base.css", "fonts/inter-latin.woff2", "fonts/inter-LICENSE.txt"} <= set(
        assets
    )
    for name, asset in assets.items():
        if not name.endswith((".js", ".css", ".html")):
            continue
        text = asset.body.decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert not re.search(r"(?:src|href|url|from|import)\W{1,3}https?://", text), name
        assert not re.search(r"<script>|\sstyle=\"|\son\w+=\"", text), name
        assert len(text.splitlines()) <= 400, name
