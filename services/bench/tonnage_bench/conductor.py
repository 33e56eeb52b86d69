"""Moves jobs on: begins them in order, asks the series for the next run, sends it, takes it back from dead workers.

One look at a time, woken by requests and results and by a tick. All it knows is in the ledger, so that it goes on after
a kill where it was. A job that meets an error of its own fails alone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from tonnage_bench.documents import BenchRequest
from tonnage_bench.errors import LedgerError, QueueError
from tonnage_bench.ledger import ACTIVE, Job, Ledger, Step
from tonnage_bench.metrics import BenchMetrics
from tonnage_bench.ports import Ref, StepQueue
from tonnage_bench.settings import BenchSettings
from tonnage_core.benchmarking.leases import StepAction, step_action
from tonnage_core.benchmarking.series import Series, next_ask
from tonnage_runtime.clock import Clock

logger = logging.getLogger("tonnage.bench")
P = ParamSpec("P")
T = TypeVar("T")
OnEnd = Callable[[], Awaitable[None]]


class Conductor:
    """`start` begins the loop, `close` ends it; `wake` makes it look at once. `after` is awaited after each look."""

    def __init__(
        self, ledger: Ledger, queue: StepQueue, settings: BenchSettings, metrics: BenchMetrics, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._blind = True
        self.trouble: str | None = None
        self.after: OnEnd | None = None

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._loop())

    async def close(self) -> None:
        """End; jobs stay as they are and go on at the next start."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _loop(self) -> None:
        while True:
            try:
                await self.look()
                self.trouble = None
            except LedgerError as error:
                self._metrics.ledger_errors.labels(error.kind).inc()
                self._blind = True
                if self.trouble != str(error):
                    logger.error("jobs stand still", extra={"error": str(error)})
                self.trouble = str(error)
            if self.after is not None:
                await self.after()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.tick_s):
                    await self._woken.wait()
            self._woken.clear()

    async def look(self) -> None:
        """One look at every active job. Raises `LedgerError`."""
        if self._blind:
            # Workers could not be heard: what they are at is still theirs.
            await self._db(self._ledger.extend_leases, self._clock.wall() + self._settings.lease_s)
            self._blind = False
        await self._db(self._ledger.check)
        jobs = await self._db(self._ledger.jobs, ACTIVE)
        running = [job for job in jobs if job.state == "running"]
        busy = {job.target for job in running}
        for job in jobs:
            if job.cancel:
                await self._end(job, "cancelled")
            elif job.state == "running":
                await self._guarded(job)
            elif (
                len(running) < self._settings.concurrent_jobs
                and job.target not in busy
                and await self._db(self._ledger.begin, job.id)
            ):
                running.append(job)
                busy.add(job.target)
                self.wake()

    async def _guarded(self, job: Job) -> None:
        """A job that meets an error of its own fails alone."""
        try:
            await self._advance(job)
        except LedgerError:
            raise
        except Exception as error:
            logger.exception("a job cannot go on", extra={"job": job.id})
            await self._end(job, "failed", f"{type(error).__name__}: {error}")

    async def _advance(self, job: Job) -> None:
        open_step = next((step for step in job.steps if step.state != "done"), None)
        if open_step is not None:
            await self._look_after(job, open_step)
            return
        if job.steps:
            last = (await self._db(self._ledger.results, job.id))[-1][1]
            if (error := last.get("error")) is not None:
                await self._end(job, "failed", str(error.get("message", "the run failed")))
                return
        series = BenchRequest.model_validate(job.request).series()
        ask = next_ask(series, [step.made for step in job.steps])
        if ask is None:
            await self._end(job, "done", points=await self._points(job, series))
            return
        await self._db(self._ledger.add_step, job.id, ask)
        await self._send(job, Ref(job.id, ask.number, 1))

    async def _points(self, job: Job, series: Series) -> str:
        if not series.users:
            return "none"
        found = await self._db(self._ledger.results, job.id)
        if not any(result.get("points") for _, result in found):
            return "none"
        return "kept" if self._settings.planner_url is None else "pending"

    async def _look_after(self, job: Job, step: Step) -> None:
        action = step_action(step.view, self._clock.wall(), self._settings.lease_rules)
        ref = Ref(job.id, step.ask.number, step.attempt)
        if action is StepAction.SEND:
            await self._send(job, ref)
        elif action is StepAction.RETRY:
            logger.warning("a worker is gone", extra={"run": str(ref), "worker": step.worker})
            self._metrics.runs.labels("worker_lost").inc()
            if await self._db(self._ledger.next_attempt, ref.job, ref.number, ref.attempt):
                await self._send(job, Ref(ref.job, ref.number, ref.attempt + 1))
        elif action is StepAction.GIVE_UP:
            self._metrics.runs.labels("worker_lost").inc()
            reason = f"run {step.ask.number} lost its worker {step.attempt} times; the last was {step.worker}"
            await self._end(job, "failed", reason)

    async def _send(self, job: Job, ref: Ref) -> None:
        try:
            await self._queue.put(ref)
        except QueueError as error:
            self._metrics.queue_up.set(0)
            if job.error != str(error):
                await self._db(self._ledger.hold, job.id, str(error))
            return
        self._metrics.queue_up.set(1)
        await self._db(self._ledger.sent, ref.job, ref.number, ref.attempt, self._clock.wall())
        if job.error is not None:
            await self._db(self._ledger.hold, job.id, None)

    async def _end(self, job: Job, state: str, error: str | None = None, points: str = "none") -> None:
        if await self._db(self._ledger.end, job.id, state, self._clock.wall(), error, points):
            self._metrics.ended.labels(state).inc()
            await self._db(self._ledger.forget, self._settings.jobs_kept)
            self.wake()

    async def _db(self, what: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
        return await asyncio.to_thread(what, *values, **named)
