"""The hit rate one shared prefix cache would reach: the ceiling any routing of the same requests is held against.

One LRU cache with the fleet's total blocks serves the requests one after another, in order of arrival. As in vLLM V1:
full blocks only; at least one prompt token is always computed; blocks of generated tokens enter the cache too (all
but the last token's, which is never computed) and take room, though no later prompt of a trace repeats them; a
request's blocks are freed last block first, so tails are evicted before the prefixes they hang on.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from tonnage_core.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Prompt tokens seen, those the one cache served, and the cache's size in blocks (None: without limit)."""

    prompt_tokens: int
    hit_tokens: int
    capacity_blocks: int | None

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over prompt tokens; None without prompts."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None


def ceiling(requests: Iterable[TraceRequest], block_size: int, capacity_blocks: int | None = None) -> Ceiling:
    """Serve `requests` in order from one LRU cache of `capacity_blocks` blocks of `block_size` tokens."""
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; at least 1 token is needed")
    chains = _Chains()
    cache = _LruBlocks(capacity_blocks)
    prompt_tokens = hit_tokens = 0
    for request in requests:
        keys = chains.block_keys(request, block_size)
        most = (request.input_length - 1) // block_size
        hit_tokens += cache.leading_hits(keys, most) * block_size
        prompt_tokens += request.input_length
        written = (request.input_length + request.output_length - 1) // block_size
        own = chains.fresh() << _PLACE_BITS
        cache.release([*keys, *range(own + len(keys), own + written)])
    return Ceiling(prompt_tokens, hit_tokens, capacity_blocks)


_PLACE_BITS = 25
"""A block's key is its chain's number shifted left by this, plus its place in the prompt (below 2**25)."""


class _Chains:
    """Numbers for chains of trace blocks: equal numbers mean equal ids all the way from the prompt's start."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._last = 0

    def fresh(self) -> int:
        """A chain that equals no other."""
        self._last += 1
        return self._last

    def block_keys(self, request: TraceRequest, block_size: int) -> list[int]:
        """One key a full engine block of the prompt: the chain to the trace block its last token is in, its place."""
        keys: list[int] = []
        parent, end = 0, 0
        for hash_id in request.hash_ids:
            parent = self._link(parent, hash_id)
            end = min(end + request.block_tokens, request.input_length)
            base = parent << _PLACE_BITS
            keys.extend(range(base + len(keys), base + end // block_size))
        return keys

    def _link(self, parent: int, hash_id: int) -> int:
        known = self._numbers.get((parent, hash_id))
        if known is None:
            known = self._numbers[(parent, hash_id)] = self.fresh()
        return known


class _LruBlocks:
    """Blocks by key, least recently freed first."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def leading_hits(self, keys: Sequence[int], most: int) -> int:
        """How many of the first `most` keys are cached, up to the first that is not."""
        blocks = self._blocks
        for number, key in enumerate(islice(keys, most)):
            if key not in blocks:
                return number
        return min(most, len(keys))

    def release(self, keys: Sequence[int]) -> None:
        """Free a request's blocks, last first, and evict what is over capacity."""
        blocks = self._blocks
        for key in reversed(keys):
            if key in blocks:
                blocks.move_to_end(key)
            else:
                blocks[key] = None
        if self._capacity is not None:
            for _ in range(len(blocks) - self._capacity):
                blocks.popitem(last=False)
