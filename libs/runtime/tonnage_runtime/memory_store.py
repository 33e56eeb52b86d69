"""The store in process: for one replica, `tonnage up` and tests. Lifetimes follow the clock that is passed in."""

import asyncio
import re
import uuid
from collections import deque
from dataclasses import dataclass, field

from tonnage_runtime.clock import Clock
from tonnage_runtime.store import START, Cursor, Lease, Page, StoreKindError, has_lost

_COUNT = re.compile(rb"0|-?[1-9][0-9]*")
_SWEEP_FROM = 1024
"""Fewest values at which ended ones are looked for."""


@dataclass
class _Value:
    data: bytes | int
    ends_s: float | None


@dataclass
class _Stream:
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    head: int = 0
    entries: deque[tuple[int, bytes]] = field(default_factory=deque)
    ends_s: float | None = None
    grown: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryStore:
    """Everything in dictionaries. Every method runs to its end without another task between, so each is atomic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[str, _Value] = {}
        self._sweep_at = _SWEEP_FROM
        self._leases: dict[str, tuple[Lease, float]] = {}
        self._tokens: dict[str, int] = {}
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        """Values held, ended ones that were not looked for yet included."""
        return len(self._values)

    async def get(self, key: str) -> bytes | None:
        """The value, or None when there is none or its lifetime is over."""
        found = self._live(key)
        if found is None:
            return None
        return found.data if isinstance(found.data, bytes) else str(found.data).encode()

    async def set(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        """Put the value; it lives `ttl_s`, or for ever."""
        self._put(key, value, ttl_s)

    async def delete(self, key: str) -> bool:
        """Remove the key; False when there was none."""
        there = self._live(key) is not None
        self._values.pop(key, None)
        return there

    async def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, ttl_s: float | None = None
    ) -> bool:
        """Put the value only if the present one is `expected`."""
        if await self.get(key) != expected:
            return False
        self._put(key, value, ttl_s)
        return True

    async def increment(self, key: str, by: int = 1, *, ttl_s: float) -> int:
        """Add to a counter and return it; `StoreKindError` if the key holds something else."""
        found = self._live(key)
        if found is None:
            found = self._put(key, 0, ttl_s)
        count = _as_count(key, found.data) + by
        found.data = count
        return count

    async def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        """Take the lease; None while somebody holds it."""
        if self._holder(name) is not None:
            return None
        token = max(self._tokens.get(name, 0) + 1, int(self._clock.wall() * 1e6))
        self._tokens[name] = token
        lease = Lease(name, owner, token)
        self._leases[name] = (lease, self._clock.monotonic() + ttl_s)
        return lease

    async def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Extend the lease; False when it is no longer ours."""
        if self._holder(lease.name) != lease:
            return False
        self._leases[lease.name] = (lease, self._clock.monotonic() + ttl_s)
        return True

    async def release(self, lease: Lease) -> bool:
        """Give the lease up; False when it was no longer ours."""
        if self._holder(lease.name) != lease:
            return False
        del self._leases[lease.name]
        return True

    async def append(self, stream: str, entry: bytes, *, keep: int, ttl_s: float | None = None) -> str:
        """Add an entry, of which the newest `keep` are kept; the cursor after it."""
        found = self._stream(stream) or self._streams.setdefault(stream, _Stream())
        if ttl_s is not None:
            found.ends_s = self._clock.monotonic() + ttl_s
        found.head += 1
        found.entries.append((found.head, entry))
        while len(found.entries) > keep:
            found.entries.popleft()
        found.grown.set()
        found.grown = asyncio.Event()
        return str(Cursor(found.epoch, found.head))

    async def read(self, stream: str, after: str = START, *, limit: int = 1000, wait_s: float = 0.0) -> Page:
        """Entries after the cursor; with none there yet, waits up to `wait_s` for the first."""
        cursor = Cursor.parse(after)
        page = self._page(stream, cursor, limit)
        if page.entries or page.lost or wait_s <= 0:
            return page
        try:
            async with asyncio.timeout(wait_s):
                await self._streams.setdefault(stream, _Stream()).grown.wait()
        except TimeoutError:
            pass
        return self._page(stream, cursor, limit)

    async def close(self) -> None:
        """Nothing to close."""

    def _page(self, name: str, after: Cursor | None, limit: int) -> Page:
        stream = self._stream(name)
        if stream is None or stream.head == 0:
            return Page((), START, has_lost(after, None, 0, 0))
        lost = has_lost(after, stream.epoch, stream.entries[0][0], stream.head)
        since = 0 if after is None or lost else after.sequence
        found = [entry for entry in stream.entries if entry[0] > since][:limit]
        last = found[-1][0] if found else stream.head
        return Page(tuple(entry for _, entry in found), str(Cursor(stream.epoch, last)), lost)

    def _stream(self, name: str) -> _Stream | None:
        found = self._streams.get(name)
        if found is not None and found.ends_s is not None and found.ends_s <= self._clock.monotonic():
            del self._streams[name]
            return None
        return found

    def _live(self, key: str) -> _Value | None:
        found = self._values.get(key)
        if found is not None and found.ends_s is not None and found.ends_s <= self._clock.monotonic():
            del self._values[key]
            return None
        return found

    def _put(self, key: str, data: bytes | int, ttl_s: float | None) -> _Value:
        if len(self._values) >= self._sweep_at:
            now = self._clock.monotonic()
            self._values = {k: v for k, v in self._values.items() if v.ends_s is None or v.ends_s > now}
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._values))
        value = self._values[key] = _Value(data, None if ttl_s is None else self._clock.monotonic() + ttl_s)
        return value

    def _holder(self, name: str) -> Lease | None:
        lease, ends_s = self._leases.get(name, (None, 0.0))
        return lease if ends_s > self._clock.monotonic() else None


def _as_count(key: str, data: bytes | int) -> int:
    if isinstance(data, bytes) and not _COUNT.fullmatch(data):
        raise StoreKindError(f"key {key!r} holds no counter: use another key")
    return int(data)
