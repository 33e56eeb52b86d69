"""Plans, GpuProfiles and bench points over HTTP."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tonnage_planner import library, plan_jobs
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports, build_app
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.clock import SystemClock

SPEC: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "engine": "vllm:0.32.0",
    "traffic": {"rate_rps": 4, "input_tokens": 400, "output_tokens": 40},
    "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 50}},
    "offers": [{"gpu": "H100", "usd_per_hour": 2.9, "max": 4}],
    "search": {"precision": ["auto"], "kv_dtype": ["auto"], "tp": [1]},
}
PROFILE = {
    "schema": "tonnage.gpu_profile/1",
    "node": "n1",
    "index": 0,
    "name": "H100-SXM-80GB",
    "memory_bytes": 85_000_000_000,
    "ceilings": {"hbm_read_gbps": 1500, "bf16_tflops": 300},
}


class Unused:
    """No endpoint is listed, so nothing is scraped."""

    async def text(self, url: str) -> str:
        raise AssertionError(url)

    async def addresses(self, url: str) -> Sequence[str]:
        raise AssertionError(url)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    settings = PlannerSettings(plans_waiting=1, plans_kept=2, profiles_kept=2, bench_points_kept=3)
    app = build_app(settings, Ports(StaticEndpoints(()), Unused(), SystemClock(), CollectorRegistry()))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as http:
        yield http


class Held:
    """A planner that waits in its thread until it is let go, reporting progress before and after."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.started = threading.Event()

    def __call__(self, spec: object, version: str, progress: Callable[[float, str], None]) -> dict[str, Any]:
        progress(0.5, "half")
        self.started.set()
        assert self.go.wait(30)
        progress(0.9, "nearly")
        return {"schema": "tonnage.plan/1"}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    planner = Held()
    monkeypatch.setattr(plan_jobs, "make_plan", planner)
    return planner


async def _state(client: httpx.AsyncClient, plan_id: str, *wanted: str) -> dict[str, Any]:
    for _ in range(3000):
        job: dict[str, Any] = (await client.get(f"/v1/plan/{plan_id}")).json()
        if job["state"] in wanted:
            return job
        await asyncio.sleep(0.01)
    raise AssertionError(f"{plan_id} is {job['state']}, not {wanted}")


