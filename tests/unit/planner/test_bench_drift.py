"""Bench points against predictions: the drift of each as it comes, and answers calibrated by those kept."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tonnage_core.hardware import find_gpu
from tonnage_core.planning.calibrated import calibration_lines
from tonnage_core.prediction import PredictRequest, predict
from tonnage_core.prediction.drift import drifts
from tonnage_core.prediction.truth import Point
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports, build_app
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.catalogue import load_model
from tonnage_runtime.clock import SystemClock

MODEL = "meta-llama/Llama-3.1-8B"
HEAD = "id,model,engine,engine_version,gpu,isl,osl,concurrency,metric,value\n"


class Unused:
    """No endpoint is listed, so nothing is scraped."""

    async def text(self, url: str) -> str:
        raise AssertionError(url)

    async def addresses(self, url: str) -> Sequence[str]:
        raise AssertionError(url)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    ports = Ports(StaticEndpoints(()), Unused(), SystemClock(), CollectorRegistry())
    app = build_app(PlannerSettings(), ports)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as http:
        yield http


def measured(users: int, slower: float, name: str) -> Point:
    """What an engine `slower` times as slow as the model says would be measured as."""
    request = PredictRequest(
        shape=load_model(MODEL), gpu=find_gpu("L40S"), isl=512, osl=128, concurrency=users, engine="vllm"
    )
    said = predict(request)
    return Point(request, said.tpot_ms.value * slower, said.ttft_ms.value * slower, ids=(name,))


def test_a_slow_engine_drifts_from_the_model_and_no_more_once_it_is_known() -> None:
    held = [measured(users, 1.5, str(users)) for users in (1, 32)]
    fresh = [measured(8, 1.5, "8")]
    unknown = {d.metric: d for d in drifts(fresh, [])}
    known = {d.metric: d for d in drifts(fresh, held)}
    assert unknown["tpot_ms"].ratio == pytest.approx(1 / 1.5, rel=1e-6)
    assert not unknown["tpot_ms"].calibrated
    assert known["tpot_ms"].ratio == pytest.approx(1, abs=0.08)
    assert known["tpot_ms"].calibrated


def test_a_repeat_that_differs_from_what_was_measured_before_is_a_drift() -> None:
    before, now = measured(8, 1.0, "8"), measured(8, 1.3, "again")
    ratios = {d.metric: d.ratio for d in drifts([now], [before])}
    assert ratios["tpot_ms"] == pytest.approx(1 / 1.3, rel=1e-6)


def test_points_of_another_card_do_not_speak() -> None:
    other = measured(8, 2.0, "8")
    other = replace(other, request=replace(other.request, gpu=find_gpu("L4")))
    assert not any(d.calibrated for d in drifts([measured(8, 1.0, "a")], [other]))


async def test_points_that_come_are_compared_and_calibrate_the_answer(client: httpx.AsyncClient) -> None:
    question = {"model": MODEL, "gpu": "L40S", "engine": "vllm:0.32.0", "isl": 512, "osl": 128, "concurrency": 8}
    plain = (await client.post("/v1/predict/measured", json=question)).json()
    assert plain == (await client.post("/v1/predict", json=question)).json()
    slow = 2 * plain["tpot_ms"]["value"]
    rows = [f"j.c{n}.tpot_ms,{MODEL},vllm,0.32.0,L40S,512,128,{n},tpot_ms,{slow * (1 + n / 100):g}\n" for n in (1, 8)]
    rows.append(f"x.c1.tpot_ms,nobody/knows,vllm,0.32.0,L40S,512,128,1,tpot_ms,{slow:g}\n")
    assert (await client.post("/v1/bench-points", content=HEAD + "".join(rows))).status_code == 201
    metrics = (await client.get("/metrics")).text
    assert 'tonnage_planner_bench_points_total{outcome="compared"} 2.0' in metrics
    assert 'tonnage_planner_bench_points_total{outcome="unknown"} 1.0' in metrics
    assert 'tonnage_planner_bench_drift_ratio_bucket{le="0.67",metric="tpot_ms"} 2.0' in metrics
    found = (await client.post("/v1/predict/measured", json=question)).json()
    assert found["class"] == "calibrated"
    assert found["tpot_ms"]["value"] == pytest.approx(slow * 1.08, rel=0.1)
    own = question | {"points": [{"isl": 512, "osl": 128, "concurrency": 8, "tpot_ms": 9}]}
    assert (await client.post("/v1/predict/measured", json=own)).status_code == 400
    assert (await client.post("/v1/bench-points", content=HEAD + "".join(rows[:1]))).status_code == 201
    again = (await client.get("/metrics")).text
    assert 'tonnage_planner_bench_drift_ratio_bucket{le="1.04",metric="tpot_ms"} 3.0' in again


PLAN = {
    "model": MODEL,
    "engine": "vllm:0.32.0",
    "traffic": {"rate_rps": 2, "input_tokens": 512, "output_tokens": 64},
    "slo": {"ttft_ms": {"p99": 4000}, "tpot_ms": {"p99": 200}},
    "offers": [{"gpu": "L40S", "usd_per_hour": 0.9, "max": 4}],
    "search": {"precision": ["auto"], "kv_dtype": ["auto"], "tp": [1], "max_num_batched_tokens": [8192]},
}


async def test_a_plan_uses_the_points_kept_for_its_model_and_card_and_says_so(client: httpx.AsyncClient) -> None:
    async def planned() -> dict[str, Any]:
        found: dict[str, Any] = (await client.post("/v1/plan", json=PLAN, params={"wait_s": 60})).json()["plan"]
        return found

    plain = await planned()
    slow = 1.5 * measured(8, 1.0, "8").tpot_ms  # type: ignore[operator]
    rows = [f"j.c8.tpot_ms,{MODEL},vllm,0.32.0,l40s,512,128,8,tpot_ms,{slow:g}\n"]
    rows += [f"k.c8.tpot_ms,{MODEL},sglang,,L40S,512,128,8,tpot_ms,{9 * slow:g}\n"]
    rows += [f"l.c8.tpot_ms,{MODEL},vllm,0.32.0,H100,512,128,8,tpot_ms,{slow:g}\n"]
    rows += [f"m.c8.tpot_ms,{MODEL},vllm,0.32.0,L40S,,128,8,tpot_ms,{slow:g}\n"]
    assert (await client.post("/v1/bench-points", content=HEAD + "".join(rows))).status_code == 201
    told = await planned()
    assert plain["calibration"] == []
    layout = {"gpu": "L40S", "tp": 1, "pp": 1, "ep": 1, "dp": 1}
    assert told["calibration"] == [layout | {"points": 1, "ids": ["j.c8.tpot_ms"], "unfit": None}]
    assert (plain["best"]["step_times"]["class"], told["best"]["step_times"]["class"]) == ("extrapolated", "calibrated")
    assert told["candidates"][0]["tpot_ms"] / plain["candidates"][0]["tpot_ms"] == pytest.approx(1.5, rel=0.15)


@pytest.mark.parametrize(
    ("precision", "version", "value", "says"),
    [
        ("bogus", "0.32.0", "25", "not calibrated: row z.tpot_ms: unknown dtype 'bogus'"),
        ("", "newest", "25", "not calibrated: row z.tpot_ms: engine version 'newest' is not"),
        ("", "0.32.0", "2500", "not calibrated: the points do not fit: tpot_ms is 2500 at 2 requests in flight"),
        ("", "0.32.0", "0", None),
    ],
)
async def test_a_kept_row_that_no_engine_has_spoils_no_answer(
    client: httpx.AsyncClient, precision: str, version: str, value: str, says: str | None
) -> None:
    question = {"model": MODEL, "gpu": "L40S", "engine": "vllm:0.32.0", "isl": 512, "osl": 128, "concurrency": 8}
    row = f"{MODEL},vllm,{{}},L40S,512,128,{{}},{{}},{{}},{{}}\n"
    lines = [
        "a.tpot_ms," + row.format("0.32.0", 1, "tpot_ms", 25, ""),
        "b.tpot_ms," + row.format("0.32.0", 32, "tpot_ms", 32, ""),
        "z.tpot_ms," + row.format(version, 2, "tpot_ms", value, precision),
        "z.ttft_ms," + row.format(version, 2, "ttft_ms", 120, precision),
    ]
    text = HEAD.replace("\n", ",precision\n") + "".join(lines)
    for _ in range(2):  # the second time they are compared with themselves
        assert (await client.post("/v1/bench-points", content=text)).status_code == 201
    answer = await client.post("/v1/predict/measured", json=question)
    assert answer.status_code == 200, answer.text
    planned = (await client.post("/v1/plan", json=PLAN, params={"wait_s": 60})).json()
    assert planned["state"] == "done", planned["error"]
    if says is None:
        assert answer.json()["class"] == "calibrated"
        assert planned["plan"]["calibration"][0]["points"] == 2
    else:
        assert says in answer.json()["notes"][-1]
        assert planned["plan"]["calibration"][0]["unfit"] in answer.json()["notes"][-1]


async def test_points_that_cannot_be_true_spoil_no_answer_and_are_named(client: httpx.AsyncClient) -> None:
    question = {"model": MODEL, "gpu": "L40S", "engine": "vllm:0.32.0", "isl": 512, "osl": 128, "concurrency": 8}
    plain = (await client.post("/v1/predict", json=question)).json()
    row = MODEL + ",vllm,0.32.0,L40S,512,128,{},tpot_ms,{}\n"
    lines = [
        "a.tpot_ms," + row.format(1, "1e-320"),
        "b.tpot_ms," + row.format(4, "9e17"),
        "c," + row.format("1e9", "5"),
    ]
    lines += ["d," + row.format("nan", "5"), "e," + row.format(-3, "5"), "f," + row.format(2, "0")]
    assert (await client.post("/v1/bench-points", content=HEAD + "".join(lines))).status_code == 201
    found = (await client.post("/v1/predict/measured", json=question)).json()
    assert "not calibrated: the points do not fit" in found["notes"][-1]
    assert found | {"notes": plain["notes"]} == plain
    planned = (await client.post("/v1/plan", json=PLAN, params={"wait_s": 60})).json()["plan"]
    assert planned["best"]["step_times"]["class"] == "extrapolated"
    said = planned["calibration"][0]
    assert (said["points"], said["ids"]) == (0, [])
    assert said["unfit"] in calibration_lines(planned)[1]
    again = HEAD + "a.tpot_ms," + row.format(1, "9")
    assert (await client.post("/v1/bench-points", content=again)).status_code == 201
    sums = [line for line in (await client.get("/metrics")).text.splitlines() if "bench_drift_ratio_sum" in line]
    assert sums and not any("nan" in line.lower() or "inf" in line.lower() for line in sums)
