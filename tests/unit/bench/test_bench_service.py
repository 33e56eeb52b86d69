"""The bench service: jobs through the API with the runs made up; restarts, repeats, broken databases."""

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tonnage_bench.app import Ports, build_app
from tonnage_bench.errors import QueueError
from tonnage_bench.ledger import Ledger
from tonnage_bench.ports import Ref, StepQueue
from tonnage_bench.settings import BenchSettings
from tonnage_core.errors import BadInputError
from tonnage_loadgen.bench_step import check_steps, with_files
from tonnage_runtime.clock import SystemClock

SWEEP = {"url": "http://127.0.0.1:9", "sweep": [1, 2, 3]}
POINTS = {"sweep_users": [1, 2], "gpu": "L40S", "catalogue_model": "meta-llama/Llama-3.1-8B"}


def made_up(question: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape: met below 7 requests/s."""
    ask = question["ask"]
    document = {
        "requests": {"sent": 10, "ok": 10, "errors": 0},
        "client": {"bound": False},
        "goodput_rps": ask["rate"],
        "slo_attainment": 1.0,
        "concurrency": {"mean": 1.0},
        "percentiles": {},
        "steady": {"steady": True},
        "more_requests_needed": 0,
        "notes": [],
        "seed": ask["seed"],
    }
    points = f"id,metric,value\n{question['request']['job']}.c{ask['users']},tpot_ms,9\n" if ask["users"] else None
    return {"met": (ask["rate"] or 0) < 7, "document": document, "points": points}


@dataclass
class FakeRunner:
    """Counts the runs it began; `gate` closed, they do not end."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[dict[str, Any]] = field(default_factory=list)
    checked: list[dict[str, Any]] = field(default_factory=list)
    ended: int = 0
    result: Callable[[dict[str, Any]], dict[str, Any]] = made_up

    async def run(self, question: dict[str, Any]) -> dict[str, Any]:
        self.begun.append(question)
        await self.gate.wait()
        self.ended += 1
        return self.result(question)

    async def refused(self, question: dict[str, Any]) -> str | None:
        self.checked.append(question)
        with tempfile.TemporaryDirectory() as folder:
            try:
                check_steps(with_files(question["request"], Path(folder)), question["asks"], question["longest_s"])
            except BadInputError as error:
                return str(error)
        return None


@contextlib.asynccontextmanager
async def service(
    path: Path, runner: FakeRunner, queue: StepQueue | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """The service over `path`, its loop running."""
    options: dict[str, Any] = {"database": path, "tick_s": 0.02, "lease_s": 2.0, "resend_s": 0.1} | settings
    app = build_app(BenchSettings(**options), Ports(SystemClock(), CollectorRegistry(), runner, queue))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://b") as client:
        yield client


async def until(client: httpx.AsyncClient, job: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The job's document once `wanted`."""
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/bench/{job}")).json()
            if wanted(found):
                return found
            await asyncio.sleep(0.01)


async def not_ready(client: httpx.AsyncClient) -> None:
    """Return once the service says that it cannot take work."""
    async with asyncio.timeout(60):
        while True:
            if (await client.get("/readyz")).status_code == 503:
                return
            await asyncio.sleep(0.02)


def ended(job: dict[str, Any]) -> bool:
    return job["state"] in ("done", "failed", "cancelled")


async def submitted(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await client.post("/v1/bench", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def open_runner() -> FakeRunner:
    runner = FakeRunner()
    runner.gate.set()
    return runner


async def test_a_job_runs_its_series_and_reports_as_the_command_does(tmp_path: Path) -> None:
    runner = open_runner()
    async with service(tmp_path / "b.sqlite", runner) as client:
        body = SWEEP | POINTS | {"rate": 4, "capacity": True, "tolerance": 0.1, "sweep": [1]}
        job = await submitted(client, body)
        found = await until(client, job, ended)
        assert (found["state"], found["error"], found["points"]) == ("done", None, "kept")
        assert [run["kind"] for run in found["runs"]][-3:] == ["rate", "users", "users"]
        report = (await client.get(f"/v1/bench/{job}/report")).json()
        assert 7 / 1.1 <= report["capacity"]["capacity"] < 7
        assert report["complete"] is True
        assert [row["users"] for row in report["runs"]] == [1, 2]
        points = (await client.get(f"/v1/bench/{job}/points")).text
        assert [line.split(",")[0] for line in points.splitlines()] == ["id", f"{job}.c1", f"{job}.c2"]
        assert (await client.get(f"/v1/bench/{job}/runs/0")).json()["document"]["requests"]["ok"] == 10
        assert 'tonnage_bench_jobs{state="done"} 1.0' in (await client.get("/metrics")).text
    assert len(runner.begun) == len(found["runs"]) == runner.ended


async def test_a_cancelled_job_ends_its_load_and_keeps_what_was_done(tmp_path: Path) -> None:
    runner = FakeRunner()
    async with service(tmp_path / "b.sqlite", runner, lease_s=0.2) as client:
        job = await submitted(client, SWEEP)
        await until(client, job, lambda found: bool(found["runs"]) and found["runs"][0]["state"] == "claimed")
        await client.delete(f"/v1/bench/{job}")
        found = await until(client, job, ended)
        assert (found["state"], found["runs"][0]["state"]) == ("cancelled", "cancelled")
        # The worker is free again: the next job is made, the old run's result nowhere.
        runner.gate.set()
        following = await submitted(client, SWEEP)
        assert (await until(client, following, ended))["runs_done"] == 3
        assert (await client.get(f"/v1/bench/{job}/report")).status_code == 409


async def test_a_job_goes_on_after_a_restart_and_no_run_that_was_done_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    first = FakeRunner()
    async with service(path, first) as client:
        job = await submitted(client, SWEEP)
        first.gate.set()
        await until(client, job, lambda found: found["runs_done"] >= 1)
        first.gate.clear()
        await until(client, job, lambda found: any(run["state"] == "claimed" for run in found["runs"]))
    done = first.ended
    second = open_runner()
    async with service(path, second, lease_s=0.2) as client:
        found = await until(client, job, ended)
        assert (found["state"], found["runs_done"]) == ("done", 3)
    assert done + second.ended == 3
    asked = [q["ask"]["number"] for q in second.begun]
    assert asked == list(range(done, 3))


class ManyTimes:
    """A queue that delivers every run three times over, through the HTTP desk."""

    def __init__(self) -> None:
        self.delivered: asyncio.Queue[Ref] = asyncio.Queue()
        self.down = False

    async def put(self, ref: Ref) -> None:
        if self.down:
            raise QueueError("the queue takes no runs: it is down")
        for _ in range(3):
            self.delivered.put_nowait(ref)

    async def close(self) -> None:
        return None


def word(ref: Ref, worker: str, **more: Any) -> dict[str, Any]:
    return {"ref": {"job": ref.job, "number": ref.number, "attempt": ref.attempt}, "worker": worker, **more}


async def test_what_arrives_three_times_is_made_and_counted_once(tmp_path: Path) -> None:
    queue, claims = ManyTimes(), 0
    bearer = {"authorization": "Bearer w"}
    async with service(tmp_path / "b.sqlite", open_runner(), queue, worker_token="w") as client:
        job = await submitted(client, SWEEP)
        assert (await client.post("/v1/worker/claim", json=word(Ref(job, 0, 1), "x"))).status_code == 401
        while not ended((await client.get(f"/v1/bench/{job}")).json()):
            async with asyncio.timeout(30):
                ref = await queue.delivered.get()
            answer = await client.post("/v1/worker/claim", json=word(ref, f"w{claims}"), headers=bearer)
            work = answer.json()["work"]
            if work is not None:
                claims += 1
                result = made_up(work["question"])
                for _ in range(2):
                    body = word(ref, f"w{claims - 1}", result=result)
                    kept = await client.post("/v1/worker/finish", json=body, headers=bearer)
                    assert kept.json() == {"kept": True}
                stranger = word(ref, "stranger", result=result)
                assert (await client.post("/v1/worker/finish", json=stranger, headers=bearer)).json() == {"kept": False}
            await asyncio.sleep(0.03)
        found = (await client.get(f"/v1/bench/{job}")).json()
    assert (claims, found["state"], found["runs_done"]) == (3, "done", 3)


async def test_a_queue_that_is_down_holds_a_job_up_and_says_so(tmp_path: Path) -> None:
    queue = ManyTimes()
    queue.down = True
    async with service(tmp_path / "b.sqlite", open_runner(), queue, worker_token="w") as client:
        job = await submitted(client, SWEEP)
        found = await until(client, job, lambda found: found["error"] is not None)
        assert (found["state"], found["error"]) == ("running", "the queue takes no runs: it is down")
        assert "tonnage_bench_queue_up 0.0" in (await client.get("/metrics")).text
        queue.down = False
        await until(client, job, lambda found: found["error"] is None)
        assert queue.delivered.qsize() >= 3


async def test_a_run_that_loses_its_workers_fails_its_job_and_no_other(tmp_path: Path) -> None:
    queue = ManyTimes()
    bearer = {"authorization": "Bearer w"}
    async with service(
        tmp_path / "b.sqlite", open_runner(), queue, worker_token="w", lease_s=0.2, attempts=2
    ) as client:
        job = await submitted(client, SWEEP)
        for attempt in (1, 2):
            while (ref := await queue.delivered.get()).attempt != attempt:
                pass
            answer = await client.post("/v1/worker/claim", json=word(ref, "dies"), headers=bearer)
            assert answer.json()["work"] is not None
        found = await until(client, job, ended)
        assert found["state"] == "failed"
        assert "lost its worker 2 times; the last was dies" in found["error"]
        late = word(ref, "dies", result=made_up({"ask": {"rate": 1, "users": None, "seed": 0}, "request": {}}))
        assert (await client.post("/v1/worker/finish", json=late, headers=bearer)).json() == {"kept": False}


async def test_a_run_that_fails_by_its_worker_is_tried_again_and_one_that_fails_by_its_input_is_not(
    tmp_path: Path,
) -> None:
    runner = open_runner()
    runner.result = lambda question: {"error": {"kind": "failed", "message": "out of memory"}}
    async with service(tmp_path / "b.sqlite", runner, attempts=2) as client:
        found = await until(client, await submitted(client, SWEEP), ended)
        assert (found["state"], found["error"], len(runner.begun)) == ("failed", "out of memory", 2)
        runner.result = lambda question: {"error": {"kind": "input", "message": "nothing answers there"}}
        found = await until(client, await submitted(client, SWEEP), ended)
        assert (found["state"], found["error"], len(runner.begun)) == ("failed", "nothing answers there", 3)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"url": "http://169.254.169.254/latest"}, 400, "not among the service's targets"),
        ({"url": "file:///etc/passwd"}, 400, "not an http or https URL"),
        ({"url": "http://user:secret@127.0.0.1"}, 400, "not an http or https URL"),
        ({"watch_urls": ["http://10.0.0.1"]}, 400, "not among the service's targets"),
        ({"sweep": [], "rate": None}, 400, "give one load"),
        ({"sweep": [0]}, 400, "above 0"),
        ({"capacity": True}, 400, "capacity needs rate"),
        ({"api_key": "x"}, 400, "Extra inputs"),
        ({"input_tokens": "many"}, 400, "lognormal:P50,P99"),
        ({"tasks_text": "{}"}, 400, "baseline_url"),
        ({"tasks_text": "{}", "baseline_url": "http://127.0.0.1:9"}, 400, "line 1"),
        ({"classes": ["chat=0.8"]}, 400, "NAME=SHARE/INPUT/OUTPUT"),
        ({"tenants": ["a=-1"]}, 400, "--tenant"),
        ({"prefix_tokens": 100, "prefix_depth": 4}, 400, "prefix tree"),
        ({"lengths_text": "no log"}, 400, "lengths_from"),
        ({"sweep": [], "trace_text": "no trace"}, 400, "trace"),
        ({"sweep": [], "users": 9, "requests": 4}, 400, "as many requests"),
        ({"sweep": [1, 1e6], "duration_s": 600}, 400, "too many"),
        ({"sweep": [1e-6]}, 400, "no request"),
        ({"arrivals": "gamma", "cv": 0.001}, 400, "cv"),
        ({"duration_s": 80_000}, 400, "at most 3600 s"),
        ({"turns": 100, "turn_think_s": 1000}, 400, "at most 3600 s"),
        ({"sweep": [], "users": 1, "requests": 100, "think_s": 100}, 400, "at most 3600 s"),
        ({"sweep": [], "users": 1, "requests": 100, "turns": 10, "turn_think_s": 100}, 400, "at most 3600 s"),
        (
            {"sweep_users": [1], "turns": 2, "turn_think_s": 1, "gpu": "L40S", "catalogue_model": "m"},
            400,
            "leave think_s and turn_think_s out",
        ),
    ],
)
async def test_what_is_no_job_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], status: int, says: str
) -> None:
    async with service(tmp_path / "b.sqlite", FakeRunner()) as client:
        answer = await client.post("/v1/bench", json=SWEEP | change)
        assert answer.status_code == status
        assert says in answer.json()["error"]["message"]
        assert (await client.get("/v1/bench")).json() == {"jobs": []}


