"""A real vLLM starts from the staged view and through the plugin, and answers token for token as from the original.

Opt-in with TONNAGE_E2E_ENGINES (any text, as it starts its own engines); TONNAGE_E2E_VLLM names a `vllm` program,
TONNAGE_E2E_MODEL a model directory.
Three engines are started one after the other, each for some minutes on few cores.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import crc32c
import httpx
import pytest

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.staging import Stager
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

VLLM = os.environ.get("TONNAGE_E2E_VLLM", "")
MODEL = os.environ.get("TONNAGE_E2E_MODEL", "")
ROOT = Path(__file__).resolve().parents[2]
READY_S = 900.0


def staged(cache_dir: Path) -> Path:
    clock = SystemClock()
    cache = NodeCache(cache_dir, clock)
    cache.prepare()
    source = open_source(MODEL, SourceOptions())
    return Stager(cache, clock).stage(source, Progress(clock.monotonic), threading.Event()).path


def plugin_path(folder: Path) -> str:
    """What the engine's environment would get from installing the distribution: packages, and the entry point."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"tonnage-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tonnage\nVersion: {project['version']}\n")
    points = project["entry-points"]["vllm.general_plugins"]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\n" + "\n".join(lines) + "\n")
    package = Path(crc32c.__file__).parent
    for part in (package, *package.parent.glob("crc32c-*.dist-info")):
        (folder / part.name).symlink_to(part)
    return os.pathsep.join([str(folder), *(str(ROOT / one) for one in ("libs/core", "services/coldstart"))])


@contextmanager
def engine(model: Path, log: Path, *options: str, path: str = "") -> Iterator[httpx.Client]:
    port = free_port()
    shape = ["--dtype", "float32", "--max-model-len", "1024", "--enforce-eager", "--served-model-name", "m"]
    command = [VLLM, "serve", str(model), "--host", "127.0.0.1", "--port", str(port), *shape, *options]
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment = {**os.environ, **quiet, "PYTHONPATH": path}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300)
    try:
        until = time.monotonic() + READY_S
        while not ready(client):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(1)
        yield client
    finally:
        client.close()
        with suppress(ProcessLookupError):  # it ended by itself: what it said is in its log
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def answers(client: httpx.Client) -> list[Any]:
    """Greedy tokens, with the log probability of each, for prompts of token ids."""
    rng = random.Random(5)
    found = []
    for length in (3, 17, 64, 200):
        prompt = [rng.randrange(10, 250) for _ in range(length)]
        body = {"model": "m", "prompt": prompt, "max_tokens": 48, "temperature": 0, "logprobs": 1, "ignore_eos": True}
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        found.append((choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]))
    return found


@pytest.mark.skipif(not VLLM or not MODEL, reason="opt-in: TONNAGE_E2E_VLLM and TONNAGE_E2E_MODEL name a real engine")
def test_a_real_engine_answers_alike_from_the_original_the_staged_view_and_the_plugin(
    tmp_path: Path, told: Callable[[str, str], None], saved: Callable[[str, Any], None]
) -> None:
    view = staged(tmp_path / "cache")
    with engine(Path(MODEL), tmp_path / "original.log") as client:
        original = answers(client)
    with engine(view, tmp_path / "view.log") as client:
        from_view = answers(client)
    path = plugin_path(tmp_path / "plugin")
    extra = ["--load-format", "tonnage", "--model-loader-extra-config", '{"require_verified": true}']
    with engine(view, tmp_path / "plugin.log", *extra, path=path) as client:
        from_plugin = answers(client)
    assert from_view == original
    assert from_plugin == original
    text = (tmp_path / "plugin.log").read_text()
    report = {
        "python": sys.version.split()[0],
        "prompts": len(original),
        "tokens": sum(len(tokens) for tokens, _ in original),
        "view_equals_original": from_view == original,
        "plugin_equals_original": from_plugin == original,
        "plugin_registered": "load format `tonnage`" in text,
    }
    saved("cold_start/engine", report)
    told("staged view, load format `tonnage`", f"{report['prompts']} answers, {report['tokens']} tokens, all alike")
    assert report["plugin_registered"], text[-3000:]
