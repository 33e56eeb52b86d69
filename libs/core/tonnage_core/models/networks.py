"""Build the feed-forward network of each layer from a config: dense, experts, or both."""

from collections.abc import Sequence
from typing import Any

from tonnage_core.models.conventions import Convention
from tonnage_core.models.fields import ConfigError, Fields
from tonnage_core.models.layers import Dense, Experts, Network
from tonnage_core.models.patterns import letters_of
from tonnage_core.models.recurrent import only_recurrent

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts")
TOP_K = (
    "num_experts_per_tok",
    "top_k_experts",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_k",
    "moe_topk",
)
WIDTHS = (
    "intermediate_size_mlp",
    "dense_intermediate_size",
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "ffn_hidden_size",
)
UNGATED = ("relu2", "gelu_new", "squared_relu")


def networks(config: Fields, kinds: Sequence[str], hidden: int, convention: Convention) -> list[Network | None]:
    """One network a layer, None where a layer has none."""
    letters = letters_of(config)
    if letters:
        made = {"-": _dense(config, hidden, convention), "E": _experts_if_any(config, hidden, convention)}
        return [made.get(letter) for letter in letters[: len(kinds)]]
    blocks = config.sequence("block_configs")
    if blocks is not None:
        if len(blocks) < len(kinds):
            raise ConfigError(f"{config.where}: block_configs names {len(blocks)} of {len(kinds)} layers")
        return [_pruned(config, block, hidden) for block in blocks[: len(kinds)]]
    if only_recurrent(config):
        return [None] * len(kinds)
    experts = _experts_if_any(config, hidden, convention)
    if experts is None:
        dense = _dense(config, hidden, convention)
        wide = config.flag("use_double_wide_mlp")
        shared = config.integer("num_kv_shared_layers", default=0, low=0) if wide else 0
        double = Dense(2 * dense.intermediate, dense.gated, dense.bias)
        return [double if index >= len(kinds) - shared else dense for index in range(len(kinds))]
    sparse = sparse_layers(config, len(kinds))
    dense_or_none = None if all(sparse) else _dense(config, hidden, convention)
    return [experts if flag else dense_or_none for flag in sparse]


def sparse_layers(config: Fields, layers: int) -> list[bool]:
    """Which layers have experts."""
    types = config.sequence("mlp_layer_types")
    if types is not None:
        if len(types) < layers:
            raise ConfigError(f"{config.where}: mlp_layer_types names {len(types)} of {layers} layers")
        return [kind == "sparse" for kind in types[:layers]]
    listed = config.sequence("moe_layers", "moe_layers_enum")
    if listed is not None and listed:
        return [index in listed for index in range(layers)]
    step = config.optional("interleave_moe_layer_step", "expert_layer_period", "decoder_sparse_step")
    if step is not None:
        offset = config.integer("expert_layer_offset", default=step - 1, low=0)
        dense: Sequence[Any] = config.sequence("mlp_only_layers") or ()
        return [index % step == offset % step and index not in dense for index in range(layers)]
    first = config.integer("first_k_dense_replace", "moe_layer_start_index", default=0, low=0)
    frequency = config.get("moe_layer_freq", "moe_layer_interval")
    if isinstance(frequency, list | tuple):
        if len(frequency) < layers:
            raise ConfigError(f"{config.where}: moe_layer_freq names {len(frequency)} of {layers} layers")
        return [bool(flag) for flag in frequency[:layers]]
    every = 1 if frequency is None else config.check("moe_layer_freq", frequency, 1, layers)
    return [index >= first and index % every == 0 for index in range(layers)]


def _gated(config: Fields, convention: Convention) -> bool:
    return convention.gated and config.text("mlp_hidden_act") not in UNGATED


def _dense(config: Fields, hidden: int, convention: Convention) -> Dense:
    stated = config.get(*WIDTHS) is not None
    width = config.every_layer(*WIDTHS) if stated else _default_width(config, hidden, convention)
    width //= 2 if convention.half_width else 1
    bias = config.flag("mlp_bias", "use_mlp_bias", default=convention.mlp_bias)
    return Dense(width, _gated(config, convention), bias)


def _default_width(config: Fields, hidden: int, convention: Convention) -> int:
    if convention.gated:
        raise ConfigError(f"{config.where} has no intermediate_size; give the model's own config.json")
    return 4 * hidden


def _experts_if_any(config: Fields, hidden: int, convention: Convention) -> Experts | None:
    count = config.optional(*EXPERTS, low=0)
    if not count or count == 1 or not config.flag("enable_moe_block", default=True):
        return None
    top_k = config.every_layer(*TOP_K)
    if top_k > count:
        raise ConfigError(f"{config.where}: {top_k} experts a token but only {count} experts")
    width = config.every_layer(
        "moe_intermediate_size",
        "expert_intermediate_size",
        "moe_ffn_hidden_size",
        "expert_ffn_hidden_size",
        "intermediate_size",
        "ffn_hidden_size",
    )
    parallel = config.integer("intermediate_size") if config.get("enable_moe_block") else 0
    return Experts(
        count=count,
        top_k=top_k,
        intermediate=width,
        shared=_shared_width(config, width),
        gated=_gated(config, convention),
        bias=convention.mlp_bias,
        shared_gate=config.get("shared_expert_intermediate_size") is not None,
        latent=config.optional("routed_expert_hidden_size", "moe_latent_size"),
        routing_bias=config.text("topk_method") == "noaux_tc" or config.flag("use_routing_bias", "use_moe_router_bias"),
        parallel_dense=parallel,
    )


def _shared_width(config: Fields, width: int) -> int:
    """Total width of shared experts: stated, or their number times an expert's width."""
    stated = config.optional(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
        low=0,
    )
    count = config.every_layer(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert", default=0, low=0
    )
    if stated is not None:
        return stated * max(1, count) if config.get("moe_shared_expert_intermediate_size") is None else stated
    if config.get("intermediate_size_mlp") is not None:
        return width
    return count * width


def _pruned(config: Fields, block: Any, hidden: int) -> Dense | None:
    """A pruned block's network: a multiple of the hidden size, cut to two thirds and rounded up to 256."""
    part = Fields(block, config.where).section("ffn") if isinstance(block, dict) else None
    if part is None or part.flag("no_op"):
        return None
    stated = part.optional("intermediate_size")
    if stated is not None:
        return Dense(stated)
    width = int(2 * part.number("ffn_mult", default=4.0) * hidden / 3)
    return Dense(-(-width // 256) * 256)
