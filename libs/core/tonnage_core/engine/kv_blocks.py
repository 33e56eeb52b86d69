"""Block tables of sequences: hits, growth, copy on write, publishing, release, swap."""

from collections.abc import Sequence as SequenceOf

from tonnage_core.engine.block_keys import BlockKeys
from tonnage_core.engine.block_pool import BlockPool
from tonnage_core.engine.cache_log import Stored
from tonnage_core.engine.sequence import Sequence
from tonnage_core.engine.types import BlockKey, EngineConfig


class KvBlocks:
    """What vLLM calls the KV cache manager, for one engine with full attention in every layer."""

    def __init__(self, config: EngineConfig, model: str) -> None:
        self.block_size = config.block_size
        self.pool = BlockPool(config.num_blocks, caching=config.enable_prefix_caching)
        self.keys = BlockKeys(model, config.block_size)
        self.copied = 0
        """Partial blocks copied on write, since the start."""

    def hits(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's leading tokens, at least one token short of all: logits need one computed."""
        if not self.pool.caching or sequence.swapped_tokens:
            return []
        limit = (sequence.tokens - 1) // self.block_size
        return self.pool.cache.longest_prefix(sequence.keys(0, limit))

    def fits_whole(self, sequence: Sequence, hits: list[int], promised: int = 0) -> bool:
        """All known tokens of a waiting sequence would fit now: vLLM admits nothing on its first chunk alone.

        `promised` blocks are spoken for already.
        """
        return self.missing(sequence, len(hits)) + self.pool.unheld(hits) + promised <= self.pool.free

    def missing(self, sequence: Sequence, blocks: int) -> int:
        """Blocks that the sequence's known tokens need beyond `blocks`."""
        return max(-(-sequence.tokens // self.block_size) - blocks, 0)

    def admit(self, sequence: Sequence, hits: list[int]) -> None:
        """Take over the hits; or room for what was swapped out. The caller has checked `fits_whole`."""
        self.pool.hold(hits)
        sequence.blocks = hits
        sequence.published = len(hits)
        sequence.computed = len(hits) * self.block_size
        if sequence.swapped_tokens:
            sequence.computed = sequence.swapped_tokens
            sequence.swapped_tokens = 0
            sequence.blocks = self.pool.take(-(-sequence.computed // self.block_size))

    def grow(self, sequence: Sequence, new_tokens: int) -> bool:
        """Room for `new_tokens` more, and everything full by then published; False (nothing changed) without room."""
        target = sequence.computed + new_tokens
        held = len(sequence.blocks) * self.block_size
        filled = self.pool.caching and target // self.block_size > sequence.published
        if target <= held and not filled and not sequence.shares_tail:
            return True
        copy = sequence.shares_tail and self.pool.references(sequence.blocks[-1]) > 1
        needed = -(-target // self.block_size) - len(sequence.blocks)
        if needed + copy > self.pool.free:
            return False
        if copy:
            self._copy_tail(sequence)
        sequence.shares_tail = False
        if needed > 0:
            sequence.blocks += self.pool.take(needed)
        self.publish(sequence, target)
        return True

    def _copy_tail(self, sequence: Sequence) -> None:
        shared = sequence.blocks.pop()
        self.pool.release([shared])
        sequence.blocks += self.pool.take(1)
        self.copied += 1

    def publish(self, sequence: Sequence, tokens: int) -> None:
        """Let the full blocks of the first `tokens` tokens be found, as vLLM does when it schedules them."""
        full = tokens // self.block_size
        if full > sequence.published and self.pool.caching:
            self.keys.extend(sequence, full)
            blocks = sequence.blocks[sequence.published : full]
            self.pool.publish(blocks, sequence.keys(sequence.published, full))
            if self.pool.log is not None:
                self.pool.log.append(_stored(sequence, sequence.published, full))
            sequence.published = full

    def import_prefix(self, keys: SequenceOf[BlockKey]) -> int:
        """Cache the blocks of `keys` whose content came from another engine; how many were new. What is there already
        is not evicted to make room, and without room the rest is left out: it will be computed."""
        pool = self.pool
        if not pool.caching:
            return 0
        known = pool.cache.longest_prefix(keys)
        pool.hold(known)
        new = keys[len(known) : len(known) + pool.free]
        blocks = pool.take(len(new))
        pool.publish(blocks, new)
        pool.release([*known, *blocks])
        return len(new)

    def fork(self, parent: Sequence, samples: int) -> list[Sequence]:
        """The other samples of a computed prompt: they hold the same blocks and copy the partial one to write in it."""
        partial = parent.computed % self.block_size != 0
        parent.shares_tail = partial and samples > 1
        forks = []
        for sample in range(1, samples):
            self.pool.hold(parent.blocks)
            forks.append(
                Sequence(
                    live=parent.live,
                    sample=sample,
                    prompt=parent.prompt,
                    computed=parent.computed,
                    blocks=list(parent.blocks),
                    published=parent.published,
                    shares_tail=partial,
                )
            )
        return forks

    def overrun(self, sequence: Sequence) -> None:
        """Take the block that one more token would need, if any is free: it may evict what the cache still held."""
        if sequence.computed == len(sequence.blocks) * self.block_size and self.pool.free:
            sequence.blocks += self.pool.take(1)

    def free(self, sequence: Sequence) -> None:
        """Give every block back; what is cached stays cached until it is evicted."""
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.published = 0
        sequence.computed = 0
        sequence.shares_tail = False

    def swap_out(self, sequence: Sequence) -> int:
        """Give every block back, the KV going to host memory; returns how many tokens that is."""
        tokens = sequence.computed
        self.free(sequence)
        sequence.swapped_tokens = tokens
        return tokens


def _stored(sequence: Sequence, first: int, full: int) -> Stored:
    parent = next(iter(sequence.keys(first - 1, first)), None) if first else None
    keys = tuple(sequence.keys(first, full))
    return Stored(sequence.request.request_id, sequence.sample, first, keys, parent)
