"""One life of the local fleet: start everything, replay a trace under two policies, report, stay up, end everything.

A fleet that is scaled replays under its own policy alone: the two runs would have had other engines.
"""

import asyncio
import contextlib
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tonnage_cli.fleet import layout
from tonnage_cli.fleet.adapters import keep_loaded, load_missing
from tonnage_cli.fleet.discovery import served_model
from tonnage_cli.fleet.layout import FleetOptions
from tonnage_cli.fleet.scaler import FleetScaler
from tonnage_cli.fleet.standing import ReplayStanding
from tonnage_cli.fleet.status_app import build_app
from tonnage_cli.fleet.supervisor import Supervisor
from tonnage_core.slo import Slo
from tonnage_core.traces import BadLine, TraceRequest
from tonnage_loadgen import report
from tonnage_loadgen.replay import OnProgress, ReplayOptions, replay
from tonnage_runtime.http_app import bind, serve

T = TypeVar("T")
SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Workload:
    """What to replay, and the SLO it is judged by."""

    trace: str
    requests: Sequence[TraceRequest]
    bad_lines: Sequence[BadLine]
    max_input: int | None
    prompt_format: str
    slo: Slo


class Session:
    """A running fleet. Use `running` to enter it: whatever happens inside, every child is ended."""

    def __init__(
        self,
        options: FleetOptions,
        ports: dict[str, int],
        supervisor: Supervisor,
        model: str,
        scaler: FleetScaler | None = None,
    ) -> None:
        self.options = options
        self.scaler = scaler
        self.ports = ports
        self.supervisor = supervisor
        self.model = model
        self.urls = layout.urls(options, ports)
        self.standing = ReplayStanding()
        self._stopping = asyncio.Event()

    def stop_on_signals(self) -> None:
        """SIGINT and SIGTERM end the session in order."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stopping.set)

    @property
    def stopped(self) -> bool:
        """A signal has asked for the end."""
        return self._stopping.is_set()

    async def until_stopped(self) -> None:
        """Return on SIGINT or SIGTERM; raise when a child keeps dying."""
        await self.guarded(self._stopping.wait())

    async def guarded(self, work: Awaitable[T]) -> T | None:
        """The result of `work`, None when stopped by a signal first; raises when the fleet fails meanwhile."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({task, stopping, self.supervisor.failed}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self.supervisor.failed.done():
            raise self.supervisor.failed.result()
        return None if task.cancelled() else task.result()

    async def compare(self, workload: Workload, on_policy: Callable[[str], OnProgress | None]) -> dict[str, Any]:
        """Replay the workload under the fleet's policy and the one compared with; report documents by policy.

        Each policy's prompts carry a cache salt of their own, so that neither finds the other's blocks.
        """
        documents: dict[str, Any] = {}
        compared = (self.options.policy, layout.COMPARED_WITH) if self.scaler is None else (self.options.policy,)
        for policy in dict.fromkeys(compared):
            async with self._router_for(policy) as url:
                documents[policy] = await self._replay(policy, url, workload, on_policy(policy))
        return documents

    async def _replay(
        self, policy: str, url: str, workload: Workload, on_progress: OnProgress | None
    ) -> dict[str, Any]:
        scale = 1.0 if self.options.engine_urls else self.options.speed
        options = ReplayOptions(
            url=url,
            model=self.model,
            speed=self.options.speed,
            time_scale=scale,
            max_input=workload.max_input,
            prompt_format=workload.prompt_format,
            seed=self.options.seed,
            cache_salt=self._salt(policy),
        )
        told = self.standing.follow(workload.trace, policy, len(workload.requests), self.options.speed, on_progress)
        try:
            result = await replay(options, workload.requests, told)
        finally:
            self.standing.ended()
        cache = await report.fleet_cache(self.live_engines())
        if self.scaler is not None and cache is not None:
            cache = replace(cache, blocks=cache.blocks // len(self.live_engines()) * self.scaler.peak)
        return report.build(
            result, workload.slo, kind="up", cache=cache, bad_lines=workload.bad_lines, trace=workload.trace
        )

    def live_engines(self) -> list[str]:
        """The engines that serve now."""
        return layout.engine_urls(self.options, self.ports) if self.scaler is None else self.scaler.urls()

    async def settle(self) -> bool:
        """Wait until a scaled fleet is as small as it may be, at most for what the planner's hold and a drain take;
        False when it is not by then."""
        limit_s = 3 * self.options.scale_down_after_s / self.options.speed + SETTLE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                if self.scaler is not None:
                    await self.scaler.rested.wait()
                return True
        return False

    def _salt(self, policy: str) -> str:
        """The policy's own salt; given engines may remember an earlier run, so theirs is new each time."""
        run = secrets.token_hex(4) if self.options.engine_urls else str(self.options.seed)
        return f"{policy}-{run}"

    @contextlib.asynccontextmanager
    async def _router_for(self, policy: str) -> AsyncIterator[str]:
        """The URL of a router with this policy: the one that stays, or a second one for as long as it is needed."""
        if policy == self.options.policy:
            yield str(self.urls["router"])
            return
        ports = layout.fresh_compared_ports(self.options, self.ports)
        spec = layout.router_spec(self.options, ports, self.model, policy=policy, compared=True)
        await self.supervisor.start([spec])
        try:
            yield f"http://{layout.HOST}:{ports['compared_router']}"
        finally:
            await self.supervisor.stop([spec.name])


@contextlib.asynccontextmanager
async def running(options: FleetOptions) -> AsyncIterator[Session]:
    """A fleet with every part ready; on the way out every child is ended."""
    ports = layout.allocate_ports(options)
    supervisor = Supervisor(options.state_dir / "logs")
    tasks: list[asyncio.Task[None]] = []
    stop_status = asyncio.Event()
    try:
        await supervisor.start(layout.engine_specs(options, ports))
        model = await served_model(layout.engine_urls(options, ports)[0])
        scaler = None if options.max_engines is None else FleetScaler(options, ports, supervisor, model)
        session = Session(options, ports, supervisor, model, scaler)
        session.stop_on_signals()
        router = layout.router_spec(options, ports, model, policy=options.policy)
        await supervisor.start([router, *layout.service_specs(options, ports, model)])
        if options.adapters:
            await asyncio.gather(*(load_missing(url, options.adapters) for url in session.live_engines()))
            tasks.append(asyncio.create_task(keep_loaded(session.live_engines, options.adapters)))
        if scaler is not None:
            tasks.append(asyncio.create_task(scaler.run()))
        app = build_app(supervisor, session.urls, session.standing.document)
        sock = bind(layout.HOST, ports["fleet"])
        status = asyncio.create_task(serve(app, sock, drain_timeout_s=1, stop=stop_status))
        try:
            yield session
        finally:
            stop_status.set()
            await status
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await supervisor.stop()
