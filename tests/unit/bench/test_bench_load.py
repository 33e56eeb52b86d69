"""Load against servers of known timing: each loop, each API, cancellations, several processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import orjson
import pytest

from tests.unit.loadgen.conftest import Call, chunked, fixed, scripted, usage, whole_stream
from tonnage_core.benchmarking.arrivals import Arrivals
from tonnage_core.benchmarking.capacity import SearchSettings
from tonnage_core.benchmarking.lengths import parse_lengths
from tonnage_core.benchmarking.workload import Mix, RequestClass, Sessions
from tonnage_core.errors import BadInputError
from tonnage_core.slo import Slo
from tonnage_loadgen.answers import ChatStream, WholeAnswer
from tonnage_loadgen.bench_points import Deployment, PointRun, points_csv
from tonnage_loadgen.bench_run import concurrency, document, prompts_sha256
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.journal import Journal
from tonnage_loadgen.paced_mock import Pace, PacedMock
from tonnage_loadgen.processes import run_load
from tonnage_loadgen.shard import Endpoint, split
from tonnage_loadgen.sweep import Step, curve, find_capacity, run_one, sweep

MIX = Mix((RequestClass("all", 1.0, parse_lengths("constant:100"), parse_lengths("constant:3")),))


@asynccontextmanager
async def paced(pace: Pace) -> AsyncIterator[tuple[PacedMock, Endpoint]]:
    mock = PacedMock(pace)
    server = await mock.serve()
    try:
        yield mock, Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "mock")
    finally:
        server.close()


def open_spec(endpoint: Endpoint, rate: float = 50.0, seconds: float = 0.6, **given: object) -> BenchSpec:
    return BenchSpec(endpoint, MIX, Arrivals("poisson", rate), seconds, **given)  # type: ignore[arg-type]


def closed_spec(endpoint: Endpoint, users: int, requests: int, **given: object) -> BenchSpec:
    return BenchSpec(endpoint, MIX, users=users, requests=requests, **given)  # type: ignore[arg-type]


async def test_an_open_loop_sends_its_drawn_schedule() -> None:
    async with paced(Pace(3, 0.01, 0.005)) as (mock, endpoint):
        spec = open_spec(endpoint)
        found = await run_one(spec)
    drawn = len(spec.shard().planned)
    assert len(mock.arrivals) == drawn
    assert found["requests"] | {"warmup": 0, "sent": 0, "ok": 0} == {
        "sent": 0, "ok": 0, "errors": 0, "cancelled": 0, "warmup": 0,
    }  # fmt: skip
    assert found["requests"]["ok"] + found["requests"]["warmup"] == drawn
    assert found["ttft_ms"]["p50"] >= 10
    assert found["schema"] == "tonnage.bench/1"
    assert found["more_requests_needed"] > 300, "30 requests bound no p99"
    assert any("more requests are needed" in note for note in found["notes"])


async def test_a_closed_loop_never_has_more_in_flight_than_users() -> None:
    async with paced(Pace(3, 0.02, 0.01)) as (mock, endpoint):
        found = await run_one(closed_spec(endpoint, 4, 24, warmup_s=0.0))
    assert len(mock.arrivals) == 24
    assert found["requests"]["ok"] == 24
    assert found["concurrency"]["peak"] <= 4


async def test_several_processes_send_one_schedule() -> None:
    async with paced(Pace(2, 0.005, 0.005)) as (mock, endpoint):
        spec = open_spec(endpoint, 40.0, 0.5)
        shard = spec.shard()
        results = await run_load(shard, 2)
    assert len(results) == 2
    indices = sorted(record.index for result in results for record in result.records)
    assert indices == list(range(len(shard.planned)))
    assert len(mock.arrivals) == len(shard.planned)
    found = document(shard, results, spec.judging())
    assert found["client"]["processes"] == 2


async def test_a_process_that_cannot_prepare_says_why() -> None:
    spec = open_spec(Endpoint("http://127.0.0.1:9", "m"), 40.0, 0.5)
    with pytest.raises(TargetError, match="is the server up"):
        await run_load(spec.shard(), 2)


def test_a_load_is_dealt_out_whole() -> None:
    shard = closed_spec(Endpoint("http://127.0.0.1:9", "m"), 5, 23).shard()
    parts = split(shard, 3)
    assert sorted(p.request.index for part in parts for p in part.planned) == list(range(23))
    assert [part.users.count for part in parts if part.users] == [2, 2, 1]
    assert all(part.users and len(part.users.think_s) == len(part.planned) for part in parts)


def test_users_are_dealt_out_with_their_whole_conversations() -> None:
    mix = replace(MIX, sessions=Sessions(4, 2.0))
    shard = BenchSpec(Endpoint("http://127.0.0.1:9", "m"), mix, users=6, requests=17).shard()
    assert {each.session for each in shard.planned} == set(range(6)), "every user has a conversation"
    parts = split(shard, 2)
    assert sorted(p.request.index for part in parts for p in part.planned) == list(range(17))
    assert not {p.session for p in parts[0].planned} & {p.session for p in parts[1].planned}
    assert all(part.users and part.users.count == 3 for part in parts)


def test_turns_that_no_user_comes_to_are_not_drawn() -> None:
    mix = replace(MIX, sessions=Sessions(1_000_000_000, 0.0))
    planned = BenchSpec(Endpoint("http://127.0.0.1:9", "m"), mix, users=5, requests=12).shard().planned
    assert [each.turn for each in planned] == [0] * 5 + [1] * 5 + [2] * 2


async def test_a_turn_waits_for_the_answer_before_it_and_users_stay_busy() -> None:
    mix = replace(MIX, sessions=Sessions(3, 0.0))
    async with paced(Pace(4, 0.01, 0.01)) as (_, endpoint):
        shard = BenchSpec(endpoint, mix, users=4, requests=24).shard()
        results = await run_load(shard)
    records = {record.index: record for result in results for record in result.records}
    assert len(records) == 24
    spans: dict[int | None, list[tuple[float, float]]] = {}
    for each in sorted(shard.planned, key=lambda each: each.turn):
        record = records[each.request.index]
        assert record.last_s is not None
        spans.setdefault(each.session, []).append((record.intended_s, record.last_s))
    assert len(spans) == 8
    assert all(a[1] <= b[0] for turns in spans.values() for a, b in pairwise(turns))
    together = max(sum(start <= at < end for turns in spans.values() for start, end in turns) for at in
                   (start for turns in spans.values() for start, _ in turns))  # fmt: skip
    assert together <= 4


def test_turns_of_a_closed_loop_are_as_far_apart_as_asked() -> None:
    mix = replace(MIX, sessions=Sessions(3, 2.0))
    spec = BenchSpec(Endpoint("http://127.0.0.1:9", "m"), mix, users=100, requests=3000, think_s=0.5)
    shard = spec.shard()
    assert shard.users is not None
    waits: dict[bool, list[float]] = {True: [], False: []}
    for each, think_s in zip(shard.planned, shard.users.think_s, strict=True):
        waits[each.turn == 0].append(think_s)
    assert fmean(waits[True]) == pytest.approx(0.5, rel=0.1)
    assert fmean(waits[False]) == pytest.approx(2.0, rel=0.1)
    assert spec.least_s == pytest.approx((1000 * 0.5 + 2000 * 2.0) / 100)
    same = replace(spec, mix=replace(MIX, sessions=Sessions(3))).shard().users
    assert same is not None
    assert fmean(same.think_s) == pytest.approx(0.5, rel=0.1)


async def test_a_user_waits_between_the_turns_of_a_conversation() -> None:
    mix = replace(MIX, sessions=Sessions(2, 0.2))
    async with paced(Pace(4, 0.001, 0.001)) as (_, endpoint):
        shard = BenchSpec(endpoint, mix, users=2, requests=4).shard()
        results = await run_load(shard)
    assert shard.users is not None
    records = {record.index: record for result in results for record in result.records}
    first, second = ({each.session: each.request.index for each in shard.planned if each.turn == n} for n in (0, 1))
    for session, index in second.items():
        ended, ready = records[first[session]].last_s, records[index].intended_s
        assert ended is not None
        assert ready - ended > shard.users.think_s[index] - 1e-6
    assert len(second) == 2


async def test_clients_that_go_away_are_no_errors_and_no_latencies() -> None:
    async with paced(Pace(100, 0.01, 0.02)) as (_, endpoint):
        mix = replace(MIX, cancel_share=1.0, cancel_after_s=0.05)
        found = await run_one(BenchSpec(endpoint, mix, Arrivals("constant", 40.0), 0.4, warmup_s=0.0))
    assert found["requests"]["cancelled"] == 15
    assert (found["requests"]["errors"], found["requests"]["ok"]) == (0, 0)
    assert found["ttft_ms"]["p50"] is None


def chat_event(delta: dict[str, object], finish: str | None = None) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}) + b"\n\n"


def test_the_first_token_of_a_chat_is_not_its_role() -> None:
    events = chat_event({"role": "assistant", "content": ""}) + chat_event({"content": "a"}) + chat_event({}, "stop")
    for size in (1, 7, 1000):
        stream = ChatStream()
        for place in range(0, len(events), size):
            stream.feed(events[place : place + size], float(place))
        stream.feed(usage(5, 1) + b"data: [DONE]\n\n", 9999.0)
        stream.drop_empty_end()
        assert len(stream.times) == 1, size
        assert stream.done


def test_a_chat_whose_first_event_has_a_token_keeps_it() -> None:
    stream = ChatStream()
    stream.feed(chat_event({"role": "assistant", "content": "hi"}) + b"data: [DONE]\n\n", 1.0)
    assert list(stream.times) == [1.0]


def test_a_whole_answer_is_one_event_at_its_last_byte() -> None:
    body = orjson.dumps({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 7}})
    answer = WholeAnswer()
    answer.feed(body[:9], 1.0)
    answer.feed(body[9:], 2.0)
    answer.end(3.0)
    assert list(answer.times) == [2.0]
    assert answer.usage() == {"prompt_tokens": 7}
    cut = WholeAnswer()
    cut.feed(body[:9], 1.0)
    cut.end(2.0)
    assert not cut.done


async def test_an_endless_whole_answer_is_dropped_and_its_connection_too() -> None:
    gone = asyncio.Event()

    async def answer(call: Call) -> bytes | None:
        call.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                call.writer.write(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
                await call.writer.drain()
        except ConnectionError:
            gone.set()
        return None

    async with scripted(answer) as server:
        end = Endpoint(server.url, "m", "embeddings", timeout_s=600.0)
        found = await run_one(BenchSpec(end, MIX, users=1, requests=1, warmup_s=0.0))
        async with asyncio.timeout(60):
            await gone.wait()
    assert found["errors_by_kind"] == {"stream_error": 1}
    assert "the answer is longer than 16777216 bytes" in found["error_samples"][0]


async def test_chat_and_embeddings_are_asked_as_their_apis_want_with_tenant_and_adapter() -> None:
    bodies: list[tuple[bytes, dict[str, object]]] = []

    async def answer(call: Call) -> bytes:
        bodies.append((call.head, call.json()))
        return chunked(chat_event({"role": "assistant", "content": ""}) + whole_stream(2))

    async with scripted(answer) as server:
        end = Endpoint(server.url, "m", "chat", tenant_keys=(("a", "secret"),))
        mix = replace(MIX, tenants={"a": 1.0}, adapters={"lora-1": 1.0})
        found = await run_one(BenchSpec(end, mix, Arrivals("constant", 20.0), 0.2, warmup_s=0.0))
    head, body = bodies[0]
    assert b"authorization: Bearer secret" in head
    assert head.startswith(b"POST /v1/chat/completions ")
    assert body["model"] == "lora-1"
    assert body["messages"][0]["role"] == "user"  # type: ignore[index]
    assert found["requests"]["ok"] == 3
    assert set(found["by_class"]) == {"all", "tenant:a", "adapter:lora-1"}


async def test_embeddings_are_whole_answers() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = orjson.loads(await reader.readexactly(length))
            found = {"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 100}} if "input" in body else {}
            writer.write(fixed(orjson.dumps(found)))

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            ended.set()

    server = await asyncio.start_server(quiet, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        spec = BenchSpec(Endpoint(url, "m", "embeddings"), MIX, Arrivals("constant", 20.0), 0.2, warmup_s=0.0)
        found = await run_one(spec)
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        server.close()
    assert found["requests"]["ok"] == 3
    assert found["e2e_ms"]["p50"] > 0
    assert found["tpot_ms"]["p50"] is None


def fake(capacity: float) -> object:
    async def run(spec: BenchSpec) -> dict[str, object]:
        assert spec.arrivals is not None
        rate = spec.arrivals.rate
        value = {"percentile": 99.0, "value_ms": 10.0 if rate <= capacity else 5000.0}
        return {
            "client": {"bound": False},
            "requests": {"sent": 10, "errors": 0},
            "slo": Slo().document(),
            "slo_attainment": 1.0,
            "goodput_rps": rate,
            "percentiles": {"ttft": value, "tpot": None, "e2e": value},
            "steady": {"steady": True, "change_share": 0.0},
            "concurrency": {"mean": 1.0, "peak": 2},
            "more_requests_needed": 0,
            "notes": [],
        }

    return run


async def test_the_capacity_is_found_by_runs_and_a_search_goes_on_where_it_stopped() -> None:
    spec, search = open_spec(Endpoint("http://h", "m")), SearchSettings(5.0, most_runs=11)
    found, steps = await find_capacity(spec, search, fake(17.0))  # type: ignore[arg-type]
    assert found.capacity == pytest.approx(17.0, rel=0.05)
    seen: list[Step] = []
    again, more = await find_capacity(spec, search, fake(17.0), seen.append, steps[:3])  # type: ignore[arg-type]
    assert (again, len(more)) == (found, len(steps))
    assert len(seen) == len(steps) - 3
    points = curve(await sweep(spec, [4.0, 2.0, 40.0], fake(17.0)))  # type: ignore[arg-type]
    assert [(point["rate_rps"], point["met"]) for point in points] == [(2.0, True), (4.0, True), (40.0, False)]


def test_runs_of_one_seed_ask_the_same_and_of_another_something_else() -> None:
    spec = open_spec(Endpoint("http://h", "m"), seed=3)
    assert prompts_sha256(spec.shard().planned) == prompts_sha256(spec.shard().planned)
    other = spec.at_rate(60.0, 4)
    assert prompts_sha256(spec.shard().planned) != prompts_sha256(other.shard().planned)


def test_a_load_has_exactly_one_shape() -> None:
    for given in ({}, {"arrivals": Arrivals(), "users": 2}, {"users": 3, "requests": 2}):
        with pytest.raises(BadInputError):
            BenchSpec(Endpoint("http://h", "m"), MIX, **given)


async def test_closed_runs_become_bench_points() -> None:
    async with paced(Pace(3, 0.01, 0.005)) as (_, endpoint):
        spec = closed_spec(endpoint, 2, 12, warmup_s=0.0)
        found = await run_one(spec) | {"concurrency": {"mean": 1.9, "peak": 2}}
    text = points_csv([PointRun("r.c2", found, 100, 3, 2)], Deployment(model="m", gpu="L40S", engine="vllm"))
    rows = [line.split(",") for line in text.splitlines()]
    assert [row[0] for row in rows] == ["id", "r.c2.ttft_ms", "r.c2.tpot_ms", "r.c2.output_tok_s"]
    assert {len(row) for row in rows} == {29}
    emptier = found | {"concurrency": {"mean": 1.7, "peak": 2}}
    assert "output_tok_s" not in points_csv([PointRun("r.c2", emptier, 100, 3, 2)], Deployment())
    void = found | {"client": {"bound": True}}
    assert points_csv([PointRun("r.c2", void, 100, 3, 2)], Deployment()).count("\n") == 1


def test_the_true_peak_of_concurrency_comes_from_the_instants() -> None:
    assert concurrency([]) == {"mean": None, "peak": None}


async def test_a_killed_search_goes_on_from_its_journal_and_makes_no_run_twice(tmp_path: Path) -> None:
    spec, search = open_spec(Endpoint("http://h", "m")), SearchSettings(5.0, most_runs=11)
    whole, expected = await find_capacity(spec, search, fake(17.0))  # type: ignore[arg-type]
    file = tmp_path / "journal.jsonl"
    journal = Journal(file, {"seed": 1})
    await sweep(spec, [step.rate for step in expected[:3]], fake(17.0), journal.add)  # type: ignore[arg-type]
    file.write_bytes(file.read_bytes() + b'{"rate": 17.0, "me')  # killed in the middle of a line
    after = Journal(file, {"seed": 1})
    assert [step.rate for step in after.steps] == [step.rate for step in expected[:3]]
    found, steps = await find_capacity(spec, search, fake(17.0), after.add, tuple(after.steps))  # type: ignore[arg-type]
    assert found == whole
    assert [step.rate for step in Journal(file, {"seed": 1}).steps] == [step.rate for step in steps]
    with pytest.raises(BadInputError, match="another series"):
        Journal(file, {"seed": 2})
    file.write_bytes(file.read_bytes() + b"{}\n")
    with pytest.raises(BadInputError, match="no run of a series"):
        Journal(file, {"seed": 1})
