"""The scaler of a local fleet: follows the planner's target by starting and ending simulated engines.

An engine is in the endpoints' file from the moment it is asked for, so that the planner counts it as pending, and the
router routes to it once it answers. One that goes is drained in the router first, then leaves the file, then is ended.
A target that is not known moves nothing.
"""

import asyncio
import json
import logging
import time
from typing import Any
from urllib.parse import quote, urlsplit

from tonnage_cli.fleet import layout
from tonnage_cli.fleet.errors import FleetError
from tonnage_cli.fleet.layout import FleetOptions
from tonnage_cli.fleet.outcome import write_atomically
from tonnage_cli.fleet.scaling import Event, Stage, Step, TargetChange, document, steps
from tonnage_cli.fleet.supervisor import Supervisor
from tonnage_core.autoscaling.exposition import UnparsableError, parse
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.plain_http import ask
from tonnage_loadgen.target import parse_target

LOOK_S = 0.5
DRAIN_LIMIT_S = 300.0
"""Wall seconds after which an engine is ended with the requests it has; they are counted."""
IN_FLIGHT = {"vllm:num_requests_running", "vllm:num_requests_waiting"}
log = logging.getLogger("tonnage.fleet")


class FleetScaler:
    """Owns which engines a scaled fleet has. `run` it beside the fleet."""

    def __init__(self, options: FleetOptions, ports: dict[str, int], supervisor: Supervisor, model: str) -> None:
        self._options, self._ports, self._supervisor, self._model = options, ports, supervisor, model
        self._engines = dict.fromkeys(range(options.engines), Stage.SERVING)
        self._starts: dict[int, asyncio.Task[None]] = {}
        self._drained_at: dict[int, float] = {}
        self._target = options.engines
        self._began = time.monotonic()
        self.events: list[Event] = []
        self.changes: list[TargetChange] = []
        self.rested = asyncio.Event()
        """Set while the fleet is as small as it may be and nothing is on its way."""
        self._write()

    def urls(self) -> list[str]:
        """The engines that serve or drain."""
        return [self._url(number) for number, stage in self._engines.items() if stage is not Stage.STARTING]

    @property
    def peak(self) -> int:
        """Most engines so far."""
        found = self.document()["peak_replicas"]
        assert isinstance(found, int)
        return found

    def document(self) -> dict[str, Any]:
        """What happened so far."""
        most = self._options.most_engines
        return document(self.events, self.changes, first=self._options.engines, most=most, now_s=self._now())

    async def run(self) -> None:
        """Follow the target until cancelled; starts that are under way are cancelled with it."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        except FleetError as error:
            self._supervisor.fail(error)
        finally:
            for task in self._starts.values():
                task.cancel()
            await asyncio.gather(*self._starts.values(), return_exceptions=True)

    async def look(self) -> None:
        """One look: what has started, what has drained, what the target asks for."""
        self._take_started()
        for number in [number for number, stage in self._engines.items() if stage is Stage.DRAINING]:
            await self._drain(number)
        target = await self._asked()
        if target is not None:
            for step, number in steps(target, self._engines, self._options.most_engines):
                await self._take(step, number)
        rest = list(self._engines.values()) == [Stage.SERVING] * self._options.engines
        (self.rested.set if rest else self.rested.clear)()

    async def _asked(self) -> int | None:
        """The planner's target, None while it is not known."""
        found = await self._json(self._planner(), f"/v1/targets/{quote(self._model, safe='/')}")
        target = (found or {}).get("desired_replicas")
        if not isinstance(target, int):
            return None
        if target != self._target:
            reasons = (found or {}).get("reasons") or [{}]
            change = TargetChange(
                self._now(), self._target, target, (found or {}).get("moved_by"), str(reasons[-1].get("text", ""))
            )
            self.changes.append(change)
            self._target = target
        return target

    async def _take(self, step: Step, number: int) -> None:
        if step is Step.START:
            spec = layout.engine_spec(self._options, self._ports, number, start_s=self._options.start_s)
            self._engines[number] = Stage.STARTING
            self._starts[number] = asyncio.create_task(self._supervisor.start([spec]))
            self._write()
        elif step is Step.RECALL:
            await self._router_drain(number, undo=True)
            self._engines[number] = Stage.SERVING
            self._drained_at.pop(number, None)
        elif number in self._starts:
            await self._end(number, left=0)
            return
        else:
            self._engines[number] = Stage.DRAINING
            self._drained_at[number] = time.monotonic()
            await self._router_drain(number)
        self._note(step, number)

    def _take_started(self) -> None:
        """Engines whose start is over; raises `FleetError` for one that did not come up."""
        for number in [number for number, task in self._starts.items() if task.done()]:
            self._starts.pop(number).result()
            self._engines[number] = Stage.SERVING
            self._note(Step.SERVE, number)

    async def _drain(self, number: int) -> None:
        """Ask the router again (it may have been restarted), and end the engine once nobody knows of a request."""
        routed, there = await self._router_drain(number), await self._in_flight(number)
        if routed == 0 and there == 0:
            await self._end(number, left=0)
        elif time.monotonic() - self._drained_at[number] > DRAIN_LIMIT_S:
            await self._end(number, left=max(routed or 0, int(there or 0), 1))

    async def _end(self, number: int, *, left: int) -> None:
        """Out of the file first, so that nobody looks for it, then the process."""
        del self._engines[number]
        self._drained_at.pop(number, None)
        self._write()
        task = self._starts.pop(number, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._supervisor.stop([f"engine-{number}"])
        self._note(Step.END, number, left)

    async def _router_drain(self, number: int, *, undo: bool = False) -> int | None:
        """Set or lift the drain; the requests that the router still has there, None while that is not known."""
        name = urlsplit(self._url(number)).netloc
        path = f"/admin/endpoints/{name}/drain" + ("?undo=true" if undo else "")
        found = await self._json(f"http://{layout.HOST}:{self._ports['admin']}", path, {})
        requests = (found or {}).get("requests")
        return requests if isinstance(requests, int) else None

    async def _in_flight(self, number: int) -> float | None:
        """Requests that the engine has, None while it does not say."""
        try:
            answer = await ask(parse_target(self._url(number)), "/metrics", timeout_s=5.0)
            found = parse(bytes(answer.body).decode(), IN_FLIGHT).samples if answer.status == 200 else {}
        except (TargetError, UnparsableError, UnicodeDecodeError):
            return None
        values = [sample.value for name in IN_FLIGHT for sample in found.get(name, ())]
        return sum(values) if len(values) >= len(IN_FLIGHT) else None

    async def _json(self, url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        try:
            answer = await ask(parse_target(url), path, body, timeout_s=5.0)
        except TargetError:
            return None
        found = answer.document() if answer.status == 200 else None
        return found if isinstance(found, dict) else None

    def _write(self) -> None:
        rows = [layout.endpoint_row(self._options, self._ports, self._model, number) for number in self._engines]
        write_atomically(self._options.endpoints_file, json.dumps({"endpoints": rows}).encode())

    def _note(self, step: Step, number: int, left: int = 0) -> None:
        self.events.append(Event(self._now(), step, number, left))
        log.info("engine", extra={"engine": number, "step": step.value, "engines": len(self._engines)})

    def _now(self) -> float:
        return (time.monotonic() - self._began) * self._options.speed

    def _url(self, number: int) -> str:
        return f"http://{layout.HOST}:{self._ports[f'engine-{number}']}"

    def _planner(self) -> str:
        return f"http://{layout.HOST}:{self._ports['planner']}"
