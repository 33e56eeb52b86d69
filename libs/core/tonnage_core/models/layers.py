"""What one decoder layer is made of: a mixer (softmax attention, latent attention or a recurrent state) and a network.

Plain data, read by the weight inventory (`models.tensors`) and by the KV cache layout (`kv_cache.layout`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head, grouped or multi-query softmax attention. Sizes in elements, windows in tokens.

    `window` limits what a query sees to the last tokens; `chunk` to its own aligned chunk. `cached` is false on layers
    that read another layer's cache.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    chunk: int | None = None
    cached: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    gated: bool = False
    query_key_norm: int = 0
    shared_key_value: bool = False
    sinks: bool = False
    index_dim: int = 0
    index_heads: int = 0


@dataclass(frozen=True, slots=True)
class Indexer:
    """The scorer of sparse latent attention: it caches one small key a token."""

    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed vector and one rotary key a token, whatever the heads."""

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    indexer: Indexer | None = None
    gated: bool = False
    cached_by_head: bool = False
    """Every head's key and value is cached, expanded, instead of the compressed vector."""


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """One-vector attention over a sliding window plus a compressed history (one entry per `ratio` tokens; 0: none)."""

    heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    output_lora_rank: int
    output_groups: int
    window: int
    ratio: int
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """A linear layer: a state of fixed size a sequence instead of keys and values.

    `conv_channels` x (`conv_width` - 1) elements of convolution state and `heads` x `key_dim` x `value_dim` elements of
    recurrent state; both divide by the tensor-parallel size. `kind` names the projections: mamba1, mamba2,
    gated_delta, kda, lightning.
    """

    kind: str
    heads: int
    key_dim: int
    value_dim: int
    conv_channels: int
    conv_width: int
    key_heads: int = 1
    groups: int = 1
    state_bytes: int = 4
    conv_bytes: int = 2


Mixer = Attention | LatentAttention | CompressedAttention | RecurrentState


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward network of `intermediate` width; gated ones have two input projections."""

    intermediate: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts; `shared` is the total width of the experts every token passes.

    `latent` is the width routed experts work in when it differs from the hidden size. `parallel_dense` is a dense
    network beside the experts in the same layer.
    """

    count: int
    top_k: int
    intermediate: int
    shared: int = 0
    gated: bool = True
    bias: bool = False
    shared_gate: bool = False
    latent: int | None = None
    routing_bias: bool = False
    parallel_dense: int = 0


Network = Dense | Experts


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; either part may be missing (pruned blocks, hybrid stacks). `norms`: vectors of hidden size."""

    mixer: Mixer | None
    network: Network | None
    norms: int = 2
