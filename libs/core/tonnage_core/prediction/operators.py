"""A model on its ranks as counts of work: bytes and FLOPs of every operator of one layer pass, per GPU.

Counted from the weight inventory, so that every architecture the memory formulas know is timed too. Nothing here
depends on a GPU or on how well kernels do; `step_model` turns counts into seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from tonnage_core.models.caching import element_bytes, index_bytes, resolved_type, token_bytes
from tonnage_core.models.inventory import layer_tensors
from tonnage_core.models.layers import (
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    Layer,
    Mixer,
    RecurrentState,
)
from tonnage_core.models.shape import ModelShape
from tonnage_core.models.tensors import Split, Tensor
from tonnage_core.models.weights import local_shape, tensor_bytes
from tonnage_core.parallelism import Layout, local_heads
from tonnage_core.quantization.formats import WeightFormat

SPARSE_TOKENS = 2048
"""Tokens that sparse latent attention keeps for each query (`index_topk` of DeepSeek-V3.2 and GLM-5)."""


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products of one storage format, summed over the layers: what a row of the batch multiplies with."""

    stored: WeightFormat
    weight_bytes: float
    flops_per_row: float


@dataclass(frozen=True, slots=True)
class ExpertProducts:
    """Expert layers alike, summed: `count` experts of which a token takes `top_k`, spread over `ranks` and split."""

    stored: WeightFormat
    layers: int
    count: int
    top_k: int
    weight_bytes: float
    """All experts of one rank."""
    flops_per_choice: float
    """Of one token in one chosen expert, through all layers, over the ranks that split it."""
    ranks: int
    hidden_bytes: float
    """What a token takes with it to an expert."""


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Attention layers alike, summed. Bytes and FLOPs of one query-key pair; `reach` is what a query sees at most."""

    layers: int
    kind: str
    """full (keys and values by head), latent, or state (fixed size, no pairs)."""
    key_bytes: float
    """Cache read for one token of context, by one query row."""
    pair_flops: float
    prefill_pair_flops: float
    reach: int | None = None
    ratio: int = 1
    """Tokens of context that share one cache entry."""
    scan_bytes: float = 0.0
    """Index keys read for each token of the whole context, where attention is sparse."""
    scan_flops: float = 0.0
    row_bytes: float = 0.0
    """Moved for a row whatever its context: states read and written."""
    row_flops: float = 0.0

    def keys(self, context: float) -> float:
        """Keys that one query reads at `context`."""
        seen = context / self.ratio
        return seen if self.reach is None else min(seen, self.reach)

    def pairs(self, tokens: float, context: float) -> float:
        """Query-key pairs of `tokens` causal queries after `context` computed ones."""
        first, last = self.keys(context), self.keys(context + tokens)
        if self.reach is None or last < self.reach:
            return tokens * (first + last) / 2
        if first >= self.reach:
            return tokens * self.reach
        grown = self.reach * self.ratio - context
        return grown * (first + self.reach) / 2 + (tokens - grown) * self.reach


@dataclass(frozen=True)
class Operators:
    """Every operator of one forward pass on one rank; with pipeline stages, of all stages one after another."""

    products: tuple[Products, ...]
    experts: tuple[ExpertProducts, ...]
    attention: tuple[AttentionWork, ...]
    head: Products
    layers: int
    expert_layers: int
    recurrent_layers: int
    latent_layers: int
    sparse_layers: int
    hidden: int
    element_bytes: float
    cache_bytes_per_token: float
    layout: Layout = field(default_factory=Layout)


@lru_cache(maxsize=256)
def _counted(shape_key: "_ByIdentity", layout: Layout, kv_dtype: str, dense: WeightFormat) -> Operators:
    return _count(shape_key.shape, layout, kv_dtype, dense)


@dataclass(frozen=True, slots=True, eq=False)
class _ByIdentity:
    """A shape as a cache key: shapes are large, and the catalogue hands out one object a model."""

    shape: ModelShape

    def __hash__(self) -> int:
        return id(self.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.shape is self.shape


def operators_of(
    shape: ModelShape, layout: Layout | None = None, kv_dtype: str = "auto", dense: WeightFormat | None = None
) -> Operators:
    """Counts of `shape` spread by `layout`. Raises `CacheTypeError` for a cache type no engine offers."""
    return _counted(_ByIdentity(shape), layout or Layout(), kv_dtype, dense or shape.dense_format)


def _count(shape: ModelShape, layout: Layout, kv_dtype: str, dense: WeightFormat) -> Operators:
    kinds: dict[tuple[Layer, tuple[WeightFormat, ...]], int] = {}
    for index, layer in enumerate(shape.stack):
        key = (layer, shape.layer_formats(index, dense))
        kinds[key] = kinds.get(key, 0) + 1
    cache = resolved_type(kv_dtype, shape)
    size = element_bytes(cache, shape)
    products = _merged(
        part
        for (layer, formats), n in kinds.items()
        for part in _layer_products(layer, formats, shape, dense, layout, n)
    )
    experts = [
        found
        for (layer, formats), n in kinds.items()
        if (found := _expert_products(layer, formats, shape, dense, layout, n)) is not None
    ]
    attention: dict[Mixer, int] = {}
    for layer in shape.stack:
        if layer.mixer is not None:
            attention[layer.mixer] = attention.get(layer.mixer, 0) + 1
    return Operators(
        products=products,
        experts=tuple(experts),
        attention=tuple(_attention(mixer, n, layout.tp, size, cache) for mixer, n in attention.items()),
        head=_head(shape, dense, layout),
        layers=shape.layers,
        expert_layers=sum(isinstance(layer.network, Experts) for layer in shape.stack),
        recurrent_layers=sum(isinstance(layer.mixer, RecurrentState) for layer in shape.stack),
        latent_layers=sum(isinstance(layer.mixer, LatentAttention) for layer in shape.stack),
        sparse_layers=sum(bool(getattr(layer.mixer, "indexer", None)) for layer in shape.stack),
        hidden=shape.hidden,
        element_bytes=shape.element_bytes,
        cache_bytes_per_token=shape.kv_bytes_per_token(kv_dtype, layout.tp),
        layout=layout,
    )


_EXPERT_SPLITS = (Split.EXPERT_ROWS, Split.EXPERT_COLUMNS)


def _layer_products(
    layer: Layer,
    formats: tuple[WeightFormat, ...],
    shape: ModelShape,
    dense: WeightFormat,
    layout: Layout,
    layers: int,
) -> Iterable[Products]:
    """Every tensor of the layer that all rows pass."""
    for tensor, stored in zip(layer_tensors(layer, shape.hidden), formats, strict=True):
        if tensor.split in _EXPERT_SPLITS or _never_whole(tensor, layer):
            continue
        rows, columns, copies = local_shape(tensor, layout)
        used = stored if tensor.linear else dense
        bytes_read = tensor_bytes(tensor, stored, dense, layout)
        yield Products(used, layers * bytes_read, layers * 2.0 * rows * columns * copies)


def _never_whole(tensor: Tensor, layer: Layer) -> bool:
    """Of the latent up-projection and its absorbed copy, a pass uses one; they hold the same elements."""
    latent = isinstance(layer.mixer, LatentAttention) and not layer.mixer.cached_by_head
    return latent and tensor.name == "self_attn.kv_b_proj"


def _merged(parts: Iterable[Products]) -> tuple[Products, ...]:
    """One entry for each precision that products run in and each width of storage."""
    sums: dict[tuple[str, float, int], tuple[WeightFormat, float, float]] = {}
    for part in parts:
        key = (part.stored.name, part.stored.bits, part.stored.activation_bits)
        stored, size, flops = sums.get(key, (part.stored, 0.0, 0.0))
        sums[key] = (stored, size + part.weight_bytes, flops + part.flops_per_row)
    return tuple(Products(*found) for found in sums.values())


def _expert_products(
    layer: Layer,
    formats: tuple[WeightFormat, ...],
    shape: ModelShape,
    dense: WeightFormat,
    layout: Layout,
    layers: int,
) -> ExpertProducts | None:
    network = layer.network
    if not isinstance(network, Experts):
        return None
    size = 0.0
    stored = dense
    for tensor, found in zip(layer_tensors(layer, shape.hidden), formats, strict=True):
        if tensor.split in _EXPERT_SPLITS:
            size += tensor_bytes(tensor, found, dense, layout)
            stored = found if tensor.linear else stored
    width = network.latent or shape.hidden
    one = width * network.intermediate * (3 if network.gated else 2)
    return ExpertProducts(
        stored=stored,
        layers=layers,
        count=network.count,
        top_k=network.top_k,
        weight_bytes=layers * size,
        flops_per_choice=layers * 2.0 * one / layout.expert_tp,
        ranks=layout.ep,
        hidden_bytes=float(width * shape.element_bytes),
    )


def _attention(mixer: Mixer, layers: int, tp: int, size: float, cache: str) -> AttentionWork:
    read = layers * token_bytes(mixer, size, cache, tp)
    if isinstance(mixer, Attention):
        heads = local_heads(mixer.heads, tp)
        pair = layers * 2.0 * heads * (mixer.head_dim + mixer.v_head_dim)
        return AttentionWork(layers, "full", read, pair, pair, reach=mixer.window or mixer.chunk)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, layers, local_heads(mixer.heads, tp), read)
    if isinstance(mixer, CompressedAttention):
        heads = local_heads(mixer.heads, tp)
        pair = layers * 4.0 * heads * mixer.head_dim
        entry = layers * token_bytes(mixer, size, cache, tp) * max(1, mixer.ratio)
        window = layers * mixer.window * mixer.head_dim * size
        return AttentionWork(layers, "latent", entry, pair, pair, ratio=max(1, mixer.ratio), row_bytes=window)
    return _recurrent(mixer, layers, tp)


def _latent(mixer: LatentAttention, layers: int, heads: int, read: float) -> AttentionWork:
    """Decoding reads one compressed vector for all heads; a prompt is expanded, and its pairs are by head."""
    wide = layers * 2.0 * heads * (2 * mixer.kv_lora_rank + mixer.rope_dim)
    plain = layers * 2.0 * heads * (mixer.nope_dim + mixer.rope_dim + mixer.v_head_dim)
    if mixer.cached_by_head:
        return AttentionWork(layers, "full", read, plain, plain)
    if mixer.indexer is None:
        return AttentionWork(layers, "latent", read, wide, plain)
    index = layers * index_bytes(mixer.indexer)
    scan = layers * 2.0 * mixer.indexer.heads * mixer.indexer.head_dim
    return AttentionWork(
        layers, "latent", read - index, wide, wide, reach=SPARSE_TOKENS, scan_bytes=index, scan_flops=scan
    )


def _recurrent(mixer: RecurrentState, layers: int, tp: int) -> AttentionWork:
    state = mixer.heads * mixer.key_dim * mixer.value_dim / tp
    moved = 2 * state * mixer.state_bytes + mixer.conv_channels * (mixer.conv_width - 1) * mixer.conv_bytes / tp
    return AttentionWork(layers, "state", 0.0, 0.0, 0.0, row_bytes=layers * moved, row_flops=layers * 8.0 * state)


def _head(shape: ModelShape, dense: WeightFormat, layout: Layout) -> Products:
    tensors = shape.embedding_tensors[:1] if shape.tied_embeddings else shape.head_tensors
    found = [(tensor, shape.end_format("lm_head", dense)) for tensor in tensors if tensor.split is Split.VOCABULARY]
    size = sum(tensor_bytes(tensor, stored, dense, layout) for tensor, stored in found)
    flops = 0.0
    for tensor, _ in found:
        rows, columns, _copies = local_shape(tensor, layout)
        flops += 2.0 * rows * columns
    return Products(found[0][1] if found else dense, size, flops)
