"""One life of the local fleet: start everything, replay a trace under two policies, report, stay up, end everything."""

import asyncio
import contextlib
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tonnage_cli.fleet import layout
from tonnage_cli.fleet.discovery import served_model
from tonnage_cli.fleet.layout import FleetOptions
from tonnage_cli.fleet.status_app import build_app
from tonnage_cli.fleet.supervisor import Supervisor
from tonnage_core.slo import Slo
from tonnage_core.traces import BadLine, TraceRequest
from tonnage_loadgen import report
from tonnage_loadgen.replay import OnProgress, ReplayOptions, replay
from tonnage_runtime.http_app import bind, serve

T = TypeVar("T")


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

    def __init__(self, options: FleetOptions, ports: dict[str, int], supervisor: Supervisor, model: str) -> None:
        self.options = options
        self.ports = ports
        self.supervisor = supervisor
        self.model = model
        self.urls = layout.urls(options, ports)
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
        for policy in dict.fromkeys((self.options.policy, layout.COMPARED_WITH)):
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
        result = await replay(options, workload.requests, on_progress)
        cache = await report.fleet_cache(layout.engine_urls(self.options, self.ports))
        return report.build(
            result, workload.slo, kind="up", cache=cache, bad_lines=workload.bad_lines, trace=workload.trace
        )

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
    status: asyncio.Task[None] | None = None
    stop_status = asyncio.Event()
    try:
        await supervisor.start(layout.engine_specs(options, ports))
        model = await served_model(layout.engine_urls(options, ports)[0])
        session = Session(options, ports, supervisor, model)
        session.stop_on_signals()
        router = layout.router_spec(options, ports, model, policy=options.policy)
        await supervisor.start([router, *layout.service_specs(options, ports, model)])
        app = build_app(supervisor, session.urls)
        status = asyncio.create_task(serve(app, bind(layout.HOST, ports["fleet"]), drain_timeout_s=1, stop=stop_status))
        yield session
    finally:
        stop_status.set()
        if status is not None:
            await status
        await supervisor.stop()
