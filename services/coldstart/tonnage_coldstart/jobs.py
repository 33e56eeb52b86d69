"""Staging jobs: one a URI at a time, a few at once, in threads; asked about by id."""

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tonnage_coldstart.documents import stage_report, standing_document
from tonnage_coldstart.errors import ColdstartError
from tonnage_coldstart.metrics import ColdstartMetrics
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.snapshot import Source
from tonnage_coldstart.sources.shown import shown_uri
from tonnage_coldstart.staging import Staged, Stager
from tonnage_core.coldstart.errors import QuotaExceededError
from tonnage_core.errors import BadInputError, TonnageError
from tonnage_runtime.clock import Clock

log = logging.getLogger("tonnage.coldstart")

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"


@dataclass
class Job:
    """One request to stage; `state` goes waiting, running, then done or failed."""

    id: str
    uri: str
    """As it was asked for; the document shows it without credentials and query."""
    progress: Progress
    verify: bool
    pin: bool
    state: str = WAITING
    staged: Staged | None = None
    outcome: str | None = None
    error: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def document(self) -> dict[str, Any]:
        """`tonnage.stage_job/1`."""
        return {
            "schema": "tonnage.stage_job/1",
            "version": 1,
            "id": self.id,
            "uri": shown_uri(self.uri),
            "state": self.state,
            "progress": standing_document(self.progress.standing()),
            "report": None if self.staged is None else stage_report(self.staged),
            "error": None if self.error is None else {"message": self.error, "type": self.outcome},
        }


class Jobs:
    """The service's jobs. A second request for a URI that is being staged joins the first."""

    def __init__(
        self,
        stager: Stager,
        open_source: Callable[[str], Source],
        metrics: ColdstartMetrics,
        clock: Clock,
        *,
        at_once: int,
        kept: int,
    ) -> None:
        self._stager = stager
        self._open_source = open_source
        self._metrics = metrics
        self._clock = clock
        self._kept = kept
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="stage")
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def submit(self, uri: str, *, verify: bool = False, pin: bool = False) -> Job:
        """Start or join a job. Raises `BadInputError` for a URI no source serves."""
        source = self._open_source(uri)
        with self._lock:
            for job in self._jobs.values():
                if job.uri == uri and not job.ended.is_set() and (job.verify, job.pin) == (verify, pin):
                    source.close()
                    return job
            job = Job(uuid.uuid4().hex[:16], uri, Progress(self._clock.monotonic), verify, pin)
            self._jobs[job.id] = job
            self._forget_old()
        self._pool.submit(self._run, job, source)
        return job

    def get(self, job_id: str) -> Job | None:
        """A job by id."""
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """Every job still known, oldest first."""
        with self._lock:
            return list(self._jobs.values())

    def count(self, state: str) -> int:
        """Jobs in a state."""
        return sum(1 for job in self.all() if job.state == state)

    def close(self) -> None:
        """Stop transfers (they resume at the next start) and wait for their threads."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job, source: Source) -> None:
        job.state = RUNNING
        try:
            job.staged = self._stager.stage(source, job.progress, self._stop, verify=job.verify, pin=job.pin)
            job.state, job.outcome = DONE, "hit" if job.staged.cache_hit else "staged"
        except TonnageError as error:
            job.state, job.outcome, job.error = FAILED, _outcome(error), str(error)
        except Exception as error:  # the job is the boundary: the service goes on
            log.exception("staging failed", extra={"job": job.id})
            job.state, job.outcome, job.error = FAILED, "error", f"{type(error).__name__}: {error}"
        finally:
            source.close()
            self._count(job, source.kind)
            job.ended.set()

    def _count(self, job: Job, kind: str) -> None:
        standing = job.progress.standing()
        self._metrics.stages.labels(job.outcome or "error").inc()
        peer_bytes = 0 if job.staged is None else job.staged.peer_bytes
        self._metrics.source_bytes.labels(kind).inc(standing.source_bytes - peer_bytes)
        self._metrics.source_bytes.labels("peer").inc(peer_bytes)
        self._metrics.retries.inc(standing.retries)
        if job.staged is not None and not job.staged.cache_hit:
            for phase, seconds in job.staged.phases.items():
                if seconds is not None:
                    self._metrics.phase_duration.labels(phase.removesuffix("_s")).observe(seconds)
        log.info(
            "staged" if job.state == DONE else "staging failed",
            extra={"job": job.id, "outcome": job.outcome, "bytes": standing.done_bytes, "error": job.error},
        )

    def _forget_old(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.ended.is_set()]
        for job_id in ended[: max(0, len(self._jobs) - self._kept)]:
            del self._jobs[job_id]


def _outcome(error: TonnageError) -> str:
    if isinstance(error, ColdstartError):
        return error.outcome
    if isinstance(error, QuotaExceededError):
        return "quota"
    return "bad_input" if isinstance(error, BadInputError) else "corrupt"
