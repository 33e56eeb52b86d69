"""Build the mixer of each layer from a config: attention of every family and recurrent states."""

from collections.abc import Sequence
from typing import Any

from tonnage_core.models.conventions import Convention
from tonnage_core.models.fields import ConfigError, Fields
from tonnage_core.models.layers import Attention, CompressedAttention, Indexer, LatentAttention, Mixer
from tonnage_core.models.recurrent import recurrent_state

HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")


def mixers(config: Fields, kinds: Sequence[str], hidden: int, convention: Convention) -> list[Mixer | None]:
    """One mixer a layer, None where the layer is a network only."""
    blocks = config.sequence("block_configs")
    ratios = config.sequence("compress_ratios")
    shared = config.integer("num_kv_shared_layers", default=0, low=0)
    built: list[Mixer | None] = []
    for index, kind in enumerate(kinds):
        cached = index < len(kinds) - shared
        built.append(_mixer(config, kind, hidden, convention, cached, _at(blocks, index), _at(ratios, index), index))
    return built


def _at(values: Sequence[Any] | None, index: int) -> Any:
    return values[index] if values is not None and index < len(values) else None


def _mixer(
    config: Fields, kind: str, hidden: int, convention: Convention, cached: bool, block: Any, ratio: Any, index: int
) -> Mixer | None:
    if kind == "network":
        return None
    if kind == "recurrent":
        return recurrent_state(config, hidden)
    if ratio is not None:
        return _compressed(config, config.check("compress_ratios", ratio, 0, 1 << 20))
    if config.get("kv_lora_rank") is not None:
        return _latent(config, index, hidden, convention)
    if block is not None:
        return _pruned(config, block, hidden, convention)
    return _attention(config, kind, hidden, convention, cached, index)


def _latent(config: Fields, index: int, hidden: int, convention: Convention) -> LatentAttention:
    types = config.sequence("indexer_types")
    own = types is None or _at(types, index) != "shared"
    nope = config.integer("qk_nope_head_dim", low=0)
    return LatentAttention(
        heads=config.integer(*HEADS),
        q_lora_rank=config.optional("q_lora_rank"),
        kv_lora_rank=config.integer("kv_lora_rank"),
        nope_dim=nope,
        rope_dim=config.integer("qk_rope_head_dim", low=0 if nope else 1),
        v_head_dim=config.integer("v_head_dim", default=hidden // config.integer(*HEADS) or None),
        indexer=_indexer(config) if own else None,
        gated=config.flag("mla_use_output_gate"),
        cached_by_head=convention.latent_by_head,
    )


def _indexer(config: Fields) -> Indexer | None:
    dim = config.optional("index_head_dim")
    return None if dim is None else Indexer(config.integer("index_n_heads", default=1), dim)


def _compressed(config: Fields, ratio: int) -> CompressedAttention:
    return CompressedAttention(
        heads=config.integer(*HEADS),
        head_dim=config.integer("head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        q_lora_rank=config.integer("q_lora_rank"),
        output_lora_rank=config.integer("o_lora_rank"),
        output_groups=config.integer("o_groups", default=1),
        window=config.integer("sliding_window"),
        ratio=ratio,
        indexer=_indexer(config) if 0 < ratio < 16 else None,
    )


def head_size(config: Fields, heads: int, hidden: int) -> int:
    """The dimension of one head: stated, or the hidden size over the heads."""
    stated = config.optional("head_dim", "attention_head_dim", "kv_channels")
    if stated is not None:
        return stated
    if hidden % heads:
        raise ConfigError(
            f"{config.where}: hidden_size {hidden} is not a multiple of {heads} heads and head_dim is absent"
        )
    return hidden // heads


def kv_head_count(config: Fields, heads: int) -> int:
    """Key/value heads: stated, one with multi_query, else one a query head."""
    if config.flag("multi_query") and not config.flag("new_decoder_architecture"):
        return 1 if config.get("multi_query_group_num") is None else config.integer("multi_query_group_num")
    return config.integer(*KV_HEADS, default=heads)


def _attention(config: Fields, kind: str, hidden: int, convention: Convention, cached: bool, index: int) -> Attention:
    heads = config.integer(*HEADS)
    head_dim, kv_heads = head_size(config, heads, hidden), kv_head_count(config, heads)
    v_head_dim = config.integer("v_head_dim", default=head_dim)
    if kind == "sliding":
        heads, kv_heads = (
            config.integer("swa_num_attention_heads", default=heads),
            config.integer("swa_num_key_value_heads", default=kv_heads),
        )
        head_dim, v_head_dim = (
            config.integer("swa_head_dim", default=head_dim),
            config.integer("swa_v_head_dim", default=v_head_dim),
        )
    elif kind == "full":
        kv_heads = config.integer("num_global_key_value_heads", default=kv_heads)
        wide = config.optional("global_head_dim")
        head_dim, v_head_dim = (wide, wide) if wide else (head_dim, v_head_dim)
    if heads % kv_heads:
        raise ConfigError(f"{config.where}: {heads} attention heads are not a multiple of {kv_heads} key/value heads")
    index_dim, index_heads = _block_sparse(config, index)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        window=config.integer("sliding_window", "sliding_window_size") if kind == "sliding" else None,
        chunk=config.integer("attention_chunk_size") if kind == "chunked" else None,
        cached=cached,
        qkv_bias=config.flag("attention_bias", "qkv_bias", "add_qkv_bias", default=convention.qkv_bias),
        output_bias=convention.output_bias,
        gated=config.flag("attn_output_gate"),
        query_key_norm=_norm_width(config, convention, head_dim, heads + kv_heads),
        shared_key_value=config.flag("attention_k_eq_v") and kind == "full",
        sinks=convention.sinks,
        index_dim=index_dim,
        index_heads=index_heads,
    )


def _block_sparse(config: Fields, index: int) -> tuple[int, int]:
    """Index key width and heads of block-sparse attention layers; (0, 0) on others."""
    sparse = config.section("sparse_attention_config")
    on = _at(sparse.sequence("sparse_attention_freq"), index) if sparse else None
    if sparse is None or not on:
        return 0, 0
    return sparse.integer("sparse_index_dim"), sparse.integer("sparse_num_index_heads", default=1)


def _norm_width(config: Fields, convention: Convention, head_dim: int, heads: int) -> int:
    if convention.query_key_norm == "full":
        return head_dim * heads
    on = convention.query_key_norm == "head" or config.flag("use_qk_norm", "qk_layernorm")
    return 2 * head_dim if on else 0


def _pruned(config: Fields, block: Any, hidden: int, convention: Convention) -> Attention | None:
    """A block of a pruned stack: its own group size, or no attention at all."""
    part = Fields(block, config.where).section("attention") if isinstance(block, dict) else None
    if part is None or part.flag("no_op") or part.flag("replace_with_linear"):
        return None
    heads = config.integer(*HEADS)
    dim = head_size(config, heads, hidden)
    window = part.optional("window_length")
    group = part.integer("n_heads_in_group")
    return Attention(heads, max(1, heads // group), dim, dim, window=window, qkv_bias=convention.qkv_bias)