async def test_no_pattern_opens_the_addresses_that_hand_out_credentials(tmp_path: Path) -> None:
    async with service(tmp_path / "b.sqlite", FakeRunner(), targets=("*",)) as client:
        for url in ("http://169.254.169.254", "http://[fe80::1]", "http://0.0.0.0", "http://2852039166"):
            answer = await client.post("/v1/bench", json=SWEEP | {"url": url})
            assert answer.status_code == 400, url


async def test_a_token_is_wanted_when_there_is_one_and_on_addresses_others_reach(tmp_path: Path) -> None:
    async with service(tmp_path / "b.sqlite", FakeRunner(), token="t") as client:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "t"}):
            assert (await client.get("/v1/bench", headers=headers)).status_code == 401
        assert (await client.get("/v1/bench", headers={"authorization": "Bearer t"})).status_code == 200
        assert (await client.get("/healthz")).status_code == 200
    with pytest.raises(ValueError, match="TONNAGE_BENCH_TOKEN"):
        BenchSettings(host="0.0.0.0")
    with pytest.raises(ValueError, match="TONNAGE_BENCH_WORKER_TOKEN"):
        BenchSettings(queue_url="redis://127.0.0.1")


async def test_too_many_jobs_are_refused_and_two_of_one_target_do_not_run_at_once(tmp_path: Path) -> None:
    runner = FakeRunner()
    async with service(tmp_path / "b.sqlite", runner, jobs_waiting=1, concurrent_jobs=4) as client:
        first = await submitted(client, SWEEP)
        await until(client, first, lambda found: found["state"] == "running")
        answers = await asyncio.gather(*(client.post("/v1/bench", json=SWEEP) for _ in range(6)))
        assert sorted(answer.status_code for answer in answers) == [202] + [429] * 5
        second = next(answer.json()["id"] for answer in answers if answer.status_code == 202)
        assert (await client.get(f"/v1/bench/{second}")).json()["state"] == "queued"
        runner.gate.set()
        await until(client, second, ended)
    asked = [question["request"]["job"] for question in runner.begun]
    assert asked == [first] * 3 + [second] * 3


