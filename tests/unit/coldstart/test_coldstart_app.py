"""The service over HTTP, and the command line in process."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from prometheus_client import CollectorRegistry

from tonnage_cli.main import run
from tonnage_coldstart.app import Ports, build_app
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_runtime.clock import SystemClock


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = ColdstartSettings(cache_dir=tmp_path / "service-cache", keep_free_bytes=0, scrub_interval_s=0)
    app = build_app(settings, Ports(SystemClock(), CollectorRegistry()))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://node") as made:
        yield made


async def wait(client: httpx.AsyncClient, job: str) -> Any:
    await client.get(f"/v1/stage/{job}?stream=1")
    return (await client.get(f"/v1/stage/{job}")).json()


def files_of(path: str) -> set[str]:
    return {one.name for one in Path(path).iterdir()}


def spoil(path: str, name: str) -> None:
    victim = Path(path, name)
    victim.write_bytes(victim.read_bytes()[:-1] + b"\x00")


async def staged(client: httpx.AsyncClient, uri: Path) -> Any:
    answer = await client.post("/v1/stage", json={"uri": str(uri)})
    assert answer.status_code == 202
    return await wait(client, answer.json()["id"])


async def test_a_job_ends_with_the_report(client: httpx.AsyncClient, described: Path) -> None:
    document = await staged(client, described)
    report = document["report"]
    assert document["state"] == "done"
    assert report["bytes"] == document["progress"]["done_bytes"] == document["progress"]["total_bytes"]
    assert set(report["phases"]) == {"plan_s", "fetch_s", "verify_s", "h2d_s"}
    assert "config.json" in files_of(report["path"])


async def test_progress_streams_as_events_and_ends_with_the_outcome(client: httpx.AsyncClient, described: Path) -> None:
    job = (await client.post("/v1/stage", json={"uri": str(described)})).json()["id"]
    for query, headers in (("?stream=1", {}), ("", {"accept": "text/event-stream"})):
        answer = await client.get(f"/v1/stage/{job}{query}", headers=headers)
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind, data = answer.text.strip().split("\n\n")[-1].split("\n")
        assert kind == "event: done"
        assert json.loads(data.removeprefix("data: "))["report"]["verified"] is True


async def test_a_failed_job_says_why(client: httpx.AsyncClient, checkpoint: Path) -> None:
    (checkpoint / "model-00001-of-00002.safetensors").unlink()
    document = await staged(client, checkpoint)
    assert document["state"] == "failed"
    assert "model-00001-of-00002.safetensors" in document["error"]["message"]
    assert 'tonnage_coldstart_stages_total{outcome="corrupt"} 1.0' in (await client.get("/metrics")).text


async def test_bad_requests_are_told_apart(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/stage", json={"uri": "gopher://x"})).status_code == 400
    assert (await client.post("/v1/stage", json={"url": "x"})).status_code == 400
    assert (await client.get("/v1/stage/nothing")).status_code == 404
    assert (await client.get("/v1/cache/x--0123456789abcdef")).status_code == 404
    assert (await client.delete("/v1/cache/..%2Fx")).status_code == 404


async def test_the_cache_is_listed_pinned_scrubbed_mended_and_emptied(
    client: httpx.AsyncClient, described: Path
) -> None:
    key = (await staged(client, described))["report"]["key"]
    listed = (await client.get("/v1/cache")).json()
    assert [entry["key"] for entry in listed["entries"]] == [key]
    assert (await client.put(f"/v1/cache/{key}/pin", json={"pinned": True})).json()["pinned"] is True
    assert (await client.post("/v1/cache/scrub", json={})).json()["snapshots"] == [
        {"key": key, "damaged": False, "files": [], "job": None}
    ]
    victim = "model-00001-of-00002.safetensors"
    spoil(listed["entries"][0]["path"], victim)
    found = (await client.post("/v1/cache/scrub", json={"key": key})).json()["snapshots"][0]
    assert [one["name"] for one in found["files"]] == [victim]
    assert (await wait(client, found["job"]))["report"]["repaired"] == [victim]
    assert (await client.delete(f"/v1/cache/{key}")).status_code == 204
    assert (await client.get("/v1/cache")).json()["entries"] == []


async def test_health_and_readiness(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 200
    assert "tonnage_coldstart_cache_bytes 0.0" in (await client.get("/metrics")).text


def test_the_command_prints_one_document(described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["stage", str(described), "--cache", str(tmp_path / "cli"), "--json"]
    assert run(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tonnage.stage/1"
    assert document["cache_hit"] is False
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["cache_hit"] is True


@pytest.mark.parametrize(("uri", "code"), [("s9://x", 2), ("nowhere", 2), ("http://127.0.0.1:9/m", 1)])
def test_the_command_fails_in_one_line(uri: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stage", uri, "--cache", str(tmp_path / "cli"), "--attempts", "1"]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_load_stages_first_and_reports_both(
    described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["load", str(described), "--device", "cpu", "--cache", str(tmp_path / "cli"), "--json"]
    assert run(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tonnage.load/1"
    assert document["verified"] is True
    assert document["cache_hit"] is False
    assert document["tensors"] == 8
    assert all(value is not None for value in document["phases"].values())
    assert run(["load", str(described), "--device", "cpu"]) == 0
    assert "verified" in capsys.readouterr().out


@pytest.mark.parametrize(("uri", "device"), [("http://127.0.0.1:9/m", "cpu"), (".", "tpu"), (".", "cuda")])
def test_load_refuses_in_one_line(
    uri: str, device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(["load", uri, "--device", device]) == 2
    assert capsys.readouterr().err.count("\n") == 1
