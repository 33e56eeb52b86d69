"""The pages of each layer as an engine's allocator sees them: tokens and bytes a page, and pages a sequence needs.

Source of the rules: vLLM `v1/kv_cache_interface.py` and `model_executor/models/config.py` (Apache-2.0), facts only.
"""

from dataclasses import dataclass, replace
from math import ceil

from tonnage_core.kv_cache.versions import EngineFacts
from tonnage_core.models.caching import (
    compressed_bytes,
    element_bytes,
    index_bytes,
    latent_bytes,
    resolved_type,
    token_bytes,
)
from tonnage_core.models.layers import Attention, CompressedAttention, LatentAttention, Mixer, RecurrentState
from tonnage_core.models.shape import ModelShape
from tonnage_core.parallelism import local_heads

PAGE_TOKENS = 16
"""Attention pages of hybrid models grow in steps of this many tokens."""


@dataclass(frozen=True, slots=True)
class PageSpec:
    """One layer's pages. `kind`: full, sliding, chunked or state; `window`: tokens of the window or chunk."""

    kind: str
    block: int
    page: int
    window: int = 0

    def pages(self, length: int, in_flight: int, state_pages: int, context_parallel: int = 1) -> int:
        """Pages that one sequence of `length` tokens may hold while `in_flight` tokens are scheduled at once."""
        if self.kind == "state":
            return state_pages
        if self.kind == "sliding":
            return ceil(min(self.window - 1 + in_flight, length) / self.block) + 1
        if self.kind == "chunked":
            return ceil(min(self.window + in_flight, length) / self.block)
        return ceil(ceil(length / context_parallel) / self.block)


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """A layer that caches something, by its place in the stack (a sparse indexer is a second entry of its layer)."""

    layer: int
    spec: PageSpec


def state_bytes(mixer: RecurrentState, tp: int, speculative: int = 0) -> int:
    """One sequence's state in one layer on one rank: convolution inputs and the recurrent matrix."""
    groups = mixer.groups
    channels = mixer.conv_channels
    if mixer.kind == "mamba2" and groups % tp:
        # Groups that do not divide are copied so that every rank has one.
        channels += 2 * (tp - groups % tp) * mixer.value_dim
    convolution = ceil(channels / tp) * (mixer.conv_width - 1 + speculative) * mixer.conv_bytes
    recurrent = ceil(mixer.heads / tp) * mixer.key_dim * mixer.value_dim * mixer.state_bytes
    return convolution + recurrent


def cached_layers(
    shape: ModelShape,
    facts: EngineFacts,
    *,
    kv_dtype: str = "auto",
    tp: int = 1,
    block: int | None = None,
    speculative: int = 0,
    hybrid: bool = True,
    extra: tuple[Mixer, ...] = (),
) -> tuple[CachedLayer, ...]:
    """Pages of every layer that caches. `hybrid=False`: windows at full length. `extra`: layers of a draft."""
    kind = cache_type(shape, facts, kv_dtype)
    size = element_bytes(kind, shape)
    base = block or default_block(shape, facts)
    mixers = [(index, layer.mixer) for index, layer in enumerate(shape.stack)]
    mixers += [(shape.layers - 1, mixer) for mixer in extra]
    distinct = dict.fromkeys(mixer for _, mixer in mixers)
    grouped = hybrid and facts.hybrid_groups
    specs = {mixer: _specs(mixer, size, kind, tp, base, grouped, facts.chunked_groups) for mixer in distinct}
    found = [CachedLayer(index, spec) for index, mixer in mixers for spec in specs[mixer]]
    states = [state_bytes(mixer, tp, speculative) for mixer in distinct if isinstance(mixer, RecurrentState)]
    return _align(found, max(states)) if states else tuple(found)


def cache_type(shape: ModelShape, facts: EngineFacts, kv_dtype: str) -> str:
    """The element type in use: `auto` follows the checkpoint only in releases that do so."""
    if kv_dtype in ("", "auto") and not facts.checkpoint_cache_type:
        return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[shape.dtype]
    return resolved_type(kv_dtype, shape)


def default_block(shape: ModelShape, facts: EngineFacts) -> int:
    """Tokens a page when the flag is not given; sparse latent kernels read pages of 64."""
    sparse = any(isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer for layer in shape.stack)
    if any(isinstance(layer.mixer, CompressedAttention) for layer in shape.stack):
        return 256
    return 64 if sparse and facts.block < 64 else facts.block


def _specs(
    mixer: Mixer | None, size: float, kv_dtype: str, tp: int, block: int, hybrid: bool, chunked: bool
) -> list[PageSpec]:
    if isinstance(mixer, Attention):
        return _attention(mixer, size, kv_dtype, tp, block, hybrid, chunked)
    if isinstance(mixer, LatentAttention):
        found = [PageSpec("full", block, int(block * latent_bytes(mixer, size, kv_dtype, tp)))]
        if mixer.indexer:
            found.append(PageSpec("full", block, block * index_bytes(mixer.indexer)))
        return found
    if isinstance(mixer, CompressedAttention):
        return _compressed(mixer, block)
    return [PageSpec("state", 0, 0)] if isinstance(mixer, RecurrentState) else []


def _attention(
    mixer: Attention, size: float, kv_dtype: str, tp: int, block: int, hybrid: bool, chunked: bool
) -> list[PageSpec]:
    page = int(block * token_bytes(replace(mixer, index_dim=0), size, kv_dtype, tp))
    if not page:
        return []
    if hybrid and mixer.window:
        return [PageSpec("sliding", block, page, mixer.window)]
    if hybrid and chunked and mixer.chunk:
        return [PageSpec("chunked", block, page, mixer.chunk)]
    index = [PageSpec("full", block, int(block * mixer.index_dim * size))] if mixer.index_dim else []
    return [PageSpec("full", block, page), *index]


def _compressed(mixer: CompressedAttention, block: int) -> list[PageSpec]:
    """A window of packed entries, and where the layer compresses, one entry for `ratio` tokens."""
    found = [PageSpec("sliding", block, block * compressed_bytes(mixer), mixer.window)]
    if mixer.ratio:
        entry = compressed_bytes(mixer) + index_bytes(mixer.indexer)
        found.append(PageSpec("full", block, ceil(block / mixer.ratio) * entry))
    return found


def _align(found: list[CachedLayer], state: int) -> tuple[CachedLayer, ...]:
    """Grow attention pages until one holds a recurrent state; state pages take the same size."""
    attention = [cached.spec for cached in found if cached.spec.kind != "state"]
    if not attention:
        return tuple(replace(cached, spec=PageSpec("state", 1, state)) for cached in found)
    token = max(spec.page // spec.block for spec in attention)
    block = max(attention[0].block, PAGE_TOKENS * ceil(state / (PAGE_TOKENS * token)))
    page = block * token
    aligned = []
    for cached in found:
        spec = cached.spec
        if spec.kind == "state":
            aligned.append(replace(cached, spec=PageSpec("state", block, page)))
        else:
            aligned.append(replace(cached, spec=replace(spec, block=block, page=block * (spec.page // spec.block))))
    return tuple(aligned)


def heads_note(kv_heads: int, tp: int) -> str:
    """What a reader should know when key/value heads are copied; "" when they are not."""
    if kv_heads >= tp:
        return ""
    kept = local_heads(kv_heads, tp)
    return f"{kv_heads} key/value heads on {tp} ranks: each rank keeps {kept}, the cache does not shrink further"