async def test_a_locked_or_full_database_holds_jobs_up_and_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path, runner = tmp_path / "b.sqlite", FakeRunner()
    async with service(path, runner, lease_s=30) as client:
        job = await submitted(client, SWEEP)
        await until(client, job, lambda found: bool(found["runs"]) and found["runs"][0]["state"] == "claimed")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        runner.gate.set()
        await until(client, job, lambda found: runner.ended == 1)
        await not_ready(client)
        assert "locked" in (await client.get("/readyz")).text
        assert (await client.get(f"/v1/bench/{job}")).json()["runs_done"] == 0
        refused = await client.post("/v1/bench", json=SWEEP)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "unavailable_error")
        other.execute("COMMIT")
        other.close()
        found = await until(client, job, ended)
        assert (found["state"], found["runs_done"]) == ("done", 3)
        assert all(run["attempt"] == 1 for run in found["runs"])
        assert (await client.get("/readyz")).status_code == 200
    assert len(runner.begun) == 3


async def test_a_job_that_cannot_be_read_fails_alone_and_a_runner_that_breaks_is_tried_again(tmp_path: Path) -> None:
    path, runner = tmp_path / "b.sqlite", open_runner()
    broken = Ledger(path)
    broken.submit("old", {"url": "http://127.0.0.1:9", "a field of another version": 1}, "other:1", 0)
    broken.close()
    breaks = iter([True])

    def breaking(question: dict[str, Any]) -> dict[str, Any]:
        if next(breaks, False):
            raise RuntimeError("a bug of the runner")
        return made_up(question)

    runner.result = breaking
    async with service(path, runner, lease_s=0.4) as client:
        job = await submitted(client, SWEEP)
        found = await until(client, job, ended)
        assert (found["state"], found["runs_done"], found["runs"][0]["attempt"]) == ("done", 3, 2)
        old = await until(client, "old", ended)
        assert old["state"] == "failed"
        assert "ValidationError" in old["error"]
        assert [each["id"] for each in (await client.get("/v1/bench")).json()["jobs"]] == ["old", job]


async def test_a_key_goes_to_its_own_host_alone(tmp_path: Path) -> None:
    runner = open_runner()
    keys = {"127.0.0.1:9": "secret", "localhost": "other"}
    async with service(tmp_path / "b.sqlite", runner, target_keys=keys) as client:
        task = '{"prompt": "2 + 2", "answer": "4"}'
        body = SWEEP | {"sweep": [1], "tasks_text": task, "baseline_url": "http://localhost:7"}
        await until(client, await submitted(client, body), ended)
    assert runner.begun[0]["headers"] == [["authorization", "Bearer secret"]]
    assert runner.begun[0]["baseline_headers"] == [["authorization", "Bearer other"]]
    assert "secret" not in (tmp_path / "b.sqlite").read_bytes().decode("latin-1")
