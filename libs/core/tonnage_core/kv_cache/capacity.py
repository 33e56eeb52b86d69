"""From a KV pool to blocks, tokens and concurrency, as engines log them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tonnage_core.kv_cache.groups import Grouping
from tonnage_core.kv_cache.versions import EngineFacts
from tonnage_core.parallelism import pipeline_stages


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool holds. `blocks` over all groups; `sequence_blocks` for one sequence of max_model_len tokens."""

    blocks: int
    tokens: int
    concurrency: float
    sequence_blocks: int
    block_bytes: int
    """Bytes of one block on the stage that binds."""
    stage: int
    """Pipeline stage that binds, from 0."""


@dataclass(frozen=True, slots=True)
class SequenceRules:
    """What a sequence may hold: its longest length, tokens scheduled at once, state pages, context-parallel ranks."""

    max_model_len: int
    in_flight: int
    state_pages: int
    context_parallel: int = 1

    def blocks(self, grouping: Grouping, length: int | None = None) -> int:
        """Blocks one sequence needs."""
        wanted = self.max_model_len if length is None else length
        return grouping.blocks_per_sequence(wanted, self.in_flight, self.state_pages, self.context_parallel)

    def page_tokens(self, grouping: Grouping) -> int:
        """Tokens of the smallest page; where all pages are states, one stands for a whole sequence."""
        if all(group.spec.kind == "state" for group in grouping.groups):
            return self.max_model_len
        return grouping.smallest_block


def stage_bounds(layers: int, pp: int) -> list[tuple[int, int]]:
    """[first, stop) layers of every stage."""
    bounds, start = [], 0
    for count in pipeline_stages(layers, pp):
        bounds.append((start, start + count))
        start += count
    return bounds


def pool_capacity(
    grouping: Grouping,
    pools: Sequence[float],
    bounds: Sequence[tuple[int, int]],
    rules: SequenceRules,
    facts: EngineFacts,
) -> Capacity:
    """Blocks of the tightest stage, and what they hold. `pools`: bytes a stage; a pool below zero holds nothing."""
    per_stage = []
    for stage, (pool, (first, stop)) in enumerate(zip(pools, bounds, strict=True)):
        size = grouping.bytes_per_block(first, stop)
        if size:
            per_stage.append((int(max(0.0, pool) // size), stage, size))
    if not per_stage:
        return Capacity(0, 0, 0.0, 0, 0, 0)
    blocks, stage, size = min(per_stage)
    needed = rules.blocks(grouping)
    concurrency = blocks / needed if needed else 0.0
    if facts.tokens_from_concurrency:
        tokens = int(concurrency * rules.max_model_len)
    else:
        tokens = blocks // len(grouping.groups) * rules.page_tokens(grouping) * rules.context_parallel
    return Capacity(blocks, tokens, concurrency, needed, size, stage)


def longest_sequence(grouping: Grouping, blocks: int, rules: SequenceRules, limit: int) -> int:
    """The longest max_model_len whose one sequence fits in `blocks`; 0 when none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if rules.blocks(grouping, middle) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def used_blocks(grouping: Grouping, rules: SequenceRules, tokens: int, requests: int = 1) -> int:
    """Blocks that `requests` sequences of `tokens` tokens hold once their prompt is computed."""
    settled = SequenceRules(rules.max_model_len, 1, rules.state_pages, rules.context_parallel)
    if len(grouping.groups) == 1 and grouping.groups[0].spec.kind == "full":
        return requests * ceil(ceil(tokens / rules.context_parallel) / grouping.groups[0].spec.block)
    return requests * settled.blocks(grouping, tokens)
