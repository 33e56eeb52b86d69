"""Physical KV blocks: reference counts, the free queue in eviction order, eviction from the prefix cache.

Semantics of vLLM 0.32's `BlockPool`. Its free queue always reads: blocks without content first, then cached blocks
nobody holds, least recently freed first. So the queue is kept as a stack of blank blocks and one ordered map of cached
ones, which gives removal from the middle (a hit) in constant time. Which blank block is taken makes no difference to
anyone, only their number does.

Invariants (held by the property tests): every block but the null block 0 is either held (reference count above 0), or
blank, or in the eviction queue, and in exactly one of them; a block in the eviction queue has a key and is found under
it in the prefix cache; a blank block has no key.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from tonnage_core.engine.cache_log import CacheChange, Evicted
from tonnage_core.engine.prefix_cache import PrefixCache
from tonnage_core.engine.types import BlockKey


class BlockPool:
    """The blocks of one engine. Block 0 is the null block, as in vLLM: counted in `num_blocks`, never handed out."""

    def __init__(self, num_blocks: int, *, caching: bool) -> None:
        self.usable = num_blocks - 1
        self.caching = caching
        self.cache = PrefixCache()
        self.evicted = 0
        """Cached blocks that lost their content to an allocation, since the start."""
        self.log: list[CacheChange] | None = None
        """Changes of the cache in order, where somebody asked for them."""
        self._references = [0] * num_blocks
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._blank = list(range(num_blocks - 1, 0, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks nobody holds; a cached one among them counts as free."""
        return len(self._blank) + len(self._evictable)

    @property
    def usage(self) -> float:
        """Share of usable blocks that requests hold, 0..1."""
        return 1.0 - self.free / self.usable

    def references(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._references[block]

    def key(self, block: int) -> BlockKey | None:
        """What the block is cached as, or None."""
        return self._keys[block]

    @property
    def eviction_order(self) -> list[BlockKey | None]:
        """Contents that nobody holds, the next to be evicted first."""
        return [self._keys[block] for block in self._evictable]

    def unheld(self, blocks: Iterable[int]) -> int:
        """How many of the blocks nobody holds: taking them uses up free blocks too."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def take(self, count: int) -> list[int]:
        """`count` blocks with one reference each and no content, blank ones first; the caller checks `free`."""
        blank = self._blank
        split = max(len(blank) - count, 0)
        taken = blank[split:]
        del blank[split:]
        if len(taken) < count:
            taken += self._evict(count - len(taken))
        for block in taken:
            self._references[block] = 1
        return taken

    def _evict(self, count: int) -> list[int]:
        evictable, keys, discard = self._evictable, self._keys, self.cache.discard
        evicted = list(islice(evictable, count))
        if self.log is not None:
            self.log.append(Evicted(tuple(key for block in evicted if (key := keys[block]) is not None)))
        for block in evicted:
            key = keys[block]
            assert key is not None
            keys[block] = None
            del evictable[block]
            discard(key, block)
        self.evicted += count
        return evicted

    def hold(self, blocks: Iterable[int]) -> None:
        """One more reference each; a block that nobody held leaves the eviction queue."""
        references, evictable = self._references, self._evictable
        for block in blocks:
            if not references[block]:
                del evictable[block]
            references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less each, last block first, so that the tail of a sequence is evicted before its head."""
        references, keys, evictable = self._references, self._keys, self._evictable
        for block in reversed(blocks):
            left = references[block] - 1
            references[block] = left
            if left:
                assert left > 0, f"block {block} was freed twice"
            elif keys[block] is None:
                self._blank.append(block)
            else:
                evictable[block] = None

    def publish(self, blocks: Sequence[int], keys: Iterable[BlockKey]) -> None:
        """Full blocks become findable under their keys."""
        if not self.caching:
            return
        named, names = list(keys), self._keys
        for block, key in zip(blocks, named, strict=True):
            names[block] = key
        self.cache.add(blocks, named)