async def test_a_plan_is_computed_and_reported_as_a_page(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/plan?wait_s=60", json=SPEC)
    assert answer.status_code == 202
    job = await _state(client, answer.json()["id"], "done")
    assert (job["progress"], job["doing"], job["error"]) == (1.0, "done", None)
    assert job["plan"]["schema"] == "tonnage.plan/1"
    assert job["plan"]["feasible"] is True
    page = await client.get(f"/v1/plan/{job['id']}/report")
    assert page.headers["content-type"].startswith("text/html")
    assert page.text.startswith("<!doctype html>")
    listed = (await client.get("/v1/plan")).json()["plans"]
    assert [(each["id"], each["plan"]) for each in listed] == [(job["id"], None)]
    assert 'tonnage_planner_plans_total{outcome="done"} 1.0' in (await client.get("/metrics")).text


async def test_progress_shows_and_a_running_plan_can_be_cancelled(client: httpx.AsyncClient, held: Held) -> None:
    job = (await client.post("/v1/plan", json=SPEC)).json()
    await asyncio.to_thread(held.started.wait, 30)
    seen = (await client.get(f"/v1/plan/{job['id']}")).json()
    assert (seen["state"], seen["progress"], seen["doing"]) == ("running", 0.5, "half")
    assert (await client.get(f"/v1/plan/{job['id']}/report")).status_code == 409
    await client.delete(f"/v1/plan/{job['id']}")
    held.go.set()
    assert (await _state(client, job["id"], "cancelled"))["plan"] is None


async def test_a_queue_that_is_full_is_429_and_a_waiting_plan_is_cancelled_at_once(
    client: httpx.AsyncClient, held: Held
) -> None:
    first = (await client.post("/v1/plan", json=SPEC)).json()
    await asyncio.to_thread(held.started.wait, 30)
    second = (await client.post("/v1/plan", json=SPEC)).json()
    third = await client.post("/v1/plan", json=SPEC)
    assert third.status_code == 429
    assert "1 plans wait already" in third.json()["error"]["message"]
    assert (await client.delete(f"/v1/plan/{second['id']}")).json()["state"] == "cancelled"
    held.go.set()
    await _state(client, first["id"], "done")


async def test_only_the_latest_ended_plans_are_kept(client: httpx.AsyncClient, held: Held) -> None:
    held.go.set()
    ids = []
    for _ in range(4):
        ids.append((await client.post("/v1/plan?wait_s=30", json=SPEC)).json()["id"])
    assert [each["id"] for each in (await client.get("/v1/plan")).json()["plans"]] == ids[-2:]
    assert (await client.get(f"/v1/plan/{ids[0]}")).status_code == 404


async def test_a_failure_inside_ends_one_plan_and_not_the_next(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> dict[str, Any]:
        raise ZeroDivisionError("0")

    monkeypatch.setattr(plan_jobs, "make_plan", broken)
    failed = (await client.post("/v1/plan?wait_s=30", json=SPEC)).json()
    assert (failed["state"], failed["error"]) == ("failed", "internal error: ZeroDivisionError: 0")
    monkeypatch.setattr(plan_jobs, "make_plan", lambda *_: {"schema": "tonnage.plan/1"})
    assert (await client.post("/v1/plan?wait_s=30", json=SPEC)).json()["state"] == "done"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"traffic": {"trace": "secret.jsonl"}}, "cannot be read here"),
        ({"model": "../secret/config.json"}, "in the catalogue: send its config.json"),
        ({"offers": [{"gpu": "n9/0", "usd_per_hour": 1}]}, "unknown GPU 'n9/0'"),
        ({"slo": {}}, "slo is empty"),
        ({"config": 3}, "config is no object"),
    ],
)
async def test_a_bad_specification_is_400_at_once(
    client: httpx.AsyncClient, change: dict[str, Any], words: str
) -> None:
    answer = await client.post("/v1/plan", json=SPEC | change)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


