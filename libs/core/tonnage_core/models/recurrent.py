"""Recurrent layers of a config: Mamba 1 and 2, gated delta nets, Kimi delta attention, lightning attention."""

from tonnage_core.models.fields import ConfigError, Fields, UnknownArchitectureError
from tonnage_core.models.layers import RecurrentState

MAMBA_HEADS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def recurrent_state(config: Fields, hidden: int) -> RecurrentState:
    """The state of one recurrent layer, by which fields the config has."""
    linear = config.section("linear_attn_config")
    if linear is not None:
        return _kimi_delta(linear)
    if config.get("linear_num_value_heads") is not None:
        return _gated_delta(config)
    if config.get(*MAMBA_HEADS) is not None or (only_recurrent(config) and config.get("num_heads") is not None):
        return _mamba2(config, hidden)
    if config.get("state_size", "mamba_d_state", "ssm_state_size") is not None:
        return _mamba1(config, hidden)
    if config.get("attn_type_list") is not None:
        heads = config.integer("num_attention_heads")
        dim = config.integer("head_dim", default=hidden // heads)
        return RecurrentState("lightning", heads, dim, dim, conv_channels=0, conv_width=1)
    raise UnknownArchitectureError(
        f"{config.where}: a layer is linear but no linear_*, mamba_* or state_size field sizes its state"
    )


def only_recurrent(config: Fields) -> bool:
    """Whether every layer is a state-space layer and nothing else: a state size, and no attention heads.

    `num_heads` beside a state size counts the state's heads (Mamba 2), not attention's.
    """
    return config.get("num_attention_heads", "n_head", "n_heads") is None and config.get("state_size") is not None


def _expanded(config: Fields, hidden: int) -> int:
    """Channels of a state-space layer: a multiple of the hidden size."""
    channels = round(config.number("expand", "mamba_expand", default=2) * hidden)
    if channels < 1:
        raise ConfigError(f"{config.where}: expand x hidden_size is {channels}; it must be at least 1")
    return channels


def _state_bytes(config: Fields, default: int = 2) -> int:
    """Bytes of a state element: stated, else what vLLM's `mamba_ssm_cache_dtype=auto` takes."""
    return _BYTES.get(config.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype"), default)


def _gated_delta(config: Fields) -> RecurrentState:
    values, keys = config.integer("linear_num_value_heads"), config.integer("linear_num_key_heads")
    key_dim, value_dim = config.integer("linear_key_head_dim"), config.integer("linear_value_head_dim")
    return RecurrentState(
        "gated_delta",
        heads=values,
        key_dim=key_dim,
        value_dim=value_dim,
        conv_channels=2 * keys * key_dim + values * value_dim,
        conv_width=config.integer("linear_conv_kernel_dim", default=4),
        key_heads=keys,
        state_bytes=_state_bytes(config),
    )


def _kimi_delta(linear: Fields) -> RecurrentState:
    heads, dim = linear.integer("num_heads"), linear.integer("head_dim")
    width = linear.integer("short_conv_kernel_size", default=4)
    return RecurrentState(
        "kda", heads, dim, dim, conv_channels=3 * heads * dim, conv_width=width, key_heads=heads, state_bytes=4
    )


def _mamba2(config: Fields, hidden: int) -> RecurrentState:
    alone = only_recurrent(config)
    heads = config.integer(*MAMBA_HEADS, *(("num_heads",) if alone else ()))
    stated = ("mamba_head_dim", "mamba_d_head", "mamba_headdim", *(("head_dim",) if alone else ()))
    dim = config.integer(*stated, default=max(1, _expanded(config, hidden) // heads))
    state = config.integer("ssm_state_size", "mamba_d_state", "state_size")
    groups = config.integer("n_groups", "mamba_n_groups", "mamba_ngroups", default=1)
    return RecurrentState(
        "mamba2",
        heads=heads,
        key_dim=dim,
        value_dim=state,
        conv_channels=heads * dim + 2 * groups * state,
        conv_width=config.integer("conv_kernel", "mamba_d_conv", default=4),
        groups=groups,
        state_bytes=_state_bytes(config),
    )


def _mamba1(config: Fields, hidden: int) -> RecurrentState:
    channels = config.integer("mamba_intermediate_size", "d_inner", default=_expanded(config, hidden))
    return RecurrentState(
        "mamba1",
        heads=channels,
        key_dim=1,
        value_dim=config.integer("state_size", "mamba_d_state", "ssm_state_size"),
        conv_channels=channels,
        conv_width=config.integer("conv_kernel", "mamba_d_conv", default=4),
        key_heads=config.integer("time_step_rank", "mamba_dt_rank", default=-(-hidden // 16)),
        state_bytes=_state_bytes(config),
    )
