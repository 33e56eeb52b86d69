"""The bench service on a disk that fills up while a run is being made."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.unit.bench.test_bench_service import SWEEP, FakeRunner, ended, made_up, service, submitted, until
from tonnage_bench.ledger import Ledger


async def failed(client: httpx.AsyncClient) -> None:
    """Return once a write found the disk full."""
    async with asyncio.timeout(60):
        while True:
            if 'tonnage_bench_ledger_errors_total{kind="full"} 0.0' not in (await client.get("/metrics")).text:
                return
            await asyncio.sleep(0.02)


async def test_a_disk_that_is_full_holds_a_job_up_and_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers: list[Ledger] = []

    class Seen(Ledger):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            ledgers.append(self)

    monkeypatch.setattr("tonnage_bench.app.Ledger", Seen)
    runner = FakeRunner(result=lambda question: made_up(question) | {"pad": "x" * 100_000})
    async with service(tmp_path / "b.sqlite", runner, lease_s=8) as client:
        job = await submitted(client, SWEEP)
        await until(client, job, lambda found: bool(found["runs"]) and found["runs"][0]["state"] == "claimed")
        database = ledgers[0].connection
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
        runner.gate.set()
        await failed(client)
        held = (await client.get(f"/v1/bench/{job}")).json()
        assert (held["state"], held["runs_done"], runner.ended) == ("running", 0, 1)
        long = SWEEP | {"tenants": [f"{'t' * 100}{n}" for n in range(200)]}
        refused = await client.post("/v1/bench", json=long)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "unavailable_error")
        assert "full" in refused.json()["error"]["message"]
        database.execute("PRAGMA max_page_count = 1000000")
        found = await until(client, job, ended)
        assert (found["state"], found["runs_done"]) == ("done", 3)
        assert all(run["attempt"] == 1 for run in found["runs"])
    assert len(runner.begun) == 3