async def test_a_measured_gpu_can_be_offered_by_its_reference(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/profiles", json=PROFILE)).json() == {"reference": "n1/0"}
    offers = [{"gpu": "n1/0", "usd_per_hour": 2.9, "max": 4}]
    slow = (await client.post("/v1/plan?wait_s=60", json=SPEC | {"offers": offers})).json()
    slow = await _state(client, slow["id"], "done")
    memory = slow["plan"]["best"]["memory"]
    assert memory["memory_gib"] == pytest.approx(85e9 / 2**30, rel=1e-3)


async def test_profiles_are_bounded_the_latest_of_a_gpu_counts_and_wrong_ones_are_refused(
    client: httpx.AsyncClient,
) -> None:
    for index in (0, 1, 0, 2):
        assert (await client.post("/v1/profiles", json=PROFILE | {"index": index})).status_code == 201
    assert list((await client.get("/v1/profiles")).json()["profiles"]) == ["n1/0", "n1/2"]
    assert (await client.get("/v1/profiles/n1/2")).json()["index"] == 2
    assert (await client.get("/v1/profiles/n1/1")).status_code == 404
    for wrong in ({"schema": "x"}, {"node": ""}, {"index": "0"}, {"ceilings": {"hbm_read_gbps": -1}}):
        assert (await client.post("/v1/profiles", json=PROFILE | wrong)).status_code == 400


async def test_bench_points_keep_unknown_columns_replace_by_id_and_are_bounded(client: httpx.AsyncClient) -> None:
    text = "id,metric,value,colour\na,tpot_ms,5,red\nb,ttft_ms,7,\n"
    assert (await client.post("/v1/bench-points", content=text)).json() == {"added": 2, "held": 2}
    more = "id,metric,value,notes\nb,ttft_ms,8,again\nc,tpot_ms,1,\nd,tpot_ms,2,\n"
    assert (await client.post("/v1/bench-points", content=more)).json() == {"added": 3, "held": 3}
    assert (await client.get("/v1/bench-points")).text.splitlines() == [
        "id,metric,value,notes",
        "b,ttft_ms,8,again",
        "c,tpot_ms,1,",
        "d,tpot_ms,2,",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the header lacks id, metric, value"),
        ("id,metric,value\n", "a header and no row"),
        ("id,metric,value\na,tpot_ms\n", "line 2 has another number of columns"),
        ("id,metric,value\na,tpot_ms,5,6\n", "line 2 has another number of columns"),
        ("id,metric,value\na,tpot_ms,nan\n", "line 2: value is 'nan'"),
        ("id,metric,value\n,tpot_ms,5\n", "line 2 has no id"),
        (b"id,metric,value\n\xff", "not UTF-8"),
        ("id,metric,value\na,tpot_ms," + "9" * 9000, "line 2 is over 8 KiB"),
        ("id,metric,value\na,tpot_ms,1e400\n", "line 2: value is '1e400'"),
        ("id,metric,value\na,tpot_ms,-1\n", "line 2: value is '-1'"),
        ('id,metric,value\n"a,tpot_ms,5\n', "line 2 has another number of columns"),
        ('id,metric,value\n"' + "a" * 200_000 + '",tpot_ms,5\n', "not CSV: field larger than field limit"),
        ("id,metric,value\na\rb,tpot_ms,5\n", "not CSV: new-line"),
        ("id,metric,value,id\na,tpot_ms,5,b\n", "names 'id' twice"),
        (
            "id,metric,value," + ",".join(map(str, range(254))) + "\na,tpot_ms,5" + "," * 254,
            "over 256 columns or 8 KiB",
        ),
        ("id,metric,value," + "x" * 9000 + "\na,tpot_ms,5,\n", "over 256 columns or 8 KiB"),
    ],
)
async def test_wrong_bench_points_are_refused_by_line(client: httpx.AsyncClient, text: str | bytes, words: str) -> None:
    answer = await client.post("/v1/bench-points", content=text)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert (await client.get("/v1/bench-points")).text == "id,metric,value\n"


async def test_megabytes_of_points_are_not_worked_through_on_the_loop(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop: list[str] = []

    def watched(name: str) -> None:
        real = getattr(library, name)

        def seen(*arguments: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                on_loop.append(name)
            return real(*arguments)

        monkeypatch.setattr(library, name, seen)

    for name in ("read_points", "_changed", "_table", "_newest"):
        watched(name)
    assert (await client.post("/v1/bench-points", content="id,metric,value\na,x,1\n")).status_code == 201
    assert (await client.get("/v1/bench-points")).text == "id,metric,value\na,x,1\n"
    assert on_loop == []


async def test_columns_of_many_files_do_not_add_up_without_end(client: httpx.AsyncClient) -> None:
    """Each point kept would have a cell for every column of every other."""
    for number in range(2):
        names = [f"{number}-{n}" for n in range(125)]
        text = f"id,metric,value,{','.join(names)}\n{number},tpot_ms,5{',' * 125}\n"
        assert (await client.post("/v1/bench-points", content=text)).status_code == 201
    more = "id,metric,value,a,b,c,d,e,f\nz,tpot_ms,5,,,,,,\n"
    refused = await client.post("/v1/bench-points", content=more)
    assert refused.status_code == 400
    assert "more than 256 columns" in refused.json()["error"]["message"]
    assert len((await client.get("/v1/bench-points")).text.splitlines()) == 3
    assert (await client.post("/v1/bench-points", content="id,metric,value\nz,tpot_ms,5\n")).status_code == 201


async def test_a_method_that_a_path_does_not_take_is_405_with_all_it_takes(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/plan/abc", json={})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, GET"
