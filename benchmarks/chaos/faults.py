"""What is done to the fleet: each fault is entered, holds for a while, and is left again."""

import asyncio
import contextlib
import hashlib
import os
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from fleet import Fleet

Fault = dict[str, Any]
Context = contextlib.AbstractAsyncContextManager[None]


@contextlib.asynccontextmanager
async def nothing(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """The figures to compare with."""
    yield


@contextlib.asynccontextmanager
async def killed(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """SIGKILL; the supervisor starts it again."""
    os.kill(fleet.pid(fault["target"]), signal.SIGKILL)
    fault["died"] = time.monotonic()
    yield


@contextlib.asynccontextmanager
async def port_taken(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """SIGKILL, and another process has its port before it is back; given up at the end."""
    port = fleet.ports[fault["target"]]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(fleet.pid(fault["target"]), signal.SIGKILL)
        fault["died"] = time.monotonic()
        for _ in range(200):
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", port))
                break
            await asyncio.sleep(0.01)
        yield


@contextlib.asynccontextmanager
async def stopped(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """SIGSTOP, then SIGCONT."""
    pid = fleet.pid(fault["target"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def slowed(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """It runs for a fifth of the time, in turns of 50 ms."""
    pid = fleet.pid(fault["target"])

    async def turns() -> None:
        while True:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.04)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(turns())
    try:
        yield
    finally:
        task.cancel()
        os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def disk_full(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """No file that it writes can grow, its log included. Staging must fail by name then, and succeed afterwards."""
    pid = fleet.pid(fault["target"])
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        if fault["target"] == "coldstart":
            await _stage(fleet, "full", "failed")
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    if fault["target"] == "coldstart":
        await _stage(fleet, "full", "done")


@contextlib.asynccontextmanager
async def killed_staging(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """SIGKILL in the middle of a transfer; asked again after the restart, every byte must be there."""
    url = f"http://127.0.0.1:{fleet.ports['coldstart']}"
    await fleet.send("POST", f"{url}/v1/stage", {"uri": str(_model(fleet, "killed"))})
    os.kill(fleet.pid("coldstart"), signal.SIGKILL)
    yield
    await fleet.settled(30)
    await _stage(fleet, "killed", "done")


@contextlib.asynccontextmanager
async def clock_moved(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """Every process's wall clock jumps by `by_s`, and back at the end."""
    names = list(fleet.supervisor.children)
    for name in names:
        fleet.move_clock(name, fault["by_s"])
    try:
        yield
    finally:
        for name in names:
            fleet.move_clock(name, 0.0)


@contextlib.asynccontextmanager
async def store_gone(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """The shared store dies and comes back empty."""
    fleet.store.stop()
    try:
        yield
    finally:
        fleet.store.start()


@contextlib.asynccontextmanager
async def weather(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """The proxy before `target` delays, swallows or refuses."""
    here = fleet.proxies[fault["target"]].weather
    for name, value in fault["weather"].items():
        setattr(here, name, value)
    try:
        yield
    finally:
        here.delay_s, here.swallow, here.refuse = 0.0, False, False


@contextlib.asynccontextmanager
async def cut(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """Every connection through the proxy before `target` is reset once."""
    fault["connections"] = fleet.proxies[fault["target"]].cut()
    yield


@contextlib.asynccontextmanager
async def engine_fault(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """A fault of the simulator's own."""
    url = f"http://127.0.0.1:{fleet.ports[fault['target']]}/admin/fault"
    with contextlib.suppress(asyncio.IncompleteReadError, OSError, IndexError):  # a crash answers nothing
        await fleet.send("POST", url, fault["fault"])
    try:
        yield
    finally:
        with contextlib.suppress(OSError, IndexError):
            await fleet.send("DELETE", url)


@contextlib.asynccontextmanager
async def deaf_scrapers(fleet: Fleet, fault: Fault) -> AsyncIterator[None]:
    """A monitoring system that asks for metrics on many connections, reads nothing, and then is gone."""
    writers = []
    for port in (fleet.ports["admin"], fleet.ports["planner"], *(fleet.ports[f"engine-{i}"] for i in range(2))):
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
            writers.append(writer)
    yield
    for writer in writers:
        writer.transport.abort()


KINDS: dict[str, Callable[[Fleet, Fault], Context]] = {
    "nothing": nothing,
    "killed": killed,
    "port_taken": port_taken,
    "stopped": stopped,
    "slowed": slowed,
    "disk_full": disk_full,
    "killed_staging": killed_staging,
    "clock_moved": clock_moved,
    "store_gone": store_gone,
    "weather": weather,
    "cut": cut,
    "engine_fault": engine_fault,
    "deaf_scrapers": deaf_scrapers,
}


def _model(fleet: Fleet, name: str) -> Path:
    """A directory with a safetensors file of 16 MiB of our own bytes."""
    folder = fleet.folder / f"model-{name}"
    if not folder.exists():
        folder.mkdir()
        body = hashlib.shake_128(name.encode()).digest(16 << 20)
        header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(body), len(body))
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
        (folder / "config.json").write_text("{}")
    return folder


async def _stage(fleet: Fleet, name: str, expected: str) -> None:
    """Stage a model and compare how that ends with `expected`; the bytes too when it is done."""
    folder, url = _model(fleet, name), f"http://127.0.0.1:{fleet.ports['coldstart']}"
    job = (await fleet.send("POST", f"{url}/v1/stage", {"uri": str(folder)}))["body"]
    async with asyncio.timeout(60):
        while job["state"] in ("waiting", "running"):
            await asyncio.sleep(0.1)
            job = await fleet.get(f"{url}/v1/stage/{job['id']}")
    if job["state"] != expected:
        raise AssertionError(f"staging {name} was {expected} to be, it is {job['state']}: {job}")
    if expected == "done":
        _compare(folder, Path(job["report"]["path"]))
    elif not job.get("error"):
        raise AssertionError(f"staging {name} failed without a reason: {job}")


def _compare(folder: Path, staged: Path) -> None:
    for file in folder.iterdir():
        if (staged / file.name).read_bytes() != file.read_bytes():
            raise AssertionError(f"{file.name} of {folder.name} was staged with other bytes")
