"""Compiled code between starts: captured, restored, checked; torch finds it again."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tonnage_coldstart.compile_cache import MANIFEST, CompileCache
from tonnage_coldstart.errors import CacheError
from tonnage_core.coldstart.compile_key import CompileKey, engine_flags
from tonnage_core.errors import BadInputError
from tonnage_runtime.ports import free_port


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


def test_entries_leave_by_their_last_use_when_a_new_one_needs_the_quota(compiled: Path, tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "cache", quota_bytes=20)
    one, two, three = (key(driver=driver) for driver in ("1", "2", "3"))
    for at_s, entry in ((100, one), (200, two)):
        cache.capture(entry, {"inductor": compiled})
        os.utime(tmp_path / "cache" / entry.digest / MANIFEST, (at_s, at_s))
    assert cache.restore(one, {"inductor": tmp_path / "fresh"}).hit, "used just now, so the other one leaves"
    cache.capture(three, {"inductor": compiled})
    assert {entry["key"]["driver"] for entry in cache.entries()} == {"1", "3"}
    cache.capture(three, {"inductor": compiled})
    assert {entry["key"]["driver"] for entry in cache.entries()} == {"1", "3"}, (
        "an entry that is replaced needs no room"
    )


def test_what_exceeds_the_whole_quota_is_refused_and_drops_nothing(compiled: Path, tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "cache", quota_bytes=10)
    cache.capture(key(), {"inductor": compiled})
    (compiled / "more").write_bytes(b"larger")
    with pytest.raises(CacheError, match="quota of 10 bytes"):
        cache.capture(key(driver="2"), {"inductor": compiled})
    assert [entry["bytes"] for entry in cache.entries()] == [9]


def test_an_empty_capture_and_an_unknown_field_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="has the engine compiled"):
        CompileCache(tmp_path / "cache").capture(key(), {"inductor": tmp_path / "nothing"})
    with pytest.raises(BadInputError, match="gpu unknown"):
        key(gpu=" ")


def test_every_argument_counts_but_those_that_no_code_depends_on() -> None:
    line = [
        "vllm",
        "serve",
        "m",
        "--port",
        "8000",
        "--tensor_parallel_size=2",
        "--enforce-eager",
        "--dtype",
        "bfloat16",
    ]
    assert engine_flags(line) == {"tensor-parallel-size": "2", "enforce-eager": "", "dtype": "bfloat16"}
    assert engine_flags([*line, "--new-one", "x"])["new-one"] == "x"


KEY = ["--engine", "vllm:0.32.0", "--torch", "2.13.0", "--gpu", "NVIDIA H200 sm_90", "--driver", "580", "--model", "m"]
WRITES = """
import http.server, os, pathlib, sys, threading
folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"]); folder.mkdir(parents=True, exist_ok=True)
print(sorted(p.name for p in folder.iterdir()), flush=True)
(folder / "kernel").write_text("code")
if len(sys.argv) > 1:
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def log_message(self, *_): pass
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


TONNAGE = str(Path(sys.executable).with_name("tonnage"))


def tonnage(*arguments: str) -> subprocess.CompletedProcess[str]:
    named = ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR")
    clean = {name: value for name, value in os.environ.items() if name not in named}
    line = [TONNAGE, "compile-cache", *arguments]
    return subprocess.run(line, capture_output=True, check=False, text=True, env=clean, timeout=300)


def test_a_command_finds_in_its_second_start_what_the_first_compiled(tmp_path: Path) -> None:
    start = ["run", "--cache", str(tmp_path / "c"), *KEY, "--", sys.executable, "-c", WRITES]
    first, second = tonnage(*start), tonnage(*start)
    assert (first.returncode, first.stdout, second.stdout) == (0, "[]\n", "['kernel']\n")
    assert "miss (no entry)" in first.stderr and "kept" in first.stderr
    assert "hit, 1 files" in second.stderr and "kept" not in second.stderr, "nothing new was compiled"
    (entry,) = json.loads(tonnage("list", "--cache", str(tmp_path / "c"), "--json").stdout)["entries"]
    assert (entry["files"], entry["key"]["gpu"]) == (1, "NVIDIA H200 sm_90")
    digest = entry["key"]["digest"]
    assert tonnage("drop", "--cache", str(tmp_path / "c"), digest).returncode == 0
    again = tonnage("drop", "--cache", str(tmp_path / "c"), digest)
    assert again.returncode == 2 and "no such entry" in again.stderr


def test_a_start_that_fails_keeps_nothing_and_its_exit_code_is_returned(tmp_path: Path) -> None:
    done = tonnage("run", "--cache", str(tmp_path / "c"), *KEY, "--", sys.executable, "-c", WRITES + "sys.exit(7)")
    assert done.returncode == 7 and not (tmp_path / "c").exists()
    none = tonnage("run", "--cache", str(tmp_path / "c"), *KEY, "--", "no-such-engine")
    assert none.returncode == 2 and "no-such-engine: cannot be started" in none.stderr


def test_an_engine_that_serves_is_captured_once_ready_and_ended_by_the_signal(tmp_path: Path) -> None:
    port = free_port()
    ready = ["--ready", f"http://127.0.0.1:{port}/health", "--every-s", "0.1"]
    line = [TONNAGE, "compile-cache", "run", "--cache", str(tmp_path / "c"), *KEY, *ready, "--", sys.executable, "-c"]
    with subprocess.Popen([*line, WRITES, str(port)], stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert "miss" in run.stderr.readline()
        assert "kept" in run.stderr.readline(), "while it serves"
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM


def test_a_cache_that_cannot_be_written_never_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")
    done = tonnage("run", "--cache", str(tmp_path / "c" / "below"), *KEY, "--", sys.executable, "-c", WRITES)
    assert done.returncode == 0 and "nothing kept" in done.stderr


@pytest.mark.parametrize(
    "root, said",
    [("other=x", "NAME=DIR"), ("triton=", "NAME=DIR"), ("triton=/none", "compiled?")],
)
def test_a_wrong_root_is_named(tmp_path: Path, root: str, said: str) -> None:
    done = tonnage("capture", "--cache", str(tmp_path / "c"), *KEY, "--root", root)
    assert done.returncode in (1, 2) and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_what_is_not_installed_here_has_to_be_said_and_keeps_no_engine_from_starting(tmp_path: Path) -> None:
    without = [part for part in KEY if part not in ("--engine", "vllm:0.32.0")]
    done = tonnage("capture", "--cache", str(tmp_path / "c"), *without, "--root", f"triton={tmp_path}")
    assert done.returncode == 2 and "--engine" in done.stderr
    done = tonnage("run", "--cache", str(tmp_path / "c"), *without, "--", sys.executable, "-c", "print('up')")
    assert (done.returncode, done.stdout) == (0, "up\n") and "not used" in done.stderr and "--engine" in done.stderr


COMPILE = """
import torch
from torch._dynamo.utils import counters
torch.set_num_threads(1)
print(torch.compile(lambda x: (x * 2 + 1).relu())(torch.arange(8.0)).sum().item())
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def start(cache: Path) -> list[str]:
    """One start of a program that compiles, through the command; each has a fresh working directory."""
    done = tonnage("run", "--cache", str(cache), *KEY, "--", sys.executable, "-c", COMPILE)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on the CPU")
def test_a_restored_cache_is_a_hit_on_the_second_start(tmp_path: Path) -> None:
    assert start(tmp_path) == ["64.0", "0", "1"]
    assert start(tmp_path) == ["64.0", "1", "0"]
