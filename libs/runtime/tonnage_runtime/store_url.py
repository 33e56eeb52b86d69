"""Which store a URL names: `memory:` or `redis://`, `rediss://` (TLS), `unix://`."""

from tonnage_core.errors import BadInputError
from tonnage_runtime.clock import Clock
from tonnage_runtime.memory_store import MemoryStore
from tonnage_runtime.store import Store


def open_store(url: str, clock: Clock) -> Store:
    """The store at `url`; connects at the first command. Raises `BadInputError` for a URL of no known kind, or when the
    Redis client is not installed.
    """
    if url == "memory:":
        return MemoryStore(clock)
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise BadInputError(f"store URL {url.split('://')[0]}…: use memory:, redis://, rediss:// or unix://")
    try:
        from tonnage_runtime.redis_store import RedisStore
    except ImportError as error:
        raise BadInputError("a Redis store needs the redis extra: pip install 'tonnage[redis]'") from error
    return RedisStore(url)
