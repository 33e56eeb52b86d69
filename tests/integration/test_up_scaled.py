"""`tonnage up --max-engines`: load grows the fleet, its end shrinks it by draining, and adapters follow the engines."""

import concurrent.futures
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TONNAGE = [sys.executable, "-c", "from tonnage_cli.main import main; main()"]
MODEL = "Qwen/Qwen3-14B"
ENGINES = 3


def ask(url: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: bytes = answer.read()
    return found


def until(what: str, condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except urllib.error.URLError:
            pass
        assert time.monotonic() < deadline, f"{what}: not after {seconds:g} s"
        time.sleep(0.1)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A fleet of one engine that may have three; its URLs."""
    process = subprocess.Popen(
        [
            *TONNAGE, "up", "--engines", "1", "--max-engines", str(ENGINES), "--model", MODEL, "--gpu", "H20-SXM-96GB",
            "--speed", "10", "--start-s", "10", "--scale-down-after-s", "20", "--adapter", "legal",
            "--port-base", "0", "--urls-file", "urls.json",
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until("the fleet is ready", lambda: (tmp_path / "urls.json").exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield json.loads((tmp_path / "urls.json").read_text())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        if process.stderr:
            process.stderr.close()


def engines(fleet: dict[str, Any]) -> list[dict[str, Any]]:
    """The engines that are ready."""
    found = json.loads(ask(fleet["fleet"] + "/"))["processes"]
    return [one for one in found if one["name"].startswith("engine-") and one["state"] == "ready"]


def adapters_of(engine: dict[str, Any]) -> set[str]:
    return {card["id"] for card in json.loads(ask(engine["url"] + "/v1/models"))["data"] if card.get("parent")}


def load(fleet: dict[str, Any], stop: threading.Event, seed: int) -> int:
    """One client that asks again and again, long prompts that share nothing; how many answers came."""
    count = 0
    while not stop.is_set():
        prompt = [2000 + seed, 2000 + count, *range(3000, 9000)]
        ask(fleet["router"] + "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 20})
        count += 1
    return count


def stream(fleet: dict[str, Any], seed: int) -> tuple[int, bool]:
    """A long streamed answer: its tokens and whether it ended as it should."""
    body = {
        "model": MODEL, "prompt": [5000 + seed], "max_tokens": 6000, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    events = ask(fleet["router"] + "/v1/completions", body).decode().strip().split("\n\n")
    usage = json.loads(events[-2].removeprefix("data: "))["usage"]
    return usage["completion_tokens"], events[-1] == "data: [DONE]"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_surge_grows_the_fleet_and_its_end_shrinks_it_without_a_cut_stream(fleet: dict[str, Any]) -> None:
    assert [one["name"] for one in engines(fleet)] == ["engine-0"]
    assert adapters_of(engines(fleet)[0]) == {"legal"}
    surge_over, small = threading.Event(), threading.Event()

    def streams(seed: int) -> list[tuple[int, bool]]:
        """Streams one after the other for as long as the fleet has more than its least."""
        found = [stream(fleet, seed)]
        while not small.is_set():
            found.append(stream(fleet, seed))
        return found

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        surge = [pool.submit(load, fleet, surge_over, number) for number in range(12)]
        try:
            until("the surge grew the fleet", lambda: len(engines(fleet)) == ENGINES)
            until("the adapter followed", lambda: all(adapters_of(one) == {"legal"} for one in engines(fleet)))
            answer = json.loads(
                ask(fleet["router"] + "/v1/completions", {"model": "legal", "prompt": "hello", "max_tokens": 2})
            )
            assert answer["model"] == "legal"
            steady = [pool.submit(streams, number) for number in range(4)]
        finally:
            surge_over.set()
        try:
            assert all(client.result() > 0 for client in surge)
            until("the fleet shrank", lambda: [one["name"] for one in engines(fleet)] == ["engine-0"])
        finally:
            small.set()
        assert {each for client in steady for each in client.result()} == {(6000, True)}

    def desired() -> object:
        return json.loads(ask(f"{fleet['planner']}/v1/explain/{MODEL}"))["desired_replicas"]

    until("the planner wants one engine once the last streams are over", lambda: desired() == 1)
