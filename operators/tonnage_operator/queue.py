"""Keys that wait for a reconcile: each once, at its earliest time, and never in two hands."""

import heapq
import threading
from collections.abc import Callable

Key = tuple[str, str, str]
"""(plural, namespace, name)."""


class WorkQueue:
    """A key that is added while it is worked on comes again afterwards: nothing that happens meanwhile is lost."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._working: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return len(self._due)

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Look at `key` in `after_s` seconds, or earlier when it is due earlier."""
        with self._changed:
            due = self._now() + after_s
            if self._due.get(key, float("inf")) <= due:
                return
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._changed.notify()

    def take(self, wait_s: float) -> Key | None:
        """The key that is due, for the caller alone until `done`; None when there is none within `wait_s`, or ever."""
        with self._changed:
            ends = self._now() + wait_s
            while not self._closed:
                if (key := self._pop()) is not None:
                    self._working.add(key)
                    return key
                left = ends - self._now()
                if left <= 0:
                    return None
                next_due = min((due for key, due in self._due.items() if key not in self._working), default=ends)
                self._changed.wait(max(0.001, min(left, next_due - self._now())))
        return None

    def _pop(self) -> Key | None:
        held = []
        found = None
        while self._heap and self._heap[0][0] <= self._now():
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue
            if key in self._working:
                held.append((due, key))
                continue
            del self._due[key]
            found = key
            break
        for one in held:
            heapq.heappush(self._heap, one)
        return found

    def done(self, key: Key) -> None:
        """The caller has finished with it."""
        with self._changed:
            self._working.discard(key)
            self._changed.notify()

    def failed(self, key: Key, least_s: float, most_s: float, wish_s: float = 0.0) -> float:
        """Try again later: the pause doubles with each failure in a row, and is the server's wish at least."""
        with self._changed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
        pause = max(wish_s, min(most_s, least_s * 2.0 ** min(count - 1, 16)))
        self.add(key, pause)
        return pause

    def succeeded(self, key: Key) -> None:
        """Forget its failures."""
        with self._changed:
            self._failures.pop(key, None)

    def close(self) -> None:
        """Wake everybody; nothing is handed out any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
