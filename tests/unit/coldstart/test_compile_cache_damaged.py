"""The compile cache beside killed captures, damaged manifests, other starts at once and files that go away."""

import json
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tonnage_cli.compile_cache import command
from tonnage_coldstart import compile_cache
from tonnage_coldstart.compile_cache import MANIFEST, CompileCache
from tonnage_coldstart.errors import CacheError
from tonnage_core.coldstart.compile_key import CompileKey

KEY = CompileKey("vllm:0.32.0", "2.13.0", "NVIDIA H200 sm_90", "580", "m")


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    folder = tmp_path / "triton"
    folder.mkdir()
    (folder / "kernel").write_bytes(b"code")
    return folder


def break_key(document: dict[str, Any]) -> None:
    del document["key"]["engine"]


def break_size(document: dict[str, Any]) -> None:
    document["files"][0]["size"] = "many"


def break_mode(document: dict[str, Any]) -> None:
    del document["files"][0]["mode"]


@pytest.mark.parametrize("broken", [break_key, break_size, break_mode])
def test_a_manifest_that_lacks_something_is_no_entry_and_keeps_nothing_from_working(
    compiled: Path, tmp_path: Path, broken: Callable[[dict[str, Any]], None]
) -> None:
    cache = CompileCache(tmp_path / "cache")
    cache.capture(KEY, {"triton": compiled})
    manifest = tmp_path / "cache" / KEY.digest / MANIFEST
    document = json.loads(manifest.read_bytes())
    broken(document)
    manifest.write_text(json.dumps(document))
    listed = CliRunner().invoke(command, ["list", "--cache", str(tmp_path / "cache")])
    assert (listed.exit_code, cache.entries()) == (0, [])
    assert not cache.restore(KEY, {"triton": tmp_path / "fresh"}).hit
    other = CompileKey("vllm:0.33.0", "2.13.0", "NVIDIA H200 sm_90", "580", "m")
    assert cache.capture(other, {"triton": compiled}) == 4


def test_what_killed_captures_and_removals_left_goes_with_the_next_capture(compiled: Path, tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "cache")
    left = [f".{uuid.uuid4().hex}", f".{KEY.digest}.0123abcd", f".{KEY.digest}.4567cdef", ".someone-elses"]
    for name in left:
        (tmp_path / "cache" / name).mkdir(parents=True)
        (tmp_path / "cache" / name / "file").write_bytes(b"x")
    os.utime(tmp_path / "cache" / left[1], (1, 1))
    cache.capture(KEY, {"triton": compiled})
    assert sorted(one.name for one in (tmp_path / "cache").iterdir()) == sorted([*left[2:], KEY.digest]), (
        "a capture under way and what is not ours stay"
    )


def test_of_two_captures_of_one_key_at_once_one_is_kept_and_none_fails(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = CompileCache(tmp_path / "cache"), CompileCache(tmp_path / "cache")
    first.capture(KEY, {"triton": compiled})
    real = os.rename

    def other_first(source: Any, target: Any) -> None:
        if Path(target).name == KEY.digest:
            monkeypatch.setattr(os, "rename", real)
            second.capture(KEY, {"triton": compiled})
        real(source, target)

    monkeypatch.setattr(os, "rename", other_first)
    assert first.capture(KEY, {"triton": compiled}) == 4
    assert [one.name for one in (tmp_path / "cache").iterdir()] == [KEY.digest]
    assert first.restore(KEY, {"triton": tmp_path / "fresh"}).hit


def test_a_directory_that_cannot_be_read_is_our_error(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: Path) -> Any:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(compile_cache, "_files", gone)
    with pytest.raises(CacheError):
        CompileCache(tmp_path / "cache").adds(KEY, {"triton": compiled})


@pytest.mark.parametrize("ready", ["http://h:port/health", "http://[::1/health", "http:///health", "http://h/a b"])
def test_an_address_that_nothing_can_answer_is_refused_before_the_start(tmp_path: Path, ready: str) -> None:
    made = tmp_path / "started"
    line = ["run", "--cache", str(tmp_path / "c"), "--engine", "e:1", "--torch", "2", "--gpu", "g", "--driver", "d"]
    start = ["--model", "m", "--ready", ready, "--", sys.executable, "-c", f"open({str(made)!r}, 'w')"]
    done = CliRunner().invoke(command, [*line, *start])
    assert done.exception is not None and "--ready" in str(done.exception)
    assert not made.exists()
