"""The processes of one quality run: simulated engines and the router in front of them, fresh for each run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tonnage_runtime.ports import free_ports

HOST = "127.0.0.1"
READY_S = 90.0
MODEL = "bench"
UNLISTED = "unknown"
"""What sglang-router calls, and lists, the model of an engine without SGLang's own endpoints; an alias here."""


@contextmanager
def running(
    settings: dict[str, Any], router: dict[str, Any], extra: Sequence[str], log: Path
) -> Iterator[dict[str, Any]]:
    """Engines and a router, ready: `{"url", "engines": [url], "router_pid", "engine_pids"}`. Ended on exit."""
    ports = free_ports(settings["engines"] + 3)
    engine_urls = [f"http://{HOST}:{port}" for port in ports[3:]]
    processes: list[subprocess.Popen[bytes]] = []
    with log.open("ab") as out:
        try:
            for place, port in enumerate(ports[3:]):
                processes.append(_start(*_engine(settings, place, port), out))
            for url in engine_urls:
                wait_for(f"{url}/health", None)
            processes.append(_start(*_router(settings, router, extra, ports, engine_urls), out))
            _wait_served(f"http://{HOST}:{ports[0]}", router.get("key"))
            yield {
                "url": f"http://{HOST}:{ports[0]}",
                "admin": f"http://{HOST}:{ports[1]}",
                "engines": engine_urls,
                "router_pid": processes[-1].pid,
                "engine_pids": [process.pid for process in processes[:-1]],
            }
        finally:
            end(processes)


def installed(router: dict[str, Any]) -> bool:
    """Whether the router's command is there."""
    return shutil.which(router["command"][0].format(python=sys.executable)) is not None


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds that process trees have used."""
    todo, total = list(pids), 0.0
    while todo:
        process = todo.pop()
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        todo += map(int, children)
    return total


def machine() -> dict[str, float]:
    """CPU seconds of the whole machine since boot: busy, all, and the time tasks waited for a CPU."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    waited = 0.0
    try:
        line = Path("/proc/pressure/cpu").read_text().split("\n", 1)[0]
        waited = int(line.rsplit("total=", 1)[1]) / 1e6
    except OSError:
        pass
    return {"busy_s": (sum(ticks) - ticks[3] - ticks[4]) / hertz, "all_s": sum(ticks) / hertz, "waited_s": waited}


def prompt_shares(engines: Sequence[str]) -> list[float]:
    """Each engine's share of all prompt tokens, by the engines' own counters."""
    counts = []
    for url in engines:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        counts.append(sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith("vllm:prompt_tokens_total{")))
    return [round(count / (sum(counts) or 1.0), 4) for count in counts]


def _engine(settings: dict[str, Any], place: int, port: int) -> tuple[list[str], dict[str, str]]:
    values = {
        "PORT": port,
        "MODEL": settings["model"],
        "GPU": settings["gpu"],
        "SERVED_MODEL_NAME": f"{MODEL},{UNLISTED}",
        "TIME_SCALE": settings["time_scale"],
        "SEED": settings["seed"] + place,
        "LOG_LEVEL": "WARNING",
    }
    env = {f"TONNAGE_SIM_{name}": str(value) for name, value in values.items()}
    return [sys.executable, "-m", "tonnage_sim.main"], env


def _router(
    settings: dict[str, Any], router: dict[str, Any], extra: Sequence[str], ports: Sequence[int], backends: list[str]
) -> tuple[list[str], dict[str, str]]:
    known = {"python": sys.executable, "port": ports[0], "admin": ports[1], "prometheus": ports[2]}
    command: list[str] = []
    for part in router["command"]:
        command += backends if part == "{backends}" else [part.format(**known)]
    if router.get("kind") != "tonnage":
        return [*command, *extra], {}
    return command, {
        "TONNAGE_ROUTER_PORT": str(ports[0]),
        "TONNAGE_ROUTER_ADMIN_PORT": str(ports[1]),
        "TONNAGE_ROUTER_LOG_LEVEL": "WARNING",
        "TONNAGE_ROUTER_SEED": str(settings["seed"]),
        "TONNAGE_ROUTER_ENDPOINTS": json.dumps([{"url": url, "model": MODEL} for url in backends]),
        "TONNAGE_ROUTER_POLICY": router.get("policy", "prefix"),
        **_told_slo(settings),
        **{f"TONNAGE_ROUTER_{name}": str(value) for name, value in router.get("settings", {}).items()},
    }


def _told_slo(settings: dict[str, Any]) -> dict[str, str]:
    """The SLO that requests are judged by, in the router's own time."""
    slo = settings.get("slo")
    if slo is None:
        return {}
    limits = {name: slo[name] / settings["time_scale"] for name in ("ttft_ms", "ttft_ms_per_prompt_token", "tpot_ms")}
    return {"TONNAGE_ROUTER_SLO": json.dumps(limits)}


def _start(command: list[str], env: dict[str, str], out: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
    )


def end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End each process with its own children: every one leads a session of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in reversed(processes):
            if process.poll() is None:
                os.killpg(process.pid, number)
        deadline = time.monotonic() + 8.0
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


def _wait_served(url: str, key: str | None) -> None:
    """Until the router answers a completion: whatever it asks its engines first is done by then."""
    body = json.dumps({"model": MODEL, "prompt": "ready", "max_tokens": 1}).encode()
    wait_for(f"{url}/v1/completions", body, key)


def wait_for(url: str, body: bytes | None, key: str | None = None) -> None:
    """Until `url` answers 200; `TimeoutError` after `READY_S`."""
    deadline = time.monotonic() + READY_S
    last: object = None
    while time.monotonic() < deadline:
        try:
            headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
            request = urllib.request.Request(url, body, headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError) as error:
            last = error
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not answer 200 within {READY_S:.0f} s: {last}; see the log of the run")
