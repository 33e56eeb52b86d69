"""Compiled code between starts: captured, restored, checked; torch finds it again."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tonnage_coldstart.compile_cache import MANIFEST, CompileCache
from tonnage_coldstart.errors import CacheError
from tonnage_core.coldstart.compile_key import CompileKey
from tonnage_core.errors import BadInputError


def key(**more: object) -> CompileKey:
    fields: dict[str, object] = {
        "engine": "vllm:0.32.0", "torch": "2.13.0", "gpu": "NVIDIA H200 sm_90", "driver": "580.159", "model": "d1"
    }  # fmt: skip
    return CompileKey(**{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    folder = tmp_path / "inductor"
    (folder / "ab").mkdir(parents=True)
    (folder / "ab" / "kernel.so").write_bytes(b"code")
    (folder / "ab" / "kernel.so").chmod(0o755)
    (folder / "graph").write_bytes(b"graph")
    (folder / "some.lock").write_bytes(b"")
    return folder


def test_what_was_captured_is_restored_with_its_mode_and_locks_are_left_out(compiled: Path, tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "cache")
    assert cache.capture(key(), {"inductor": compiled}) == 9
    target = tmp_path / "fresh"
    found = cache.restore(key(), {"inductor": target})
    assert (found.hit, found.files, found.bytes) == (True, 2, 9)
    assert (target / "ab" / "kernel.so").read_bytes() == b"code"
    assert os.access(target / "ab" / "kernel.so", os.X_OK)
    assert not (target / "some.lock").exists()
    assert cache.restore(key(), {"inductor": target}).files == 0, "what is there stays"


@pytest.mark.parametrize(
    "other", [{"engine": "vllm:0.31.0"}, {"gpu": "L40S sm_89"}, {"flags": {"tp": "2"}}, {"model": "x"}]
)
def test_another_engine_gpu_model_or_flag_finds_nothing(
    compiled: Path, tmp_path: Path, other: dict[str, object]
) -> None:
    cache = CompileCache(tmp_path / "cache")
    cache.capture(key(), {"inductor": compiled})
    assert not cache.restore(key(**other), {"inductor": tmp_path / "fresh"}).hit
    assert not (tmp_path / "fresh").exists()


def test_a_changed_file_makes_the_entry_a_miss_and_puts_nothing_in_place(compiled: Path, tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "cache")
    cache.capture(key(), {"inductor": compiled})
    victim = next((tmp_path / "cache").rglob("kernel.so"))
    victim.write_bytes(b"evil")
    found = cache.restore(key(), {"inductor": tmp_path / "fresh"})
    assert (found.hit, found.reason) == (False, "damaged: ab/kernel.so")
    assert not (tmp_path / "fresh").exists()
    assert cache.restore(key(), {"inductor": tmp_path / "fresh"}).reason == "no entry"


def test_a_manifest_that_names_a_file_outside_is_no_entry(compiled: Path, tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "cache")
    cache.capture(key(), {"inductor": compiled})
    manifest = next((tmp_path / "cache").rglob(MANIFEST))
    document = json.loads(manifest.read_text())
    document["files"][0]["name"] = "../../escape"
    manifest.write_text(json.dumps(document))
    assert not cache.restore(key(), {"inductor": tmp_path / "fresh"}).hit


def test_an_empty_capture_and_an_unknown_field_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="has the engine compiled"):
        CompileCache(tmp_path / "cache").capture(key(), {"inductor": tmp_path / "nothing"})
    with pytest.raises(BadInputError, match="gpu unknown"):
        key(gpu=" ")


COMPILE = """
import torch
from torch._dynamo.utils import counters
torch.set_num_threads(1)
print(torch.compile(lambda x: (x * 2 + 1).relu())(torch.arange(8.0)).sum().item())
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def start(folder: Path) -> list[str]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on the CPU")
def test_a_restored_cache_is_a_hit_on_the_second_start(tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert start(first) == ["64.0", "0", "1"]
    cache = CompileCache(tmp_path / "cache")
    cache.capture(key(), {"inductor": first})
    shutil.rmtree(first)
    assert cache.restore(key(), {"inductor": first}).hit
    assert start(first) == ["64.0", "1", "0"]
