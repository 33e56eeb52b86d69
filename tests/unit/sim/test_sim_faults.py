"""Faults on demand."""

import asyncio

import httpx
import pytest

from .conftest import Sim, Start, until

STREAM = {"prompt": "a", "max_tokens": 20, "ignore_eos": True, "stream": True}


async def test_errors_are_answered_until_the_fault_is_cleared(sim: Sim) -> None:
    await sim.post("/admin/fault", kind="error", status=429)
    answer = await sim.http.post("/v1/completions", json={"prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, 429)
    assert (await sim.http.get("/health")).status_code == 200
    await sim.http.delete("/admin/fault")
    assert (await sim.http.post("/v1/completions", json={"prompt": "a"})).status_code == 200


async def test_a_fault_ends_after_its_time(sim: Sim) -> None:
    await sim.post("/admin/fault", kind="error", for_s=0.05)
    assert (await sim.http.post("/v1/completions", json={"prompt": "a"})).status_code == 503

    async def mended() -> bool:
        return (await sim.http.post("/v1/completions", json={"prompt": "a"})).status_code == 200

    await until(mended)
    assert (await sim.http.get("/admin/fault")).json() == {"faults": []}


async def test_a_cut_stream_breaks_off_after_so_many_tokens(sim: Sim) -> None:
    await sim.post("/admin/fault", kind="cut", after_tokens=3)
    seen = []
    with pytest.raises(httpx.RemoteProtocolError):
        async with sim.http.stream("POST", "/v1/completions", json=STREAM) as answer:
            async for line in answer.aiter_lines():
                seen.append(line)
    assert len([line for line in seen if line.startswith("data: {")]) <= 3
    await until(lambda: not sim.app.service.loop.busy)


async def test_a_cut_whole_answer_never_comes(sim: Sim) -> None:
    await sim.post("/admin/fault", kind="cut", after_tokens=0)
    with pytest.raises(httpx.RemoteProtocolError):
        await sim.http.post("/v1/completions", json={"prompt": "a"})


async def test_a_hung_engine_answers_nothing_but_its_admin(sim: Sim) -> None:
    await sim.post("/admin/fault", kind="hang")
    health = asyncio.create_task(sim.http.get("/health"))
    work = asyncio.create_task(sim.http.post("/v1/completions", json={"prompt": "a"}))
    await asyncio.sleep(0.05)
    assert not health.done()
    assert not work.done()
    await sim.http.delete("/admin/fault", params={"kind": "hang"})
    assert (await health).status_code == 200
    assert (await work).status_code == 200


async def test_a_stream_in_progress_stands_still_in_a_hang(start: Start) -> None:
    sim = await start(time_scale=5.0)
    async with sim.http.stream("POST", "/v1/completions", json={**STREAM, "max_tokens": 400}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await sim.post("/admin/fault", kind="hang")
        await asyncio.sleep(0.02)
        before = sim.app.service.loop.stats.counters.generation_tokens
        await asyncio.sleep(0.05)
        assert sim.app.service.loop.stats.counters.generation_tokens == before
        await sim.http.delete("/admin/fault")
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_a_slow_engine_takes_longer_steps(sim: Sim) -> None:
    await sim.complete("a", max_tokens=50)
    usual = await sim.metric("vllm:request_decode_time_seconds_sum")
    await sim.post("/admin/fault", kind="slow", factor=3)
    await sim.complete("b", max_tokens=50)
    slowed = await sim.metric("vllm:request_decode_time_seconds_sum") - usual
    assert slowed == pytest.approx(3 * usual, rel=1e-3)


async def test_metrics_can_fail_while_inference_works(sim: Sim) -> None:
    await sim.post("/admin/fault", kind="metrics_error", status=500)
    assert (await sim.http.get("/metrics")).status_code == 500
    await sim.complete("a")


async def test_stale_metrics_repeat_themselves(sim: Sim) -> None:
    await sim.complete("a", max_tokens=5)
    await sim.post("/admin/fault", kind="metrics_stale")
    await sim.complete("b", max_tokens=5)
    assert await sim.metric("vllm:generation_tokens_total") == 5
    await sim.http.delete("/admin/fault")
    assert await sim.metric("vllm:generation_tokens_total") == 10


async def test_a_crash_ends_the_process(sim: Sim) -> None:
    await sim.post("/admin/fault", kind="crash")
    assert sim.crashes


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "flood"},
        {"kind": "slow", "factor": 0},
        {"kind": "slow", "extra": 1},
        {"kind": "error", "status": 1},
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused_by_name(sim: Sim, body: dict[str, object]) -> None:
    answer = await sim.http.post("/admin/fault", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("body")
    assert (await sim.http.get("/admin/fault")).json() == {"faults": []}


async def test_a_fault_that_is_not_json_is_refused(sim: Sim) -> None:
    answer = await sim.http.post("/admin/fault", content=b"{")
    assert answer.status_code == 400
    assert "not JSON" in answer.json()["detail"]


async def test_faults_in_force_are_listed(sim: Sim) -> None:
    await sim.post("/admin/fault", kind="slow", factor=2)
    await sim.post("/admin/fault", kind="error", for_s=60)
    listed = (await sim.http.get("/admin/fault")).json()["faults"]
    assert [(fault["kind"], fault["left_s"] is None) for fault in listed] == [("slow", True), ("error", False)]
