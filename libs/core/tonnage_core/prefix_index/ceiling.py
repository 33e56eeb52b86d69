"""The hit rate one shared prefix cache would reach: the ceiling any routing of the same requests is held against.

One LRU cache with the fleet's total blocks serves the requests one after another, in order of arrival. As in vLLM V1:
full blocks only; at least one prompt token is always computed; blocks of generated tokens enter the cache too (all
but the last token's, which is never computed) and take room, though no later prompt of a trace repeats them; a
request's blocks are freed last block first, so tails are evicted before the prefixes they hang on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
        keys = list(chains.block_keys(request, block_size))
        most = (request.input_length - 1) // block_size
        hit_tokens += cache.leading_hits(keys, most) * block_size
        prompt_tokens += request.input_length
        first = len(keys)
        written = (request.input_length + request.output_length - 1) // block_size
        own = chains.fresh()
        cache.release(keys + [(own, number) for number in range(first, written)])
    return Ceiling(prompt_tokens, hit_tokens, capacity_blocks)


_Key = tuple[int, int]


class _Chains:
    """Numbers for chains of trace blocks: equal numbers mean equal ids all the way from the prompt's start."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._last = 0

    def fresh(self) -> int:
        """A chain that equals no other."""
        self._last += 1
        return self._last

    def block_keys(self, request: TraceRequest, block_size: int) -> Iterator[_Key]:
        """One key a full engine block of the prompt: the chain to the trace block its last token is in, its place."""
        links = self._links(request.hash_ids)
        size = request.block_tokens
        for number in range(request.input_length // block_size):
            yield links[((number + 1) * block_size - 1) // size], number

    def _links(self, hash_ids: Sequence[int]) -> list[int]:
        parent, links = 0, []
        for hash_id in hash_ids:
            known = self._numbers.get((parent, hash_id))
            if known is None:
                known = self._numbers[(parent, hash_id)] = self.fresh()
            parent = known
            links.append(known)
        return links


class _LruBlocks:
    """Blocks by key, least recently freed first."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._blocks: dict[_Key, None] = {}

    def leading_hits(self, keys: Sequence[_Key], most: int) -> int:
        """How many of the first `most` keys are cached, up to the first that is not."""
        blocks = self._blocks
        for number, key in enumerate(keys[:most]):
            if key not in blocks:
                return number
        return min(most, len(keys))

    def release(self, keys: Sequence[_Key]) -> None:
        """Free a request's blocks, last first, and evict what is over capacity."""
        blocks = self._blocks
        for key in reversed(keys):
            blocks.pop(key, None)
            blocks[key] = None
        if self._capacity is None or len(blocks) <= self._capacity:
            return
        over = len(blocks) - self._capacity
        for _, key in zip(range(over), list(blocks), strict=False):
            del blocks[key]
