"""Which endpoint holds which KV blocks as engines themselves tell it, and what requests on their way will add.

Beside `PrefixIndex`, which believes what was routed: here a block is held while its engine says so, or while a request
that was sent with it is unfinished, since a running request's blocks are not evicted.

Invariants: a hash's mask has a slot's bit exactly when the slot's stored or expected blocks have the hash; a hash with
mask 0 is absent. `KvView` bounds what is stored, the requests in flight what is expected.
"""

from collections.abc import Sequence

from tonnage_core.prefix_index.index import match_masks


class ExactIndex:
    """Block hashes by slot, counted: `store` and `drop` follow engine events, `expect` and `forget` own requests."""

    __slots__ = ("_expected", "_masks", "_stored")

    def __init__(self) -> None:
        self._masks: dict[bytes, int] = {}
        self._stored: dict[int, dict[bytes, int]] = {}
        self._expected: dict[int, dict[bytes, int]] = {}

    def add_slot(self, slot: int) -> None:
        """Start tracking `slot`; a known one keeps what it has."""
        self._stored.setdefault(slot, {})
        self._expected.setdefault(slot, {})

    def remove_slot(self, slot: int) -> None:
        """Forget the slot, its expected blocks too; unknown slots are ignored."""
        self.clear_slot(slot)
        for block in self._expected.pop(slot, ()):
            self._unset(block, slot)
        self._stored.pop(slot, None)

    def clear_slot(self, slot: int) -> None:
        """The engine's cache is empty, or unknown. Blocks that requests on their way will add stay expected."""
        stored = self._stored.get(slot)
        if stored:
            self._stored[slot] = {}
            for block in stored:
                self._settle(block, slot)

    def match(self, chain: list[bytes]) -> list[tuple[int, int]]:
        """Pairs (blocks, mask), longest first: the slots of `mask` hold the first `blocks` blocks of `chain`."""
        return match_masks(self._masks, chain)

    def store(self, block: bytes, slot: int) -> None:
        """The engine of `slot` cached one more physical block with this content; unknown slots are ignored."""
        stored = self._stored.get(slot)
        if stored is None:
            return
        stored[block] = stored.get(block, 0) + 1
        self._masks[block] = self._masks.get(block, 0) | 1 << slot

    def drop(self, block: bytes, slot: int) -> None:
        """The engine of `slot` evicted one physical block with this content; unknown blocks are ignored."""
        self._less(self._stored.get(slot), block, slot)

    def expect(self, chain: Sequence[bytes], slot: int) -> None:
        """A request with these blocks was sent to `slot`."""
        expected, masks, bit = self._expected.setdefault(slot, {}), self._masks, 1 << slot
        for block in chain:
            expected[block] = expected.get(block, 0) + 1
            masks[block] = masks.get(block, 0) | bit

    def forget(self, chain: Sequence[bytes], slot: int) -> None:
        """That request ended: from here on only the engine's word counts."""
        expected = self._expected.get(slot)
        for block in chain:
            self._less(expected, block, slot)

    def blocks(self, slot: int) -> int:
        """Blocks that the slot's engine says it holds."""
        return len(self._stored.get(slot, ()))

    def _less(self, counts: dict[bytes, int] | None, block: bytes, slot: int) -> None:
        count = counts.get(block) if counts is not None else None
        if counts is None or count is None:
            return
        if count > 1:
            counts[block] = count - 1
            return
        del counts[block]
        self._settle(block, slot)

    def _settle(self, block: bytes, slot: int) -> None:
        """Clear the bit unless the other side still has the block."""
        if block not in self._stored.get(slot, ()) and block not in self._expected.get(slot, ()):
            self._unset(block, slot)

    def _unset(self, block: bytes, slot: int) -> None:
        mask = self._masks.get(block, 0) & ~(1 << slot)
        if mask:
            self._masks[block] = mask
        else:
            self._masks.pop(block, None)
