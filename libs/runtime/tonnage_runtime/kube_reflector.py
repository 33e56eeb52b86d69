"""A thread's copy of some objects of a cluster, by list and watch."""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tonnage_runtime.kube import (
    KubeClient,
    KubeError,
    KubeGoneError,
    Object,
    Resource,
    Watching,
    object_name,
    object_version,
)

log = logging.getLogger(__name__)
JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: a new list at least every `relist_s`; `least_s` between lists, doubled after each failure in a row up
    to `most_s`, with a fifth of jitter so that a fleet does not come back in step. The server ends each watch after
    `watch_s` and the next goes on from there: a connection that died in silence is noticed when that end stays out."""

    relist_s: float = 300.0
    watch_s: float = 30.0
    least_s: float = 1.0
    most_s: float = 120.0

    def pause(self, failures: int, retry_after_s: float | None) -> float:
        """Seconds until the next list."""
        grown = min(self.most_s, self.least_s * 2.0 ** min(failures, 16))
        wish = min(self.most_s, retry_after_s or 0.0)
        return max(grown, wish) * random.uniform(1.0, 1.2)


class Reflector:
    """A thread's copy of the objects that `selector` takes: listed, then watched, listed again on a timer, after an
    error and when the version is too old. `objects` is None until the first list: nothing is known then. They are keyed
    by `key`, by default the name, which tells objects of one namespace apart."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        selector: str,
        *,
        changed: Callable[[], None],
        called: Callable[[str, str], None] = lambda call, outcome: None,
        pace: Pace | None = None,
        key: Callable[[Object], str] = object_name,
    ) -> None:
        self._key = key
        self._client, self._resource, self._selector = client, resource, selector
        self._changed, self._called, self._pace = changed, called, pace or Pace()
        self._stop = threading.Event()
        self._watching: Watching | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{resource.plural}", daemon=True)
        self.objects: dict[str, Object] | None = None
        self.error: KubeError | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch and wait for the thread, at most some seconds."""
        self._stop.set()
        if self._watching is not None:
            self._watching.close()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began, wish = time.monotonic(), None
            try:
                self._follow(self._list())
                failures, self.error = 0, None
            except KubeGoneError:
                self._called("watch", KubeGoneError.outcome)
            except KubeError as error:
                held = time.monotonic() - began > self._pace.most_s
                failures, wish, self.error = 1 if held else failures + 1, error.retry_after_s, error
                log.warning("watch broken", extra={"resource": self._resource.plural, "reason": str(error)})
            except Exception as error:
                # The thread's boundary: an object that nobody expected must not end the watch in silence, since its
                # copy would be taken for the cluster. It is listed anew, counted, and told as any error.
                failures, self.error = failures + 1, KubeError(f"the watch crashed: {type(error).__name__}: {error}")
                self._called("watch", KubeError.outcome)
                log.exception("watch crashed", extra={"resource": self._resource.plural})
            self._stop.wait(self._pace.pause(failures, wish))

    def _list(self) -> str:
        try:
            items, version = self._client.list(self._resource, self._selector)
        except KubeError as error:
            self._called("list", error.outcome)
            raise
        self._called("list", "ok")
        self.objects = {self._key(item): item for item in items}
        self._changed()
        return version

    def _follow(self, version: str) -> None:
        """Watches one after another until the timer, an error, or the end of one before half its time: it was broken
        off, and a list comes after a pause."""
        ends = time.monotonic() + self._pace.relist_s
        while not self._stop.is_set() and (left_s := ends - time.monotonic()) > 0:
            asked_s, began = min(self._pace.watch_s, left_s), time.monotonic()
            version = self._watch(version, asked_s, ends)
            if time.monotonic() - began < asked_s / 2:
                return

    def _watch(self, version: str, seconds: float, ends: float) -> str:
        """The events of one watch; the version that the next goes on from."""
        try:
            self._watching = self._client.watch(self._resource, self._selector, version, seconds)
            if self._stop.is_set():
                return version
            for kind, item in self._watching:
                self._take(kind, item)
                version = object_version(item) or version
                if self._stop.is_set() or time.monotonic() > ends:
                    break
            return version
        except KubeGoneError:
            raise
        except KubeError as error:
            self._called("watch", error.outcome)
            raise
        finally:
            if self._watching is not None:
                self._watching.close()
            self._watching = None

    def _take(self, kind: str, item: Object) -> None:
        if kind == "BOOKMARK":
            return
        name, known = self._key(item), dict(self.objects or {})
        if kind == "DELETED":
            known.pop(name, None)
        else:
            known[name] = item
        self.objects = known
        self._changed()
