"""A job followed as server-sent events: each change, the end, what cannot be followed, a database that is away."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.bench.test_bench_service import SWEEP, FakeRunner, service, submitted, until
from tonnage_bench.errors import LedgerError, UnknownJobError
from tonnage_bench.ledger import Job, Ledger


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of each server-sent event."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in fields:
            found.append((fields["event"], orjson.loads(fields["data"])))
    return found


async def test_a_stream_tells_each_change_and_ends_with_the_job(tmp_path: Path) -> None:
    runner = FakeRunner()
    async with service(tmp_path / "b.sqlite", runner) as client:
        job = await submitted(client, SWEEP)
        following = [
            asyncio.create_task(client.get(f"/v1/bench/{job}", params={"stream": 1})),
            asyncio.create_task(client.get(f"/v1/bench/{job}", headers={"accept": "text/event-stream"})),
        ]
        await until(client, job, lambda found: bool(found["runs"]) and found["runs"][0]["state"] == "claimed")
        runner.gate.set()
        for answer in await asyncio.gather(*following):
            told = events(answer.text)
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert [name for name, _ in told[:-1]] == ["progress"] * (len(told) - 1)
            assert told[-1][0] == "done"
            assert told[-1][1]["runs_done"] == 3
        ended_job = events((await client.get(f"/v1/bench/{job}?stream=1")).text)
        assert [name for name, _ in ended_job] == ["done"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/bench/none?stream=1", 404),
        ("/v1/bench/%00%0a?stream=1", 404),
        ("/v1/bench/" + "x" * 65 + "?stream=1", 400),
        ("/v1/bench/none?stream=perhaps", 400),
        ("/v1/bench/none?stream=1&stream=0", 404),
    ],
)
async def test_a_stream_that_cannot_be_is_one_error_and_no_stream(tmp_path: Path, path: str, status: int) -> None:
    async with service(tmp_path / "b.sqlite", FakeRunner()) as client:
        answer = await client.get(path)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["message"]


async def test_a_stream_outlives_a_locked_database_and_ends_when_its_job_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tonnage_bench.app.EVENT_S", 0.01)
    monkeypatch.setattr("tonnage_bench.app.QUIET_LOOKS", 2)
    async with service(tmp_path / "b.sqlite", FakeRunner()) as client:
        job = await submitted(client, SWEEP)
        real, looked = Ledger.job, 0

        def troubled(ledger: Ledger, name: str) -> Job:
            nonlocal looked
            looked += 1
            if looked in (10, 11):
                raise LedgerError("locked", "locked")
            if looked > 20:
                raise UnknownJobError(f"no job {name}")
            return real(ledger, name)

        monkeypatch.setattr(Ledger, "job", troubled)
        text = (await client.get(f"/v1/bench/{job}?stream=1")).text
        assert looked == 21
        assert ": no change\n\n" in text
        assert events(text)[-1] == ("gone", {"id": job, "error": f"no job {job}"})
