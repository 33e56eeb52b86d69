"""Supervised child processes: started, awaited ready, restarted when they die, ended together.

A child that ends before it was ever ready fails the start. One that dies later is restarted after a growing pause;
one that dies `MAX_DEATHS` times within `DEATH_WINDOW_S` ends the fleet. Children are asked by SIGTERM, then killed.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tonnage_cli.fleet.errors import FleetError
from tonnage_cli.fleet.http_get import answers_ok
from tonnage_cli.fleet.layout import ProcessSpec

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 8.0
MAX_DEATHS = 5
DEATH_WINDOW_S = 60.0
PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Child:
    """A supervised process and what became of it. `state` is starting, ready, restarting or stopped."""

    spec: ProcessSpec
    log: Path
    state: str = "starting"
    restarts: int = 0
    process: asyncio.subprocess.Process | None = None
    deaths: deque[float] = field(default_factory=deque)

    @property
    def pid(self) -> int | None:
        """The process id, None between two lives."""
        return self.process.pid if self.process and self.process.returncode is None else None

    def last_words(self) -> str:
        """The last line of its log, at most 300 characters."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace")[-4000:].strip().splitlines()
            return lines[-1][:300] if lines else "no log line"
        return "no log"


class Supervisor:
    """Owns the children of one fleet. `failed` resolves with the error that should end it."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self.children: dict[str, Child] = {}
        self.failed: asyncio.Future[FleetError] = asyncio.get_running_loop().create_future()

    async def start(self, specs: Iterable[ProcessSpec]) -> None:
        """Start `specs` side by side and return when all are ready; `FleetError` when one is not."""
        started = [self._add(spec) for spec in specs]
        for child in started:
            await self._spawn(child)
        await asyncio.gather(*(self._until_ready(child) for child in started))
        for child in started:
            self._watchers[child.spec.name] = asyncio.create_task(self._watch(child))

    async def stop(self, names: Iterable[str] | None = None) -> None:
        """End the named children, or all, the last started first."""
        chosen = [self.children[name] for name in (names or list(self.children))]
        for child in chosen:
            watcher = self._watchers.pop(child.spec.name, None)
            if watcher:
                watcher.cancel()
        await asyncio.gather(*(_end(child) for child in reversed(chosen)))
        for child in chosen:
            self.children.pop(child.spec.name, None)

    def _add(self, spec: ProcessSpec) -> Child:
        child = Child(spec, self._log_dir / f"{spec.name}.log")
        child.log.write_bytes(b"")
        self.children[spec.name] = child
        return child

    async def _spawn(self, child: Child) -> None:
        with child.log.open("ab") as log:
            child.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                child.spec.module,
                env={**os.environ, **child.spec.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    async def _until_ready(self, child: Child) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S + child.spec.start_s
        while not await answers_ok(child.spec.url + child.spec.ready_path):
            code = child.process.returncode if child.process else None
            if code is not None:
                raise FleetError(f"{child.spec.name} ended with code {code} before it was ready: {child.last_words()}")
            if time.monotonic() > deadline:
                raise FleetError(
                    f"{child.spec.name} was not ready after {READY_TIMEOUT_S:.0f} s; its log is {child.log}: "
                    f"{child.last_words()}"
                )
            await asyncio.sleep(0.05)
        child.state = "ready"

    async def _watch(self, child: Child) -> None:
        while True:
            assert child.process is not None
            code = await child.process.wait()
            child.deaths.append(time.monotonic())
            while child.deaths and child.deaths[0] < time.monotonic() - DEATH_WINDOW_S:
                child.deaths.popleft()
            if len(child.deaths) >= MAX_DEATHS:
                self.fail(
                    FleetError(
                        f"{child.spec.name} died {MAX_DEATHS} times, last with code {code}: {child.last_words()}"
                    )
                )
                return
            child.state = "restarting"
            child.restarts += 1
            await asyncio.sleep(min(0.25 * 2 ** len(child.deaths), 5.0))
            await self._spawn(child)
            with contextlib.suppress(FleetError):  # an early death is counted by the next turn of this loop
                await self._until_ready(child)

    def fail(self, error: FleetError) -> None:
        """End the fleet with this error, the first of all."""
        if not self.failed.done():
            self.failed.set_result(error)


async def _end(child: Child) -> None:
    process = child.process
    child.state = "stopped"
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _end_with_parent() -> None:
    """In the child: end when the supervisor is killed outright (Linux; elsewhere it does nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
