"""Which block holds which content: block keys to physical blocks, duplicates kept in order of insertion.

As in vLLM, identical blocks are not merged when they fill up, since that would change a running request's block table:
a key may name several blocks, and the one cached first is handed out.
"""

from collections.abc import Iterable
from itertools import takewhile
from typing import cast

from tonnage_core.engine.types import BlockKey


def _known(block: int | None) -> bool:
    return block is not None


class PrefixCache:
    """Block key -> block number. One block per key in `_first`; later blocks of the same content in `_twins`."""

    def __init__(self) -> None:
        self._first: dict[BlockKey, int] = {}
        self._twins: dict[BlockKey, list[int]] = {}

    def __len__(self) -> int:
        return len(self._first)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._first

    def longest_prefix(self, keys: Iterable[BlockKey]) -> list[int]:
        """Blocks of the leading keys that are cached, up to the first one that is not."""
        return cast("list[int]", list(takewhile(_known, map(self._first.get, keys))))

    def add(self, blocks: Iterable[int], keys: Iterable[BlockKey]) -> None:
        """Let each block be found under its key; it stays behind blocks already there."""
        put = self._first.setdefault
        for block, key in zip(blocks, keys, strict=True):
            if put(key, block) != block:
                self._twins.setdefault(key, []).append(block)

    def discard(self, key: BlockKey, block: int) -> None:
        """`block` no longer holds `key`; the next block with the same content takes over."""
        twins = self._twins.get(key) if self._twins else None
        if twins is None:
            del self._first[key]
            return
        if self._first[key] == block:
            self._first[key] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[key]

    def blocks_of(self, key: BlockKey) -> list[int]:
        """Every block with this content, the one handed out first in front."""
        first = self._first.get(key)
        return [] if first is None else [first, *self._twins.get(key, ())]
