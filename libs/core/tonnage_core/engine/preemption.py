"""Preemption: who has to go when blocks run out, and how."""

from tonnage_core.engine.kv_blocks import KvBlocks
from tonnage_core.engine.sequence import Sequence
from tonnage_core.engine.types import EngineConfig


class Preemption:
    """Takes the blocks of running sequences: recompute drops them, swap moves them to host memory."""

    def __init__(self, config: EngineConfig, kv: KvBlocks) -> None:
        self._by_rank = config.policy == "priority"
        self._swap = config.preemption == "swap"
        self._host_blocks = config.swap_blocks
        self._kv = kv
        self.host_used = 0
        """Host blocks taken by sequences that are swapped out."""
        self.swapped_out = 0
        self.swapped_in = 0

    def victim(self, running: list[Sequence]) -> int:
        """Index of the sequence to preempt: the last to arrive, or the last by priority and arrival."""
        if self._by_rank:
            return max(range(len(running)), key=lambda index: running[index].rank)
        return len(running) - 1

    def evict(self, sequence: Sequence) -> int:
        """Take the sequence's blocks; returns the tokens that go to host memory, 0 when they are recomputed."""
        sequence.live.preemptions += 1
        blocks = self._blocks(sequence.computed)
        room = self._host_blocks is None or self.host_used + blocks <= self._host_blocks
        if not (self._swap and room and sequence.computed):
            self._kv.free(sequence)
            return 0
        self.host_used += blocks
        self.swapped_out += blocks
        return self._kv.swap_out(sequence)

    def bring_back(self, tokens: int) -> None:
        """Count the return of a swapped sequence of `tokens` computed tokens."""
        blocks = self._blocks(tokens)
        self.host_used -= blocks
        self.swapped_in += blocks

    def forget(self, tokens: int) -> None:
        """A swapped sequence was aborted."""
        self.host_used -= self._blocks(tokens)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._kv.block_size)
