"""The tensors of one layer, from its plain description. Shapes follow the published checkpoints, a projection each."""

from functools import lru_cache

from tonnage_core.models.layers import (
    Attention,
    CompressedAttention,
    Dense,
    Experts,
    Indexer,
    LatentAttention,
    Layer,
    RecurrentState,
)
from tonnage_core.models.tensors import Split, Tensor, vector


@lru_cache(maxsize=4096)
def layer_tensors(layer: Layer, hidden: int) -> tuple[Tensor, ...]:
    """Every tensor of a layer; names are relative to the layer ("self_attn.q_proj")."""
    found = [vector("norms", hidden * layer.norms)] if layer.norms else []
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        found += _attention(mixer, hidden)
    elif isinstance(mixer, LatentAttention):
        found += _latent(mixer, hidden)
    elif isinstance(mixer, CompressedAttention):
        found += _compressed(mixer, hidden)
    elif isinstance(mixer, RecurrentState):
        found += _recurrent(mixer, hidden)
    if isinstance(layer.network, Experts):
        found += _experts(layer.network, hidden)
    elif isinstance(layer.network, Dense):
        found += _dense("mlp", layer.network, hidden)
    return tuple(found)


def _heads(name: str, heads: int, unit: int, columns: int) -> Tensor:
    return Tensor(name, heads * unit, columns, split=Split.HEADS, unit=unit)


def _attention(mixer: Attention, hidden: int) -> list[Tensor]:
    query = mixer.head_dim * (2 if mixer.gated else 1)
    found = [
        _heads("self_attn.q_proj", mixer.heads, query, hidden),
        _heads("self_attn.k_proj", mixer.kv_heads, mixer.head_dim, hidden),
    ]
    if not mixer.shared_key_value:
        found.append(_heads("self_attn.v_proj", mixer.kv_heads, mixer.v_head_dim, hidden))
    found.append(Tensor("self_attn.o_proj", hidden, mixer.heads * mixer.v_head_dim, split=Split.COLUMNS))
    if mixer.qkv_bias:
        rows = mixer.heads * query + mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
        found.append(vector("self_attn.qkv_bias", rows, Split.ROWS))
    if mixer.output_bias:
        found.append(vector("self_attn.o_bias", hidden))
    if mixer.query_key_norm:
        found.append(vector("self_attn.qk_norm", mixer.query_key_norm))
    if mixer.sinks:
        found.append(vector("self_attn.sinks", mixer.heads, Split.ROWS))
    if mixer.index_dim:
        found.append(Tensor("self_attn.index_q_proj", mixer.index_heads * mixer.index_dim, hidden))
        found.append(Tensor("self_attn.index_k_proj", mixer.index_dim, hidden))
    return found


def _latent(mixer: LatentAttention, hidden: int) -> list[Tensor]:
    query = mixer.nope_dim + mixer.rope_dim
    rank = mixer.kv_lora_rank
    found = [
        Tensor("self_attn.kv_a_proj_with_mqa", rank + mixer.rope_dim, hidden),
        vector("self_attn.kv_a_layernorm", rank),
    ]
    if mixer.q_lora_rank is None:
        found.append(_heads("self_attn.q_proj", mixer.heads, query, hidden))
    else:
        found.append(Tensor("self_attn.q_a_proj", mixer.q_lora_rank, hidden))
        found.append(vector("self_attn.q_a_layernorm", mixer.q_lora_rank))
        found.append(_heads("self_attn.q_b_proj", mixer.heads, query, mixer.q_lora_rank))
    found.append(_heads("self_attn.kv_b_proj", mixer.heads, mixer.nope_dim + mixer.v_head_dim, rank))
    absorbed = mixer.heads * (mixer.nope_dim + mixer.v_head_dim)
    if not mixer.cached_by_head:
        found.append(Tensor("self_attn.absorbed", absorbed, rank, split=Split.ROWS, linear=False, derived=True))
    found.append(Tensor("self_attn.o_proj", hidden, mixer.heads * mixer.v_head_dim, split=Split.COLUMNS))
    if mixer.gated:
        found.append(_heads("self_attn.g_proj", mixer.heads, mixer.v_head_dim, hidden))
    return found + _indexer(mixer.indexer, hidden, mixer.q_lora_rank or hidden)


