"""A prefix index that remembers which blocks it learned from this router's own choices, to tell other replicas."""

from collections import deque
from collections.abc import Sequence

from tonnage_core.prefix_index.index import PrefixIndex

MAX_PENDING = 65_536
"""Blocks that may wait to be told: 8 to 10 MiB; beyond it new ones stay untold, which costs peers a few hits."""


class SharedIndex(PrefixIndex):
    """Takes over the contents of the index it replaces."""

    __slots__ = ("_pending", "pending_blocks", "untold")

    def __init__(self, replaced: PrefixIndex) -> None:
        self._masks, self._lru, self._held = replaced._masks, replaced._lru, replaced._held
        self._pending: deque[tuple[int, Sequence[bytes]]] = deque()
        self.pending_blocks = 0
        self.untold = 0
        """Blocks that were never told for want of room."""

    def insert(self, chain: list[bytes], slot: int) -> None:
        """Own knowledge: the part of the chain that is new for the slot is also queued to be told."""
        masks, bit = self._masks, 1 << slot
        new = len(chain)
        while new and not masks.get(chain[new - 1], 0) & bit:
            new -= 1
        super().insert(chain, slot)
        count = len(chain) - new
        if not count:
            return
        if self.pending_blocks + count > MAX_PENDING:
            self.untold += count
            return
        self._pending.append((slot, chain[new:] if new else chain))
        self.pending_blocks += count

    def learn(self, blocks: list[bytes], slot: int) -> None:
        """What a peer told: not told on."""
        super().insert(blocks, slot)

    def drain(self, most: int) -> list[tuple[int, Sequence[bytes]]]:
        """Queued pieces, oldest first, of about `most` blocks (at least one piece)."""
        taken: list[tuple[int, Sequence[bytes]]] = []
        blocks = 0
        while self._pending and blocks < most:
            piece = self._pending.popleft()
            taken.append(piece)
            blocks += len(piece[1])
        self.pending_blocks -= blocks
        return taken

    def put_back(self, pieces: Sequence[tuple[int, Sequence[bytes]]]) -> None:
        """Pieces that could not be told now."""
        self._pending.extendleft(reversed(pieces))
        self.pending_blocks += sum(len(blocks) for _, blocks in pieces)
