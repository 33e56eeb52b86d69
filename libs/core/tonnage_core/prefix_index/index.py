"""Which endpoint holds which prefix blocks: one map from block hash to a bit mask of slots, and an LRU a slot.

Invariants: a hash's mask has a slot's bit exactly when the slot's LRU has the hash; a hash with mask 0 is absent; a
slot holds at most its bound. A chain is touched from its end to its beginning, so the end of a chain is evicted first,
as engines do (vLLM frees a request's blocks in reverse).
"""

from collections import OrderedDict
from collections.abc import Sequence

ENTRY_BYTES = 280
"""Memory of one block held by one slot: the 16-byte key object, a map entry with its mask, an LRU node (measured)."""


class PrefixIndex:
    """Block hashes by slot. All work on a request is linear in its blocks, not in the number of slots."""

    __slots__ = ("_held", "_lru", "_masks")

    def __init__(self) -> None:
        self._masks: dict[bytes, int] = {}
        self._lru: dict[int, OrderedDict[bytes, None]] = {}
        self._held: dict[int, int] = {}

    def add_slot(self, slot: int, max_bytes: int) -> None:
        """Start tracking `slot`, bounded to `max_bytes` of memory (at least one block); resizes a known one."""
        self._lru.setdefault(slot, OrderedDict())
        self._held[slot] = max(1, max_bytes // ENTRY_BYTES)
        self._shrink(slot)

    def remove_slot(self, slot: int) -> None:
        """Forget the slot and everything it held; unknown slots are ignored."""
        self.clear_slot(slot)
        self._lru.pop(slot, None)
        self._held.pop(slot, None)

    def clear_slot(self, slot: int) -> None:
        """Everything the slot held is gone: its engine restarted or reset its cache."""
        for block in self._lru.get(slot, ()):
            self._drop(block, slot)
        if slot in self._lru:
            self._lru[slot] = OrderedDict()

    def match(self, chain: list[bytes]) -> list[tuple[int, int]]:
        """Pairs (blocks, mask), longest first: the slots of `mask` hold the first `blocks` blocks of `chain`."""
        return match_masks(self._masks, chain)

    def insert(self, chain: list[bytes], slot: int) -> None:
        """`slot` now holds `chain`, most recently used; the least recently used blocks beyond its bound are dropped."""
        lru, masks, bit = self._lru[slot], self._masks, 1 << slot
        for block in reversed(chain):
            mask = masks.get(block, 0)
            if mask & bit:
                lru.move_to_end(block)
            else:
                masks[block] = mask | bit
                lru[block] = None
        if len(lru) > self._held[slot]:
            self._shrink(slot)

    def discard(self, blocks: Sequence[bytes], slot: int) -> None:
        """`slot` no longer holds `blocks` (an engine's removal event); blocks it did not hold are ignored."""
        lru = self._lru.get(slot)
        if lru is None:
            return
        for block in blocks:
            if block in lru:
                del lru[block]
                self._drop(block, slot)

    def blocks(self, slot: int) -> int:
        """Blocks tracked for `slot`."""
        return len(self._lru.get(slot, ()))

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of all entries."""
        return ENTRY_BYTES * sum(map(len, self._lru.values()))

    def _shrink(self, slot: int) -> None:
        lru, bound = self._lru[slot], self._held[slot]
        while len(lru) > bound:
            self._drop(lru.popitem(last=False)[0], slot)

    def _drop(self, block: bytes, slot: int) -> None:
        mask = self._masks[block] & ~(1 << slot)
        if mask:
            self._masks[block] = mask
        else:
            del self._masks[block]


def match_masks(masks: dict[bytes, int], chain: list[bytes]) -> list[tuple[int, int]]:
    """`PrefixIndex.match` over any map from block hash to a bit mask of slots."""
    steps: list[tuple[int, int]] = []
    held, depth = -1, 0
    for depth, block in enumerate(chain):
        here = held & masks.get(block, 0)
        if here != held:
            if depth:
                steps.append((depth, held & ~here))
            held = here
            if not here:
                break
    if held > 0:
        steps.append((depth + 1, held))
    steps.reverse()
    return steps


def matched_blocks(steps: list[tuple[int, int]], slot: int) -> int:
    """Blocks `slot` holds according to `PrefixIndex.match`."""
    for depth, mask in steps:
        if mask >> slot & 1:
            return depth
    return 0


def slots_of(steps: list[tuple[int, int]], limit: int, start: int = 0) -> list[int]:
    """Up to `limit` slots, longest match first; among equals in slot order from `start` on, wrapping around."""
    found: list[int] = []
    for _, mask in steps:
        for part in (mask >> start << start, mask & ((1 << start) - 1)):
            left = part
            while left:
                if len(found) == limit:
                    return found
                low = left & -left
                found.append(low.bit_length() - 1)
                left ^= low
    return found
