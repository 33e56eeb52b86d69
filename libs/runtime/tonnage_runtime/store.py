"""The store that replicas share, as a port: keys with a lifetime, counters, leases, streams of changes.

Two adapters pass one conformance suite: `memory_store` in process, `redis_store` over a Redis-protocol server. What is
kept here can be made again by its owner (a lease, a counter, a view of a cache): a server that keeps nothing over its
restart is enough.

- A counter's lifetime starts when it is made and is not extended: a fixed window for quotas.
- A lease carries a fencing token that grows with every acquisition, also over a restart of the server: whoever guards
  the thing the lease is for refuses a token smaller than one it has seen.
- A stream keeps its newest entries and gives each reader a cursor. A reader that fell behind what is kept, or whose
  server lost the stream, is told so (`lost`) and must take a full copy from its source: no change is missed in silence.
"""

from dataclasses import dataclass
from typing import Protocol

from tonnage_core.errors import BadInputError, TonnageError


class StoreError(TonnageError):
    """The store refused a command."""


class StoreUnavailableError(StoreError):
    """The store does not answer: decide without it and say so, then try again; the connection repairs itself."""

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"store {where} is not available: {detail}")
        self.where = where


class StoreKindError(StoreError):
    """A key holds another kind of value than the command is for (a text where a counter is expected)."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to do one thing for a while."""

    name: str
    owner: str
    token: int
    """Grows with every acquisition of the name."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a reader gets of a stream."""

    entries: tuple[bytes, ...]
    """Oldest first."""
    cursor: str
    """Pass it as `after` to read on."""
    lost: bool
    """Entries between the reader's cursor and these are gone: take a full copy, then read on."""


START = ""
"""Cursor of a reader that knows nothing: it reads from the oldest entry kept."""


class Store(Protocol):
    """Every method raises `StoreUnavailableError` when the store does not answer in time. Times are seconds (> 0)."""

    async def get(self, key: str) -> bytes | None:
        """The value, or None when there is none or its lifetime is over."""
        ...

    async def set(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        """Put the value; it lives `ttl_s`, or for ever. Replaces a former lifetime."""
        ...

    async def delete(self, key: str) -> bool:
        """Remove the key; False when there was none."""
        ...

    async def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, ttl_s: float | None = None
    ) -> bool:
        """Put the value only if the present one is `expected` (None: there is none); False when it is not."""
        ...

    async def increment(self, key: str, by: int = 1, *, ttl_s: float) -> int:
        """Add to a counter and return it; a new one starts at 0 and lives `ttl_s` from now. `StoreKindError` if the
        key holds something else.
        """
        ...

    async def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        """Take the lease; None while somebody, `owner` included, holds it."""
        ...

    async def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Extend the lease to `ttl_s` from now; False when it is no longer ours: stop what it was for."""
        ...

    async def release(self, lease: Lease) -> bool:
        """Give the lease up; False when it was no longer ours, and then nothing changes."""
        ...

    async def append(self, stream: str, entry: bytes, *, keep: int, ttl_s: float | None = None) -> str:
        """Add an entry, of which at least the newest `keep` are kept; the cursor after it. The stream, with what it
        keeps, lives `ttl_s` after its last append, or for ever."""
        ...

    async def read(self, stream: str, after: str = START, *, limit: int = 1000, wait_s: float = 0.0) -> Page:
        """Entries after the cursor; with none there yet, waits up to `wait_s` for the first."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in one life of a stream. A stream that its server lost begins another life, with another epoch."""

    epoch: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> "Cursor | None":
        """The cursor, None for `START`; raises `BadInputError` for anything no `read` gave."""
        if text == START:
            return None
        epoch, _, sequence = text.partition(":")
        if not epoch or not (sequence.isascii() and sequence.isdigit()):
            raise BadInputError(f"stream cursor {text!r}: pass one that a read gave")
        return cls(epoch, int(sequence))


def has_lost(after: Cursor | None, epoch: str | None, oldest: int, head: int) -> bool:
    """True when entries after the cursor are gone. `oldest` and `head` are sequences kept now, 0 and 0 for none."""
    if after is None:
        return oldest > 1
    if epoch is None or after.epoch != epoch or after.sequence > head:
        return True
    return after.sequence < head and after.sequence + 1 < oldest
