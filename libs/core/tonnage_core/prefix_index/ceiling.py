"""The hit rate one shared prefix cache would reach: the ceiling any routing of the same requests is held against.

One LRU cache with the fleet's total blocks serves the requests one after another, in order of arrival. As in vLLM V1:
full blocks only; at least one prompt token is always computed; blocks of generated tokens enter the cache too (all
but the last token's, which is never computed) and take room, though no later prompt of a trace repeats them; a
request's blocks are freed last block first, so tails are evicted before the prefixes they hang on.

Blocks are handled in runs, all engine blocks of one trace block together, since they are used together; what is left
of a run after eviction is always its beginning. Only where trace blocks do not split into engine blocks evenly, or one
is used at several lengths, is a run a single block.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
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
    trace = list(requests)
    chains = _Chains()
    prompts = [chains.runs(request, block_size) for request in trace]
    if not _uniform(trace, prompts, block_size):
        prompts = [_single_blocks(request, runs, block_size) for request, runs in zip(trace, prompts, strict=True)]
    cache = _LruRuns(capacity_blocks)
    hit_tokens = 0
    for request, runs in zip(trace, prompts, strict=True):
        hits = min(cache.leading_blocks(runs), (request.input_length - 1) // block_size)
        hit_tokens += hits * block_size
        written = (request.input_length + request.output_length - 1) // block_size
        own = (chains.fresh(), 0)
        cache.release([*runs, (own, written - request.input_length // block_size)])
    return Ceiling(sum(request.input_length for request in trace), hit_tokens, capacity_blocks)


_Run = tuple[tuple[int, int], int]
"""A key (chain number, place) and how many blocks it stands for."""


class _Chains:
    """Numbers for chains of trace blocks: equal numbers mean equal ids all the way from the prompt's start."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._last = 0

    def fresh(self) -> int:
        """A chain that equals no other."""
        self._last += 1
        return self._last

    def runs(self, request: TraceRequest, block_size: int) -> list[_Run]:
        """For each trace block of the prompt, its chain and the full engine blocks that end in it."""
        found: list[_Run] = []
        parent = done = end = 0
        for hash_id in request.hash_ids:
            known = self._numbers.get((parent, hash_id))
            if known is None:
                known = self._numbers[(parent, hash_id)] = self.fresh()
            parent = known
            end = min(end + request.block_tokens, request.input_length)
            count = end // block_size - done
            done += count
            found.append(((parent, 0), count))
        return found


def _uniform(trace: Sequence[TraceRequest], prompts: Sequence[Sequence[_Run]], block_size: int) -> bool:
    """Every trace block is a whole number of engine blocks, the same number each time it is used."""
    if any(request.block_tokens % block_size for request in trace):
        return False
    counts: dict[tuple[int, int], int] = {}
    return all(counts.setdefault(key, count) == count for runs in prompts for key, count in runs)


def _single_blocks(request: TraceRequest, runs: Sequence[_Run], block_size: int) -> list[_Run]:
    """The same blocks one by one: a block's key is the chain to the trace block its last token is in, and its place."""
    size = request.block_tokens
    ends = range(block_size - 1, request.input_length, block_size)
    return [((runs[end // size][0][0], number + 1), 1) for number, end in enumerate(ends)]


class _LruRuns:
    """Runs by key, least recently freed first, each with the blocks that are left of it."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._runs: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._blocks = 0

    def leading_blocks(self, runs: Sequence[_Run]) -> int:
        """How many blocks of `runs` are cached, up to the first that is not."""
        hits = 0
        for key, count in runs:
            left = self._runs.get(key, 0)
            hits += left
            if left < count:
                break
        return hits

    def release(self, runs: Sequence[_Run]) -> None:
        """Free a request's blocks, last first, and evict what is over capacity."""
        for key, count in reversed(runs):
            if count:
                self._blocks += count - self._runs.pop(key, 0)
                self._runs[key] = count
        while self._capacity is not None and self._blocks > self._capacity:
            key, count = next(iter(self._runs.items()))
            evicted = min(count, self._blocks - self._capacity)
            self._blocks -= evicted
            if evicted == count:
                del self._runs[key]
            else:
                self._runs[key] = count - evicted
