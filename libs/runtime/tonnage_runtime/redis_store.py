"""The store over a Redis-protocol server (Redis 6.2 or newer, Valkey).

Commands that must be one step are scripts the server runs whole. Keys of one script share a hash tag, so that a cluster
keeps them together. A lost connection is opened again by the next command.
"""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tonnage_core.errors import BadInputError
from tonnage_runtime.store import (
    START,
    Cursor,
    Lease,
    Page,
    StoreError,
    StoreKindError,
    StoreUnavailableError,
    has_lost,
)

_COMPARE_AND_SET = """
local present = redis.call('GET', KEYS[1])
if (ARGV[1] == '0' and present) or (ARGV[1] == '1' and present ~= ARGV[2]) then return 0 end
if ARGV[4] == '' then redis.call('SET', KEYS[1], ARGV[3]) else redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4]) end
return 1
"""

_INCREMENT = """
local fresh = redis.call('EXISTS', KEYS[1]) == 0
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if fresh then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return count
"""

# The token is at least the server's time in microseconds: it grows even when the server forgot the last one.
_ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local now = redis.call('TIME')
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, now[1] * 1000000 + now[2])
local text = string.format('%.0f', token)
redis.call('SET', KEYS[2], text)
redis.call('SET', KEYS[1], text .. ':' .. ARGV[1], 'PX', ARGV[2])
return text
"""

_RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

_RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

# Sequences are made here and not from the server's time, so that a gap shows as a gap.
_APPEND = """
redis.call('HSETNX', KEYS[2], 'epoch', ARGV[3])
local sequence = redis.call('HINCRBY', KEYS[2], 'head', 1)
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], sequence .. '-0', 'e', ARGV[1])
if ARGV[4] ~= '' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return {redis.call('HGET', KEYS[2], 'epoch'), sequence}
"""

_READ = """
local head = redis.call('HMGET', KEYS[2], 'epoch', 'head')
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
local found = redis.call('XRANGE', KEYS[1], ARGV[1] .. '-1', '+', 'COUNT', ARGV[2])
return {head, oldest, found}
"""


class RedisStore:
    """A connection pool to one server."""

    def __init__(self, url: str, *, prefix: str = "tonnage:", timeout_s: float = 2.0) -> None:
        self._prefix = prefix
        self._timeout_s = timeout_s
        # No retry: a command whose answer was lost may have been done, and only the caller knows if that matters.
        retry = Retry(NoBackoff(), 0)
        try:
            self._where = _without_password(url)
            self._redis: Redis = Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry, health_check_interval=0
            )
        except ValueError as error:
            raise BadInputError(f"store URL {urlsplit(url).scheme}://…: {error}") from error
        script = self._redis.register_script
        self._compare_and_set, self._increment = script(_COMPARE_AND_SET), script(_INCREMENT)
        self._acquire, self._renew, self._release = script(_ACQUIRE), script(_RENEW), script(_RELEASE)
        self._append, self._read = script(_APPEND), script(_READ)

    async def get(self, key: str) -> bytes | None:
        """The value, or None when there is none or its lifetime is over."""
        with self._translated(key):
            found = await self._redis.get(self._key(key))
        return found.encode() if isinstance(found, str) else found

    async def set(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        """Put the value; it lives `ttl_s`, or for ever."""
        with self._translated(key):
            await self._redis.set(self._key(key), value, px=None if ttl_s is None else _ms(ttl_s))

    async def delete(self, key: str) -> bool:
        """Remove the key; False when there was none."""
        with self._translated(key):
            return bool(await self._redis.delete(self._key(key)))

    async def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, ttl_s: float | None = None
    ) -> bool:
        """Put the value only if the present one is `expected`."""
        ttl = "" if ttl_s is None else _ms(ttl_s)
        arguments: list[str | bytes | int] = ["0" if expected is None else "1", expected or b"", value, ttl]
        with self._translated(key):
            return bool(await self._compare_and_set(keys=[self._key(key)], args=arguments))

    async def increment(self, key: str, by: int = 1, *, ttl_s: float) -> int:
        """Add to a counter and return it; `StoreKindError` if the key holds something else."""
        with self._translated(key):
            return int(await self._increment(keys=[self._key(key)], args=[by, _ms(ttl_s)]))

    async def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        """Take the lease; None while somebody holds it."""
        keys = [self._tagged(name, "lease"), self._tagged(name, "token")]
        with self._translated(name):
            token = await self._acquire(keys=keys, args=[owner, _ms(ttl_s)])
        return None if token is None else Lease(name, owner, int(token))

    async def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Extend the lease; False when it is no longer ours."""
        with self._translated(lease.name):
            done = await self._renew(keys=[self._tagged(lease.name, "lease")], args=[_held(lease), _ms(ttl_s)])
        return bool(done)

    async def release(self, lease: Lease) -> bool:
        """Give the lease up; False when it was no longer ours."""
        with self._translated(lease.name):
            return bool(await self._release(keys=[self._tagged(lease.name, "lease")], args=[_held(lease)]))

    async def append(self, stream: str, entry: bytes, *, keep: int, ttl_s: float | None = None) -> str:
        """Add an entry, of which the newest `keep` are kept; the cursor after it."""
        ttl = "" if ttl_s is None else _ms(ttl_s)
        with self._translated(stream):
            arguments: list[str | bytes | int] = [entry, keep, uuid.uuid4().hex[:12], ttl]
            epoch, sequence = await self._append(keys=self._stream_keys(stream), args=arguments)
        return str(Cursor(epoch.decode(), int(sequence)))

    async def read(self, stream: str, after: str = START, *, limit: int = 1000, wait_s: float = 0.0) -> Page:
        """Entries after the cursor; with none there yet, waits up to `wait_s` for the first."""
        cursor = Cursor.parse(after)
        page = await self._page(stream, cursor, limit)
        left_s = wait_s
        while not page.entries and not page.lost and left_s > 0:
            # Shorter than the socket's timeout, so that a server that is gone is told from one with nothing to say.
            slice_s = min(left_s, self._timeout_s / 2)
            await self._wait(stream, cursor, slice_s)
            left_s -= slice_s
            page = await self._page(stream, cursor, limit)
        return page

    async def close(self) -> None:
        """Close every connection."""
        await self._redis.aclose()

    async def _wait(self, stream: str, cursor: Cursor | None, seconds: float) -> None:
        after = f"{cursor.sequence if cursor else 0}-1"
        with self._translated(stream):
            await self._redis.xread({self._stream_keys(stream)[0]: after}, count=1, block=_ms(seconds))

    async def _page(self, stream: str, cursor: Cursor | None, limit: int) -> Page:
        page, lost = await self._page_since(stream, cursor, cursor.sequence if cursor else 0, limit)
        if lost and cursor is not None:
            # What the old cursor says means nothing in this life of the stream: start over with what is kept.
            page, _ = await self._page_since(stream, None, 0, limit)
        return Page(page.entries, page.cursor, lost)

    async def _page_since(self, stream: str, cursor: Cursor | None, since: int, limit: int) -> tuple[Page, bool]:
        with self._translated(stream):
            (epoch, head), oldest, found = await self._read(keys=self._stream_keys(stream), args=[since, limit])
        if epoch is None:
            return Page((), START, False), has_lost(cursor, None, 0, 0)
        lost = has_lost(cursor, epoch.decode(), _sequence(oldest[0]) if oldest else 0, int(head))
        last = _sequence(found[-1]) if found else int(head)
        return Page(tuple(entry[1][1] for entry in found), str(Cursor(epoch.decode(), last)), lost), lost

    def _key(self, key: str) -> str:
        return f"{self._prefix}{key}"

    def _tagged(self, name: str, what: str) -> str:
        return f"{self._prefix}{{{name}}}:{what}"

    def _stream_keys(self, stream: str) -> list[str]:
        return [self._tagged(stream, "stream"), self._tagged(stream, "head")]

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            raise StoreUnavailableError(self._where, str(error) or type(error).__name__) from error
        except exceptions.ResponseError as error:
            if "not an integer" in str(error) or "WRONGTYPE" in str(error):
                raise StoreKindError(f"key {key!r} holds another kind of value: use another key") from error
            raise StoreError(f"store {self._where} refused a command on {key!r}: {error}") from error
        except exceptions.RedisError as error:
            raise StoreError(f"store {self._where}, key {key!r}: {error}") from error


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1e3))


def _held(lease: Lease) -> str:
    return f"{lease.token}:{lease.owner}"


def _sequence(entry: Any) -> int:
    """The sequence of a stream entry `[b"7-0", fields]`."""
    return int(entry[0].partition(b"-")[0])


def _without_password(url: str) -> str:
    """The URL as it may stand in a log."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
