"""Group layers with equal pages so that one block table serves a whole group, as vLLM's allocator does.

Source of the rules: vLLM `v1/core/kv_cache_utils.py` (Apache-2.0), facts only. Every block has the same bytes in every
group; a group has as many layers as the rarest kind, the last group of a kind may be padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from tonnage_core.kv_cache.specs import CachedLayer, PageSpec
from tonnage_core.kv_cache.versions import EngineFacts


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table."""

    spec: PageSpec
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """All groups of a model; `uniform`: one group whose layers may have pages of different sizes."""

    groups: tuple[Group, ...]
    uniform_pages: tuple[CachedLayer, ...] = ()

    def bytes_per_block(self, first: int, stop: int) -> int:
        """Bytes of one block on a stage with layers [first, stop), padding included."""
        if self.uniform_pages:
            return sum(cached.spec.page for cached in self.uniform_pages if first <= cached.layer < stop)
        size = max((sum(first <= layer < stop for layer in group.layers) for group in self.groups), default=0)
        return size * self.groups[0].spec.page if self.groups else 0

    def blocks_per_sequence(self, length: int, in_flight: int, state_pages: int, context_parallel: int = 1) -> int:
        """Blocks of all groups that one sequence of `length` tokens needs."""
        return sum(group.spec.pages(length, in_flight, state_pages, context_parallel) for group in self.groups)

    @property
    def smallest_block(self) -> int:
        """Tokens of the smallest page."""
        return min((group.spec.block for group in self.groups), default=1)


def group_layers(cached: Sequence[CachedLayer], facts: EngineFacts) -> Grouping:
    """Groups of a model's layers."""
    if not cached:
        return Grouping(())
    if _uniform(cached):
        return Grouping((Group(cached[0].spec, tuple(one.layer for one in cached)),), tuple(cached))
    kinds: dict[PageSpec, list[int]] = {}
    for one in _unify(cached):
        kinds.setdefault(one.spec, []).append(one.layer)
    smallest, largest = min(map(len, kinds.values())), max(map(len, kinds.values()))
    size = largest if largest < smallest * facts.group_slack else smallest
    groups = []
    for spec, layers in kinds.items():
        count = ceil(len(layers) / size)
        groups += [Group(spec, tuple(layers[start::count])) for start in range(count)]
    return Grouping(tuple(groups))


def _uniform(cached: Sequence[CachedLayer]) -> bool:
    """Whether every layer needs the same token slots, whatever its page bytes."""
    first = cached[0].spec
    return all((c.spec.kind, c.spec.block, c.spec.window) == (first.kind, first.block, first.window) for c in cached)


def _unify(cached: Sequence[CachedLayer]) -> list[CachedLayer]:
    """Give all pages the same bytes: smaller ones take more tokens; what is left over is padding."""
    largest = max(one.spec.page for one in cached)
    found = []
    for one in cached:
        ratio = max(1, largest // one.spec.page)
        found.append(replace(one, spec=replace(one.spec, block=one.spec.block * ratio, page=largest)))
    return found
