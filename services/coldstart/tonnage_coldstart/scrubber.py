"""Scrubs on a timer or on request; a damaged snapshot is fetched again from where it came."""

import logging
import threading
from typing import Any

from tonnage_coldstart.cache.scrub import Damage, scrub
from tonnage_coldstart.cache.store import Cached, NodeCache
from tonnage_coldstart.errors import ColdstartError
from tonnage_coldstart.jobs import Jobs
from tonnage_coldstart.metrics import ColdstartMetrics
from tonnage_core.errors import TonnageError

log = logging.getLogger("tonnage.coldstart")


class Scrubber:
    """One scrub at a time."""

    def __init__(self, cache: NodeCache, jobs: Jobs, metrics: ColdstartMetrics, interval_s: float) -> None:
        self._cache = cache
        self._jobs = jobs
        self._metrics = metrics
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="scrub", daemon=True)

    def start(self) -> None:
        """Begin the timer."""
        if self._interval_s > 0:
            self._thread.start()

    def close(self) -> None:
        """End the timer and a scrub under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def run(self, key: str | None = None, *, refetch: bool = True) -> list[dict[str, Any]]:
        """Scrub one snapshot or all; each result names the damage, and the job that fetches it again."""
        with self._lock:
            keys = [cached.key for cached in self._cache.entries()] if key is None else [key]
            return [self._one(one, refetch) for one in keys if not self._stop.is_set()]

    def _one(self, key: str, refetch: bool) -> dict[str, Any]:
        with self._cache.reading(key, self._stop) as cached:
            damage = scrub(cached, stopped=self._stop.is_set, on_bytes=self._metrics.scrubbed_bytes.inc)
        self._metrics.scrubs.labels("damaged" if damage else "good").inc()
        job = self._refetch(cached, damage) if damage and refetch else None
        return {
            "key": key,
            "damaged": bool(damage),
            "files": [{"name": d.name, "chunks": d.chunks, "problem": d.problem} for d in damage],
            "job": job,
        }

    def _refetch(self, cached: Cached, damage: list[Damage]) -> str | None:
        log.warning("scrub found damage", extra={"key": cached.key, "files": [one.name for one in damage]})
        try:
            return self._jobs.submit(cached.manifest.uri, verify=True).id
        except TonnageError as error:
            log.error("the damage cannot be fetched again", extra={"key": cached.key, "error": str(error)})
            return None

    def _loop(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.run()
            except ColdstartError as error:
                log.warning("scrub ended early", extra={"error": str(error)})
