"""The bench as callers see it: jobs submitted, looked at, cancelled; results, report, points."""

import asyncio
import uuid
from dataclasses import asdict
from typing import Any, Literal, cast

from tonnage_bench.adapters.planner_http import post_points
from tonnage_bench.conductor import Conductor
from tonnage_bench.documents import BenchRequest, JobDocument, RunDocument
from tonnage_bench.errors import BusyError, LedgerError, NotThereError
from tonnage_bench.ledger import Job, Ledger
from tonnage_bench.metrics import BenchMetrics
from tonnage_bench.ports import StepRunner
from tonnage_bench.report import points_of, report_of
from tonnage_bench.settings import BenchSettings
from tonnage_bench.targets import check_target, host_of
from tonnage_core.benchmarking.arrivals import LONGEST_S
from tonnage_core.benchmarking.series import Ask, most_runs, sure_asks
from tonnage_core.errors import BadInputError
from tonnage_runtime.access import OwnToken
from tonnage_runtime.clock import Clock
from tonnage_runtime.tls import client_context


class BenchService:
    """What the routes call."""

    def __init__(
        self,
        ledger: Ledger,
        conductor: Conductor,
        runner: StepRunner,
        settings: BenchSettings,
        metrics: BenchMetrics,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._conductor = conductor
        self._runner = runner
        self._submitting = asyncio.Lock()
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._next_post_s = 0.0
        self._token = OwnToken(settings.api_token_file) if settings.api_token_file else None
        self._trusted = client_context(settings.api_ca_file)
        conductor.after = self.send_points
        metrics.jobs.attach(self._count)

    async def submit(self, request: BenchRequest) -> JobDocument:
        """Keep a job. Raises `BadInputError`, `BusyError`, `LedgerError`."""
        series = request.series()
        for url in filter(None, (request.url, request.baseline_url, *request.watch_urls)):
            await check_target(url, self._settings.targets)
        job = uuid.uuid4().hex
        target = host_of(request.url)[1]
        fields = request.model_dump(mode="json")
        async with self._submitting:
            if await asyncio.to_thread(self._ledger.waiting) >= self._settings.jobs_waiting:
                raise BusyError(f"{self._settings.jobs_waiting} jobs wait already: try again later, or cancel one")
            await self._check(fields | {"job": job}, sure_asks(series))
            await asyncio.to_thread(self._ledger.submit, job, fields, target, self._clock.wall())
        self._conductor.wake()
        return await self.look(job)

    async def _check(self, fields: dict[str, Any], asks: list[Ask]) -> None:
        """Raises `BadInputError` for a job with a run that cannot be made, before it waits for its turn to say so."""
        longest_s = min(self._settings.run_limit_s, LONGEST_S)
        question = {"request": fields, "asks": [asdict(ask) for ask in asks], "longest_s": longest_s}
        why = await self._runner.refused(question)
        if why is not None:
            raise BadInputError(why)

    async def look(self, job: str) -> JobDocument:
        """How far it is. Raises `UnknownJobError`."""
        return _document(await asyncio.to_thread(self._ledger.job, job))

    async def all(self) -> list[JobDocument]:
        """Every job, oldest first."""
        return [_document(job) for job in await asyncio.to_thread(self._ledger.jobs)]

    async def cancel(self, job: str) -> JobDocument:
        """Wish its end; what is done is kept. Raises `UnknownJobError`."""
        await asyncio.to_thread(self._ledger.job, job)
        await asyncio.to_thread(self._ledger.ask_cancel, job)
        self._conductor.wake()
        return await self.look(job)

    async def report(self, job: str) -> dict[str, Any]:
        """The report so far. Raises `UnknownJobError`, `NotThereError`."""
        kept = await asyncio.to_thread(self._ledger.job, job)
        results = await asyncio.to_thread(self._ledger.results, job)
        found = report_of(BenchRequest.model_validate(kept.request).series(), results)
        if found is None:
            raise NotThereError(f"job {job} is {kept.state}: no run of it is done{_because(kept)}")
        return found | {"job": _document(kept).model_dump(mode="json", exclude={"runs"})}

    async def run(self, job: str, number: int) -> dict[str, Any]:
        """What one run measured. Raises `UnknownJobError`, `NotThereError`."""
        await asyncio.to_thread(self._ledger.job, job)
        for step, result in await asyncio.to_thread(self._ledger.results, job):
            if step.ask.number == number:
                return result
        raise NotThereError(f"run {number} of job {job} is not done")

    async def points(self, job: str) -> str:
        """Its bench points as CSV. Raises `UnknownJobError`, `NotThereError`."""
        await asyncio.to_thread(self._ledger.job, job)
        text = points_of(await asyncio.to_thread(self._ledger.results, job))
        if not text:
            raise NotThereError(
                f"job {job} has no bench points: they come of sweep_users with gpu and catalogue_model named"
            )
        return text

    async def send_points(self) -> None:
        """Bring the points of ended jobs to the planner; what does not answer is asked again later."""
        planner = self._settings.planner_url
        if planner is None or self._clock.monotonic() < self._next_post_s:
            return
        try:
            for job in await asyncio.to_thread(self._ledger.unsent_points):
                points = points_of(await asyncio.to_thread(self._ledger.results, job))
                outcome = await post_points(planner, points, self._token.header() if self._token else "", self._trusted)
                self._metrics.points.labels(outcome).inc()
                if outcome == "unreachable":
                    self._next_post_s = self._clock.monotonic() + self._settings.resend_s
                    return
                await asyncio.to_thread(self._ledger.points_sent, job, outcome)
        except LedgerError as error:
            self._metrics.ledger_errors.labels(error.kind).inc()

    def not_ready(self) -> str | None:
        """Why jobs stand still."""
        return self._conductor.trouble

    def _count(self) -> dict[str, int] | None:
        try:
            return self._ledger.count()
        except LedgerError:
            return None


def _because(job: Job) -> str:
    return f" ({job.error})" if job.error else ""


def _most_runs(job: Job) -> int:
    """Runs the job may take; those it has, when its request is of another version and cannot be read."""
    try:
        return most_runs(BenchRequest.model_validate(job.request).series())
    except ValueError:
        return len(job.steps)


def _document(job: Job) -> JobDocument:
    runs = [
        RunDocument(
            number=step.ask.number,
            kind=step.ask.kind,
            rate_rps=step.ask.rate,
            users=step.ask.users,
            reason=step.ask.reason,
            state=cast(Literal["waiting", "claimed", "done", "cancelled"], step.state),
            attempt=step.attempt,
            worker=step.worker,
            elapsed_s=step.elapsed_s,
            met=step.met,
        )
        for step in job.steps
    ]
    return JobDocument(
        id=job.id,
        state=cast(Literal["queued", "running", "done", "failed", "cancelled"], job.state),
        created_s=job.created_s,
        ended_s=job.ended_s,
        url=str(job.request.get("url", job.target)),
        error=job.error,
        runs_done=sum(run.state == "done" for run in runs),
        runs_most=_most_runs(job),
        runs=runs,
        points=cast(Literal["none", "kept", "pending", "sent", "refused"], job.points),
    )