def _indexer(indexer: Indexer | None, hidden: int, query_rank: int) -> list[Tensor]:
    """The sparse indexer is whole on every rank; its head weights stay in the model's dtype."""
    if indexer is None:
        return []
    return [
        Tensor("self_attn.indexer.wq_b", indexer.heads * indexer.head_dim, query_rank),
        Tensor("self_attn.indexer.wk", indexer.head_dim, hidden),
        vector("self_attn.indexer.k_norm", 2 * indexer.head_dim, element_bytes=4),
        Tensor("self_attn.indexer.weights_proj", indexer.heads, hidden, linear=False),
    ]


def _compressed(mixer: CompressedAttention, hidden: int) -> list[Tensor]:
    width = mixer.heads * mixer.head_dim
    found = [
        Tensor("self_attn.wq_a", mixer.q_lora_rank, hidden),
        vector("self_attn.q_norm", mixer.q_lora_rank),
        _heads("self_attn.wq_b", mixer.heads, mixer.head_dim, mixer.q_lora_rank),
        Tensor("self_attn.wkv", mixer.head_dim, hidden),
        vector("self_attn.kv_norm", mixer.head_dim),
        Tensor(
            "self_attn.wo_a",
            mixer.output_groups * mixer.output_lora_rank,
            width // mixer.output_groups,
            split=Split.ROWS,
        ),
        Tensor("self_attn.wo_b", hidden, mixer.output_groups * mixer.output_lora_rank, split=Split.COLUMNS),
        vector("self_attn.sinks", mixer.heads, Split.ROWS, element_bytes=4),
    ]
    if mixer.ratio:
        # The compressor pools keys with learned gates; overlapping windows (small ratios) double its width.
        doubled = 2 if mixer.indexer else 1
        found.append(Tensor("self_attn.compressor", 2 * doubled * mixer.head_dim, hidden, linear=False))
    if mixer.indexer:
        dim = mixer.indexer.head_dim
        found += [
            Tensor("self_attn.indexer.wq_b", mixer.indexer.heads * dim, mixer.q_lora_rank),
            Tensor("self_attn.indexer.weights_proj", mixer.indexer.heads, hidden, linear=False),
            Tensor("self_attn.indexer.compressor", 4 * dim, hidden, linear=False),
        ]
    return found


def _recurrent(mixer: RecurrentState, hidden: int) -> list[Tensor]:
    build = {
        "gated_delta": _gated_delta,
        "kda": _kimi_delta,
        "mamba2": _mamba2,
        "mamba1": _mamba1,
        "lightning": _lightning,
    }
    return build[mixer.kind](mixer, hidden)


def _conv(name: str, mixer: RecurrentState, bias: bool = False) -> Tensor:
    width = mixer.conv_width + (1 if bias else 0)
    return Tensor(name, mixer.conv_channels, width, split=Split.ROWS, linear=False)


def _gated_delta(mixer: RecurrentState, hidden: int) -> list[Tensor]:
    values = mixer.heads * mixer.value_dim
    return [
        Tensor("linear_attn.in_proj_qkv", mixer.conv_channels, hidden, split=Split.ROWS),
        Tensor("linear_attn.in_proj_z", values, hidden, split=Split.ROWS),
        Tensor("linear_attn.in_proj_a", mixer.heads, hidden, split=Split.ROWS),
        Tensor("linear_attn.in_proj_b", mixer.heads, hidden, split=Split.ROWS),
        _conv("linear_attn.conv1d", mixer),
        vector("linear_attn.A_log", 2 * mixer.heads, Split.ROWS, element_bytes=4),
        vector("linear_attn.norm", mixer.value_dim),
        Tensor("linear_attn.out_proj", hidden, values, split=Split.COLUMNS),
    ]


def _kimi_delta(mixer: RecurrentState, hidden: int) -> list[Tensor]:
    width, dim = mixer.heads * mixer.value_dim, mixer.value_dim
    found = [Tensor(f"self_attn.{name}_proj", width, hidden, split=Split.ROWS) for name in "qkv"]
    for gate in "fg":
        found.append(Tensor(f"self_attn.{gate}_a_proj", dim, hidden))
        found.append(Tensor(f"self_attn.{gate}_b_proj", width, dim, split=Split.ROWS))
    return [
        *found,
        Tensor("self_attn.b_proj", mixer.heads, hidden, split=Split.ROWS),
        _conv("self_attn.conv1d", mixer),
        vector("self_attn.A_log", mixer.heads + width, Split.ROWS, element_bytes=4),
        vector("self_attn.o_norm", dim),
        Tensor("self_attn.o_proj", hidden, width, split=Split.COLUMNS),
    ]


