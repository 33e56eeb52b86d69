"""The fleet's store from the threads of transfers: a loop of its own runs the store's coroutines."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tonnage_runtime.store import Lease, Store, StoreUnavailableError

T = TypeVar("T")
ANSWER_S = 10.0


class SharedStore:
    """A store's calls, blocking; raises `StoreError` as the store does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet-store", daemon=True)
        self._thread.start()

    def get(self, key: str) -> bytes | None:
        """The value of a key."""
        return self._run(self._store.get(key))

    def compare_and_set(self, key: str, expected: bytes | None, value: bytes, *, ttl_s: float) -> bool:
        """Put the value if the present one is `expected`."""
        return self._run(self._store.compare_and_set(key, expected, value, ttl_s=ttl_s))

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        """Take a lease; None while somebody holds it."""
        return self._run(self._store.acquire(name, owner, ttl_s=ttl_s))

    def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Extend a lease; False when it is no longer ours."""
        return self._run(self._store.renew(lease, ttl_s=ttl_s))

    def release(self, lease: Lease) -> bool:
        """Give a lease up."""
        return self._run(self._store.release(lease))

    def close(self) -> None:
        """Close the store's connections and end the loop."""
        try:
            self._run(self._store.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        waiting = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return waiting.result(ANSWER_S)
        except TimeoutError as error:
            waiting.cancel()
            raise StoreUnavailableError("of the fleet", f"no answer in {ANSWER_S:g} s") from error
