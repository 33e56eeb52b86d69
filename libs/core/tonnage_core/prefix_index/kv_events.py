"""An engine's KV cache as its own events describe it, translated into our block hashes.

vLLM publishes what enters and leaves its prefix cache (docs/features/kv_events, `vllm/distributed/kv_events.py` of
0.32). Its block hashes depend on its hash algorithm and seed, so they serve as names only: every block is hashed anew,
from the token ids that the event carries and its parent, with adapter and salt in the seed. A block whose hash covers
something the router cannot compute (an image, prompt embeddings, an adapter without a name) gets no hash: nothing
matches it, nor what follows it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tonnage_core.prefix_index.block_hash import chain, seed_hash
from tonnage_core.prefix_index.exact_index import ExactIndex

EngineHash = bytes | int
"""An engine's own name for a block."""
FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of cache group whose blocks make a prefix hit. Groups of a window or a state hold less than a whole prefix and
never decide the length of a match by themselves."""
TOKEN_ID_BYTES = 4
VIEW_ENTRY_BYTES = 360
"""Memory of one block: our 16-byte hash with mask and count, and the engine's 32-byte name for it (measured)."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that follow each other entered the cache. `tokens` holds `block_size` ids for each, or none at all when
    the event only names blocks (an offloading tier's). `extra` has, for each block, what else its hash covers."""

    hashes: Sequence[EngineHash]
    parent: EngineHash | None
    tokens: Sequence[int]
    block_size: int
    adapter: str | None = None
    adapter_unnamed: bool = False
    """The blocks belong to an adapter that the event does not name."""
    extra: Sequence[Sequence[object] | None] | None = None
    group: int | None = None
    kind: str | None = None
    on_gpu: bool = True
    """False: in an offloading tier, which may use blocks of its own size."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks left the cache."""

    hashes: Sequence[EngineHash]
    group: int | None = None


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Every block left the cache."""


KvEvent = BlocksStored | BlocksRemoved | CacheCleared


class Outcome(StrEnum):
    """What an event came to; a label value."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"
    ORPHAN = "orphan"
    """Stored after a parent that is not known: the history before it was lost."""
    UNMATCHABLE = "unmatchable"
    """Stored under a key that the router cannot compute."""
    OTHER_GROUP = "other_group"
    """Of a cache group that does not decide prefix hits."""
    MALFORMED = "malformed"


def exact_seed(adapter: str | None, salt: str | None) -> bytes:
    """The parent of a first block. One engine serves one base model, so the model's name is no part of it."""
    return seed_hash("", adapter, salt)


class KvView:
    """What one engine (or one data-parallel rank of it) holds. Writes into `index` under `slot`."""

    __slots__ = ("_bound", "_groups", "_index", "_names", "_slot", "block_size", "complete")

    def __init__(self, index: ExactIndex, slot: int, max_bytes: int) -> None:
        self._index = index
        self._slot = slot
        self._bound = max(1, max_bytes // VIEW_ENTRY_BYTES)
        self._names: dict[EngineHash, tuple[bytes | None, int]] = {}
        """The engine's hash to ours (None: unmatchable) and how many physical blocks carry it."""
        self._groups: set[int | None] = set()
        self.block_size: int | None = None
        """Tokens of a block, as the last stored one had it; None before the first."""
        self.complete = False
        """Every block that the engine holds is known. False after a loss: matches may then be too short, never too
        long."""

    def __len__(self) -> int:
        return len(self._names)

    def reset(self, *, complete: bool) -> None:
        """Forget everything: the cache is empty (`complete`), or what it holds is not known."""
        self._names.clear()
        self._groups.clear()
        self._index.clear_slot(self._slot)
        self.complete = complete

    def apply(self, event: KvEvent) -> Outcome:
        """Follow one event."""
        if isinstance(event, BlocksStored):
            return self._stored(event)
        if isinstance(event, BlocksRemoved):
            return self._removed(event)
        self.reset(complete=True)
        return Outcome.CLEARED

    def _stored(self, event: BlocksStored) -> Outcome:
        if event.kind not in FULL_ATTENTION:
            return Outcome.OTHER_GROUP
        if not event.tokens:
            return self._named_again(event)
        size = event.block_size
        if size < 1 or len(event.tokens) != size * len(event.hashes):
            return Outcome.MALFORMED
        if event.extra is not None and len(event.extra) != len(event.hashes):
            return Outcome.MALFORMED
        try:
            packed = struct.pack(f"<{len(event.tokens)}I", *event.tokens)
        except struct.error:
            return Outcome.MALFORMED
        if event.parent is not None and event.parent not in self._names:
            return Outcome.ORPHAN
        if not event.on_gpu and size != self.block_size:
            return Outcome.OTHER_GROUP
        if self.block_size is not None and size < self.block_size:
            return Outcome.OTHER_GROUP  # a part of a block, published under a finer hash
        self._groups.add(event.group)
        self.block_size = size
        return self._add_blocks(event, packed)

    def _add_blocks(self, event: BlocksStored, packed: bytes) -> Outcome:
        parent = None if event.parent is None else self._names[event.parent][0]
        step = TOKEN_ID_BYTES * event.block_size
        outcome = Outcome.STORED
        for number, name in enumerate(event.hashes):
            first = event.parent is None and number == 0
            if first:
                parent = _first_parent(event)
            elif parent is not None and _beyond_adapter(event, number):
                parent = None
            ours = None if parent is None else chain(parent, packed[number * step : (number + 1) * step])
            self._add(name, ours)
            parent = ours
            if ours is None:
                outcome = Outcome.UNMATCHABLE
        return outcome

    def _add(self, name: EngineHash, ours: bytes | None) -> None:
        known = self._names.get(name)
        if known is not None and known[0] != ours:  # a name means one content: what it meant before is gone
            self._forget(*known)
            known = None
        self._names[name] = (ours, 1 if known is None else known[1] + 1)
        if ours is not None:
            self._index.store(ours, self._slot)
        if len(self._names) > self._bound:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Over the bound: what was stored longest ago is forgotten, and the view is no longer complete."""
        name = next(iter(self._names))
        self.complete = False
        self._forget(*self._names.pop(name))

    def _forget(self, ours: bytes | None, count: int) -> None:
        if ours is not None:
            for _ in range(count):
                self._index.drop(ours, self._slot)

    def _named_again(self, event: BlocksStored) -> Outcome:
        """Another tier holds blocks that are known by name: they stay found when the GPU evicts them."""
        for name in event.hashes:
            known = self._names.get(name)
            if known is None:
                return Outcome.ORPHAN
            self._add(name, known[0])
        return Outcome.STORED

    def _removed(self, event: BlocksRemoved) -> Outcome:
        if self._groups and event.group not in self._groups:
            return Outcome.OTHER_GROUP
        outcome = Outcome.REMOVED
        for name in event.hashes:
            known = self._names.get(name)
            if known is None:
                outcome = Outcome.ORPHAN
                continue
            ours, count = known
            if count > 1:
                self._names[name] = (ours, count - 1)
            else:
                del self._names[name]
            if ours is not None:
                self._index.drop(ours, self._slot)
        return outcome


def _beyond_adapter(event: BlocksStored, number: int) -> list[object]:
    """What the hash of a block covers besides its tokens, its parent and the adapter's name."""
    keys = event.extra[number] if event.extra is not None else None
    left = list(keys or ())
    if event.adapter is not None and event.adapter in left:
        left.remove(event.adapter)
    return left


def _first_parent(event: BlocksStored) -> bytes | None:
    """The seed of a first block: vLLM adds the request's cache salt to that block alone."""
    if event.adapter_unnamed:
        return None
    left = _beyond_adapter(event, 0)
    if not left:
        return exact_seed(event.adapter, None)
    salt = left[0]
    return exact_seed(event.adapter, salt) if len(left) == 1 and isinstance(salt, str) else None
