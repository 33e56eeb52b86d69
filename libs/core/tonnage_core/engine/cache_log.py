"""What happened to the prefix cache, in order: what a publisher of KV events needs of an engine."""

from dataclasses import dataclass

from tonnage_core.engine.types import BlockKey


@dataclass(frozen=True, slots=True)
class Stored:
    """Full blocks of a request's sample became findable: `keys` of its blocks from number `first` on, which follow the
    block with key `parent` (None at the beginning)."""

    request_id: str
    sample: int
    first: int
    keys: tuple[BlockKey, ...]
    parent: BlockKey | None


@dataclass(frozen=True, slots=True)
class Evicted:
    """One physical block of each of these contents was taken for other content."""

    keys: tuple[BlockKey, ...]


CacheChange = Stored | Evicted
