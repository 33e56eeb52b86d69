"""The service's side of a run: hands it out, hears that its worker lives, keeps its result. The ledger decides."""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tonnage_bench.errors import DeskError, LedgerError, UnknownJobError
from tonnage_bench.ledger import Ledger
from tonnage_bench.metrics import BenchMetrics
from tonnage_bench.ports import Ref, Work
from tonnage_bench.settings import BenchSettings
from tonnage_bench.targets import key_for
from tonnage_runtime.access import SharedToken
from tonnage_runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")


class LedgerDesk:
    """A `Desk` over the ledger. `wake` is called when something changed that the conductor should look at. Raises
    `SettingsError` for a target's key in a file without one."""

    def __init__(
        self, ledger: Ledger, settings: BenchSettings, metrics: BenchMetrics, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._keys = {host: SharedToken(key) for host, key in settings.target_keys.items()}
        self._metrics = metrics
        self._clock = clock
        self._wake = wake

    async def claim(self, ref: Ref, worker: str) -> Work | None:
        """The run, once."""
        return await self._asked(self._claim, ref, worker)

    async def beat(self, ref: Ref, worker: str, elapsed_s: float) -> bool:
        """Lengthens the lease."""
        until_s = self._clock.wall() + self._settings.lease_s
        place = (ref.job, ref.number, ref.attempt)
        return await self._asked(self._ledger.beat, *place, worker, until_s, elapsed_s)

    async def finish(self, ref: Ref, worker: str, result: dict[str, Any]) -> bool:
        """Keeps the result; a run whose worker failed for reasons of its own is tried again."""
        kept = await self._asked(self._finish, ref, worker, result)
        self._metrics.runs.labels("done" if kept else "refused").inc()
        self._wake()
        return kept

    def _claim(self, ref: Ref, worker: str) -> Work | None:
        until_s = self._clock.wall() + self._settings.lease_s
        try:
            job = self._ledger.job(ref.job)
        except UnknownJobError:
            return None
        if not self._ledger.claim(ref.job, ref.number, ref.attempt, worker, until_s):
            self._metrics.runs.labels("repeated").inc()
            return None
        step = next(each for each in self._ledger.job(ref.job).steps if each.ask.number == ref.number)
        question = {
            "request": job.request | {"job": job.id},
            "ask": {name: getattr(step.ask, name) for name in step.ask.__dataclass_fields__},
            "headers": self._headers(job.request["url"]),
            "baseline_headers": self._headers(job.request["baseline_url"]),
        }
        return Work(question, self._settings.lease_s, self._settings.run_limit_s)

    def _headers(self, url: str | None) -> list[list[str]]:
        """The key of that host alone."""
        key = None if url is None else key_for(url, self._keys)
        return [] if key is None else [["authorization", f"Bearer {key}"]]

    def _finish(self, ref: Ref, worker: str, result: dict[str, Any]) -> bool:
        place = (ref.job, ref.number, ref.attempt)
        failure = result.get("error")
        if failure and failure.get("kind") == "failed" and ref.attempt < self._settings.attempts:
            return self._ledger.next_attempt(*place)
        return self._ledger.finish(*place, worker, result.get("met"), result)

    async def _asked(self, what: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(what, *values, **named)
        except LedgerError as error:
            self._metrics.ledger_errors.labels(error.kind).inc()
            raise DeskError(str(error)) from error
