"""Every token of the product is changed without a restart: the new one is put beside the old, shown and taken, then the
old one is taken out and refused."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tonnage_bench.adapters.step_process import StepProcess
from tonnage_bench.app import Ports, build_app
from tonnage_bench.settings import BenchSettings, WorkerSettings
from tonnage_bench.targets import key_for
from tonnage_bench.worker.main import serve as serve_worker
from tonnage_coldstart.app import Ports as ColdstartPorts
from tonnage_coldstart.app import build_app as coldstart_app
from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.peers.shelf import Shelf
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_planner.console.actions import Gate
from tonnage_runtime import access
from tonnage_runtime.access import SharedToken
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.errors import SettingsError


@pytest.fixture(autouse=True)
def every_look_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "LOOK_S", 0.0)


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def rotates(file: Path, takes: Callable[[str], bool], written: Callable[[str], str] = str) -> None:
    """`takes` says whether a token passes; `written` is how the file says one."""
    assert (takes("old"), takes("new"), takes("")) == (True, False, False)
    file.write_text(f"{written('new')}\n{written('old')}\n")
    assert (takes("old"), takes("new")) == (True, True)
    file.write_text(written("new"))
    assert (takes("old"), takes("new")) == (False, True)
    file.unlink()
    assert (takes("old"), takes("new")) == (False, True), "a file that is gone for a moment changes nothing"
    file.write_text("\n \n")
    assert (takes("old"), takes("new"), takes("")) == (False, True, False)


def test_the_first_of_a_files_tokens_is_shown_and_a_setting_may_be_the_token_itself(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    shared = SharedToken(f"@{file}")
    assert shared.value() == "old"
    file.write_text("new\nold\n")
    assert shared.value() == "new"
    assert (SharedToken("plain").value(), bool(SharedToken("")), SharedToken("").admits("")) == ("plain", False, False)
    for text in ("", "two words\n"):
        file.write_text(text)
        with pytest.raises(SettingsError, match="one a line"):
            SharedToken(f"@{file}")
    with pytest.raises(SettingsError, match="cannot read"):
        SharedToken(f"@{tmp_path / 'nowhere'}")


def test_the_nodes_token_rotates(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    cache = NodeCache(tmp_path / "cache", ManualClock(0.0))
    cache.prepare()
    rotates(file, Shelf(cache, SharedToken(f"@{file}")).admits)


def test_the_consoles_token_rotates(tmp_path: Path) -> None:
    file = tmp_path / "hashes"
    file.write_text(sha256("old"))
    gate = Gate(f"@{file}")
    rotates(file, lambda token: gate.session(f"Bearer {token}") == "allowed", sha256)


def test_a_targets_key_rotates(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old")
    keys = {"engine": SharedToken(f"@{file}")}
    shown = [key_for("http://engine:8000", keys)]
    file.write_text("new")
    shown.append(key_for("http://engine:8000", keys))
    file.unlink()
    shown.append(key_for("http://engine:8000", keys))
    assert shown == ["old", "new", "new"]


def test_a_file_that_is_not_there_ends_the_start_and_names_itself(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    bench = BenchSettings(database=tmp_path / "b.sqlite", target_keys={"engine": f"@{gone}"})
    worker = {"queue_url": "redis://127.0.0.1:1", "service_url": "http://127.0.0.1:1"}
    no_token = WorkerSettings.model_validate(worker | {"token": f"@{gone}"})
    no_authority = WorkerSettings.model_validate(worker | {"token": "t", "api_ca_file": gone})
    node = ColdstartSettings(cache_dir=tmp_path / "cache", ca_file=str(gone))
    starts: list[Callable[[], object]] = [
        lambda: build_app(bench, Ports(ManualClock(0.0), CollectorRegistry(), StepProcess(), None)),
        lambda: serve_worker(no_token),
        lambda: serve_worker(no_authority),
        lambda: coldstart_app(node, ColdstartPorts(ManualClock(0.0), CollectorRegistry())),
    ]
    for start in starts:
        with pytest.raises(SettingsError, match=str(gone)):
            start()


async def test_the_benchs_token_rotates(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    settings = BenchSettings(database=tmp_path / "b.sqlite", token=f"@{file}")
    app = build_app(settings, Ports(ManualClock(0.0), CollectorRegistry(), StepProcess(), None))
    seen = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bench") as client:
        for text in ("old", "new\nold", "new"):
            file.write_text(text)
            answers = [await client.get("/v1/bench", headers={"authorization": f"Bearer {t}"}) for t in ("old", "new")]
            seen.append([answer.status_code for answer in answers])
    assert seen == [[200, 401], [200, 200], [401, 200]]
