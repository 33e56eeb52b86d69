"""Plans as jobs: one is computed at a time in a thread, a bounded queue waits, finished ones are kept for a while."""

import asyncio
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Literal

from tonnage_core.errors import TonnageError
from tonnage_core.planning.plan import make_plan
from tonnage_core.planning.spec import PlanSpec
from tonnage_planner.documents import VERSION
from tonnage_planner.metrics import PlanMetrics
from tonnage_runtime.clock import Clock

State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED = ("done", "failed", "cancelled")


class BusyError(TonnageError):
    """As many plans wait as may: answered with 429."""


class UnknownPlanError(TonnageError):
    """No such plan, or it is kept no longer: answered with 404."""


class CancelledPlanError(TonnageError):
    """The plan was asked to stop."""


@dataclass
class Job:
    """One plan: what is asked, how far it is, what came of it. `progress` is a share, 0 to 1."""

    id: str
    spec: PlanSpec
    state: State = "queued"
    progress: float = 0.0
    doing: str = "waiting"
    error: str | None = None
    plan: dict[str, Any] | None = None
    cancelled: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self, share: float, doing: str) -> None:
        """Called from the computing thread between two candidates: the place where a cancelled plan stops."""
        if self.cancelled:
            raise CancelledPlanError("cancelled")
        self.progress, self.doing = share, doing


class PlanJobs:
    """The jobs of this process. `waiting_limit` plans may wait, `kept` ended ones are remembered."""

    def __init__(self, metrics: PlanMetrics, clock: Clock, *, waiting_limit: int, kept: int) -> None:
        self._metrics = metrics
        self._clock = clock
        self._waiting_limit = waiting_limit
        self._kept = kept
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._turn = asyncio.Semaphore(1)
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.waiting.set_function(lambda: sum(job.state == "queued" for job in self._jobs.values()))

    @property
    def metrics(self) -> PlanMetrics:
        """What the planning part counts."""
        return self._metrics

    @property
    def jobs(self) -> list[Job]:
        """Every job known, oldest first."""
        return list(self._jobs.values())

    def get(self, job_id: str) -> Job:
        """The job; raises `UnknownPlanError`."""
        job = self._jobs.get(job_id)
        if job is None:
            raise UnknownPlanError(f"no plan {job_id[:64]!r}: it was never asked for here, or is kept no longer")
        return job

    def start(self, spec: PlanSpec) -> Job:
        """Queue a plan; raises `BusyError` when too many wait."""
        if sum(job.state == "queued" for job in self._jobs.values()) >= self._waiting_limit:
            self._metrics.plans.labels("refused").inc()
            raise BusyError(f"{self._waiting_limit} plans wait already: try again later, or cancel one")
        job = Job(uuid.uuid4().hex, spec)
        self._jobs[job.id] = job
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def cancel(self, job_id: str) -> Job:
        """Ask the plan to stop: at once when it waits, between two candidates when it runs."""
        job = self.get(job_id)
        job.cancelled = True
        if job.state == "queued":
            self._end(job, "cancelled")
        return job

    async def close(self) -> None:
        """Stop every plan and wait for the thread."""
        for job in self._jobs.values():
            job.cancelled = True
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, job: Job) -> None:
        async with self._turn:
            if job.cancelled:
                self._end(job, "cancelled")
                return
            job.state = "running"
            started = self._clock.monotonic()
            try:
                job.plan = await asyncio.to_thread(make_plan, job.spec, VERSION, job.report)
            except CancelledPlanError:
                self._end(job, "cancelled")
                return
            except TonnageError as error:
                job.error = str(error)
                self._end(job, "failed")
                return
            except Exception as error:  # noqa: BLE001 - the task's boundary: the next plan must still run
                job.error = f"internal error: {type(error).__name__}: {error}"
                self._end(job, "failed")
                return
            self._metrics.duration.observe(self._clock.monotonic() - started)
            self._end(job, "done")

    def _end(self, job: Job, state: State) -> None:
        if job.state in ENDED:
            return
        job.state = state
        job.ended.set()
        self._metrics.plans.labels(state).inc()
        over = [one.id for one in self._jobs.values() if one.state in ENDED]
        for job_id in over[: max(0, len(over) - self._kept)]:
            del self._jobs[job_id]
