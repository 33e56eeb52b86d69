"""Which kind of mixer each layer has, from any of the ways a config says it.

Kinds: full, sliding, chunked, recurrent, none; and for stacks where a layer is only a network: network.
"""

from tonnage_core.models.conventions import Convention
from tonnage_core.models.fields import ConfigError, Fields, UnknownArchitectureError
from tonnage_core.models.recurrent import only_recurrent

_TYPES = {
    "full_attention": "full",
    "attention": "full",
    "full": "full",
    "deepseek_sparse_attention": "full",
    "sparse_attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "sliding_window": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "recurrent",
    "linear": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "conv": "recurrent",
}
_LETTERS = {"*": "full", "M": "recurrent", "-": "network", "E": "network"}
_ONE_PART = {"attention": "*", "mamba": "M", "mamba2": "M", "mlp": "-", "moe": "E"}


def letters_of(config: Fields) -> str:
    """The pattern of a stack whose layers are one part each (mixer, network or experts), or ""."""
    letters = config.text("hybrid_override_pattern")
    named = config.sequence("layers_block_type")
    if letters or named is None or not {"mlp", "moe"} & {str(name) for name in named}:
        return letters
    return "".join(_ONE_PART.get(str(name), "?") for name in named)


def layer_kinds(config: Fields, layers: int, convention: Convention) -> list[str]:
    """One kind a layer; `UnknownArchitectureError` for a kind that no formula covers."""
    letters = letters_of(config)
    if letters:
        return _from_letters(letters, layers)
    named = config.sequence("layer_types", "layers_block_type")
    if named is not None:
        return _sized([_named_kind(kind) for kind in named], layers, "layer_types")
    for source in (_from_linear_lists, _from_period, _from_flags):
        found = source(config, layers)
        if found is not None:
            return found
    return _from_window(config, layers, convention)


def _sized(kinds: list[str], layers: int, what: str) -> list[str]:
    if len(kinds) < layers:
        raise ConfigError(f"{what} names {len(kinds)} layers but num_hidden_layers is {layers}")
    return kinds[:layers]


def _named_kind(kind: object) -> str:
    found = _TYPES.get(str(kind))
    if kind == "hybrid":
        raise UnknownArchitectureError(
            "layer type 'hybrid' holds attention and a recurrent state in one layer, which no formula here covers"
        )
    if found is None:
        raise UnknownArchitectureError(
            f"layer type {str(kind)[:40]!r} is not known; known: {', '.join(sorted(_TYPES))}"
        )
    return found


def _from_letters(letters: str, layers: int) -> list[str]:
    unknown = sorted(set(letters) - set(_LETTERS))
    if unknown:
        raise UnknownArchitectureError(f"hybrid_override_pattern has letters {unknown}; known: {sorted(_LETTERS)}")
    return _sized([_LETTERS[letter] for letter in letters], layers, "hybrid_override_pattern")


def _from_linear_lists(config: Fields, layers: int) -> list[str] | None:
    """`linear_attn_config` lists its full layers, counted from 1."""
    linear = config.section("linear_attn_config")
    listed = linear.sequence("full_attn_layers") if linear else None
    if listed is None:
        return None
    full = set(listed)
    return ["full" if index + 1 in full else "recurrent" for index in range(layers)]


def _from_period(config: Fields, layers: int) -> list[str] | None:
    """One attention layer in every period; the offset counts from 0."""
    period = config.optional("attn_layer_period")
    if period is not None:
        offset = config.integer("attn_layer_offset", default=0, low=0)
        return ["full" if index % period == offset else "recurrent" for index in range(layers)]
    every = config.optional("full_attention_interval")
    if every is not None:
        return ["full" if (index + 1) % every == 0 else "recurrent" for index in range(layers)]
    indices = config.sequence("attn_layer_indices", "full_attn_idxs")
    if indices is not None:
        return ["full" if index in indices else "recurrent" for index in range(layers)]
    return None


def _from_flags(config: Fields, layers: int) -> list[str] | None:
    """Lists of 0 and 1: `hybrid_layer_pattern` marks windows, `attn_type_list` marks softmax layers."""
    windows = config.sequence("hybrid_layer_pattern")
    if windows is not None:
        return _sized(["sliding" if flag else "full" for flag in windows], layers, "hybrid_layer_pattern")
    softmax = config.sequence("attn_type_list")
    if softmax is not None:
        return _sized(["full" if flag else "recurrent" for flag in softmax], layers, "attn_type_list")
    if config.get("attention_chunk_size") is not None and config.get("hybrid_layer_pattern") is None:
        every = config.integer("no_rope_layer_interval", default=4)
        return ["full" if (index + 1) % every == 0 else "chunked" for index in range(layers)]
    return None


def _from_window(config: Fields, layers: int, convention: Convention) -> list[str]:
    if config.get("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "mamba_d_state") is not None:
        raise UnknownArchitectureError(
            f"{config.where}: attention and a recurrent state stand in one layer, which no formula here covers"
        )
    if only_recurrent(config):
        return ["recurrent"] * layers
    on = config.flag("use_sliding_window", default=not convention.window_opt_in)
    if not on or config.optional("sliding_window", low=0) in (None, 0):
        return ["full"] * layers
    every = config.optional("sliding_window_pattern", "_sliding_window_pattern") or convention.window_every
    if every:
        return ["full" if (index + 1) % every == 0 else "sliding" for index in range(layers)]
    if convention.window_opt_in:
        first = config.integer("max_window_layers", default=0, low=0)
        return ["full" if index < first else "sliding" for index in range(layers)]
    return ["sliding"] * layers