def _mamba2(mixer: RecurrentState, hidden: int) -> list[Tensor]:
    inner = mixer.heads * mixer.key_dim
    return [
        Tensor("mixer.in_proj", inner + mixer.conv_channels + mixer.heads, hidden, split=Split.ROWS),
        _conv("mixer.conv1d", mixer, bias=True),
        vector("mixer.A_log", 3 * mixer.heads, Split.ROWS, element_bytes=4),
        vector("mixer.norm", inner, Split.ROWS),
        Tensor("mixer.out_proj", hidden, inner, split=Split.COLUMNS),
    ]


def _mamba1(mixer: RecurrentState, hidden: int) -> list[Tensor]:
    inner, state, rank = mixer.heads, mixer.value_dim, mixer.key_heads
    return [
        Tensor("mixer.in_proj", 2 * inner, hidden, split=Split.ROWS),
        _conv("mixer.conv1d", mixer, bias=True),
        Tensor("mixer.x_proj", rank + 2 * state, inner, split=Split.COLUMNS),
        Tensor("mixer.dt_proj", inner, rank + 1, split=Split.ROWS),
        Tensor("mixer.A_log", inner, state + 1, split=Split.ROWS, linear=False, element_bytes=4),
        Tensor("mixer.out_proj", hidden, inner, split=Split.COLUMNS),
    ]


def _lightning(mixer: RecurrentState, hidden: int) -> list[Tensor]:
    width = mixer.heads * mixer.value_dim
    return [
        Tensor("self_attn.qkv_proj", 3 * width, hidden, split=Split.ROWS),
        Tensor("self_attn.output_gate", width, hidden, split=Split.ROWS),
        vector("self_attn.norm", width, Split.ROWS),
        Tensor("self_attn.out_proj", hidden, width, split=Split.COLUMNS),
    ]


def _dense(name: str, network: Dense, hidden: int) -> list[Tensor]:
    width = network.intermediate
    found = [
        Tensor(f"{name}.up_proj", width, hidden, split=Split.ROWS),
        Tensor(f"{name}.down_proj", hidden, width, split=Split.COLUMNS),
    ]
    if network.gated:
        found.append(Tensor(f"{name}.gate_proj", width, hidden, split=Split.ROWS))
    if network.bias:
        found.append(vector(f"{name}.bias", width * (2 if network.gated else 1), Split.ROWS))
        found.append(vector(f"{name}.output_bias", hidden))
    return found


def _experts(network: Experts, hidden: int) -> list[Tensor]:
    width, count = network.intermediate, network.count
    inside = network.latent or hidden
    doubled = 2 if network.gated else 1
    # Beside a dense network of the same layer, experts are a module of their own.
    path = "experts" if network.parallel_dense else "mlp.experts"
    found = [
        Tensor("mlp.gate", count, hidden, linear=False),
        Tensor(f"{path}.gate_up_proj", doubled * width, inside, count, Split.EXPERT_ROWS),
        Tensor(f"{path}.down_proj", inside, width, count, Split.EXPERT_COLUMNS),
    ]
    if network.latent is not None:
        found.append(Tensor("mlp.latent_down_proj", network.latent, hidden))
        found.append(Tensor("mlp.latent_up_proj", hidden, network.latent))
    if network.bias:
        found.append(Tensor("mlp.experts.bias", doubled * width, 1, count, Split.EXPERT_ROWS, linear=False))
        found.append(Tensor("mlp.experts.output_bias", inside, 1, count, Split.EXPERT_COLUMNS, linear=False))
    if network.routing_bias:
        found.append(vector("mlp.gate.e_score_correction_bias", count, element_bytes=4))
    if network.shared:
        found += _dense("mlp.shared_experts", Dense(network.shared, network.gated), hidden)
    if network.shared_gate:
        found.append(Tensor("mlp.shared_expert_gate", 1, hidden, linear=False))
    if network.parallel_dense:
        found += _dense("mlp", Dense(network.parallel_dense, network.gated), hidden)
    return found
