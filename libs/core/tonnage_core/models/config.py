"""A model's shape from the mapping of its config.json: any architecture whose layers a formula covers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tonnage_core.models.conventions import ENCODERS, Convention, convention_of
from tonnage_core.models.encoders import encoders_of
from tonnage_core.models.fields import ConfigError, Fields, UnknownArchitectureError
from tonnage_core.models.layers import Attention, CompressedAttention, Dense, Experts, LatentAttention, Layer
from tonnage_core.models.mixers import HEADS, head_size, kv_head_count, mixers
from tonnage_core.models.networks import networks
from tonnage_core.models.patterns import layer_kinds, letters_of
from tonnage_core.models.rotary import longest_sequence, rotary_elements
from tonnage_core.models.shape import ModelShape
from tonnage_core.quantization.parse import parse_quantization
from tonnage_core.quantization.plan import QuantizationPlan

NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
MOST_LAYERS = 4096
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
DEFAULT_POSITIONS = 2048
DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_UNCOVERED = {
    "altup_num_inputs": "layers with alternating updates",
    "zero_expert_num": "layers with two attentions and experts that compute nothing",
    "lru_width": "gated linear recurrences",
}
"""Fields of layers that would be counted wrong, not nearly right."""
_SECTIONS = {
    "attn_config": ("kv_n_heads",),
    "ffn_config": ("ffn_hidden_size", "moe_num_experts", "moe_top_k"),
}
_DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16"}


def shape_from_config(config: Mapping[str, Any], name: str = "model") -> ModelShape:
    """The shape of a published config.json.

    Raises `ConfigError` for missing or impossible fields and `UnknownArchitectureError` for layers no formula covers;
    what had to be assumed stands in the shape's `notes`.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"{name}: a model config must be a JSON object, not {type(config).__name__}")
    top = Fields(config, name)
    text = _language_part(top)
    if top.flag("is_encoder_decoder") or text.flag("is_encoder_decoder"):
        raise UnknownArchitectureError(f"{name}: encoder-decoder models are not covered; give a decoder's config.json")
    model_type = text.text("model_type") or top.text("model_type")
    if model_type in ENCODERS and not text.flag("is_decoder"):
        raise UnknownArchitectureError(
            f"{name}: {model_type!r} is an encoder and keeps no KV cache; give a decoder's config.json"
        )
    for field, what in _UNCOVERED.items():
        if text.get(field):
            raise UnknownArchitectureError(f"{name}: {what} ({field}) are not covered by a formula here")
    pattern = len(letters_of(text)) or None
    layers = text.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers", default=pattern, high=MOST_LAYERS)
    hidden = text.integer("hidden_size", "n_embd", "n_embed", "d_model")
    convention, known = convention_of(model_type)
    stack = _stack(text, layers, hidden, convention)
    head = _first_attention(text, hidden, stack)
    shape = ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=head[0],
        kv_heads=head[1],
        head_dim=head[2],
        vocab=text.integer("vocab_size", "padded_vocab_size"),
        intermediate=_widest(stack),
        max_position_embeddings=text.integer(*POSITIONS, default=DEFAULT_POSITIONS),
        dtype=_dtype(top, text),
        stack=stack,
        tied_embeddings=_tied(top, text, convention),
        architecture=_architecture(top, model_type),
        quantization=_quantization(top, text),
        encoders=encoders_of(top, hidden),
        learned_positions=text.integer(*POSITIONS, default=DEFAULT_POSITIONS) if convention.learned_positions else 0,
        layer_inputs=_layer_inputs(text),
        draft_layers=text.integer(*DRAFT_LAYERS, default=0, low=0),
        final_norms=convention.final_norms,
        head_bias=convention.head_bias,
        notes=_notes(top, text, model_type, known),
    )
    return _finished(text, shape)


def _finished(text: Fields, shape: ModelShape) -> ModelShape:
    """The shape with what follows from its layers; storage formats are matched now, the slow part of an answer."""
    longest = longest_sequence(text, shape.max_position_embeddings)
    found = replace(shape, rotary_elements=rotary_elements(text, shape), longest=longest)
    for index in range(found.layers):
        found.layer_formats(index, found.dense_format)
    return found


def _quantization(top: Fields, text: Fields) -> QuantizationPlan:
    names = ("quantization_config", "compression_config")
    block = top.get(*names) or text.get(*names)
    return parse_quantization(block if isinstance(block, Mapping) else None, text.text("expert_dtype"))


def _notes(top: Fields, text: Fields, model_type: str, known: bool) -> tuple[str, ...]:
    """What was assumed while reading."""
    notes = []
    if not known:
        notes.append(f"architecture {model_type[:40]!r} is not listed: counted as a gated decoder without biases")
    if text.flag("use_cla"):
        notes.append("cross-layer attention (use_cla): every layer counted with keys, values and a cache of its own")
    if text.sequence("cross_attention_layers"):
        notes.append("cross-attention layers counted as self-attention: their cache grows with images, not with text")
    if text.get(*POSITIONS) is None:
        notes.append(f"the config does not say max_position_embeddings: {DEFAULT_POSITIONS:,} assumed")
    if _stated_dtype(top, text) in ("float32", "float"):
        notes.append("a 32-bit checkpoint, loaded in 16 bits as engines do; ask for dtype fp32 to keep 32")
    return tuple(notes)


def _language_part(top: Fields) -> Fields:
    """The language model's own section; nested twice in some multimodal configs."""
    section = top.section(*NESTED)
    if (
        section is None
        or section.get("num_hidden_layers", "n_layer", "num_layers", "text_config", "hidden_size") is None
    ):
        return _lifted(top)
    return _language_part(section)


def _lifted(fields: Fields) -> Fields:
    """Sizes of attention and experts that stand in sections of their own, beside the others."""
    found = {name: fields.values[name] for name in fields.values}
    for section, names in _SECTIONS.items():
        inner = fields.section(section)
        found |= {name: inner.values[name] for name in names if inner and inner.get(name) is not None}
    return Fields(found, fields.where)


def _stack(text: Fields, layers: int, hidden: int, convention: Convention) -> tuple[Layer, ...]:
    kinds = layer_kinds(text, layers, convention)
    norms = convention.norms
    pairs = zip(mixers(text, kinds, hidden, convention), networks(text, kinds, hidden, convention), strict=True)
    stack = tuple(Layer(mixer, network, norms if mixer and network else min(norms, 1)) for mixer, network in pairs)
    if all(layer.mixer is None for layer in stack):
        raise UnknownArchitectureError(f"{text.where}: no layer has attention or a recurrent state")
    return stack


def _first_attention(text: Fields, hidden: int, stack: tuple[Layer, ...]) -> tuple[int, int, int]:
    """Heads, key/value heads and head width of the first attention layer; a stack of recurrent layers has none."""
    for layer in stack:
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            return mixer.heads, mixer.kv_heads, mixer.head_dim
        if isinstance(mixer, LatentAttention):
            return mixer.heads, 1, mixer.kv_lora_rank + mixer.rope_dim
        if isinstance(mixer, CompressedAttention):
            return mixer.heads, 1, mixer.head_dim
    if text.get(*HEADS) is None:
        return 1, 1, hidden
    heads = text.integer(*HEADS)
    return heads, kv_head_count(text, heads), head_size(text, heads, hidden)


def _layer_inputs(text: Fields) -> tuple[int, int]:
    """Rows and width of per-layer embeddings."""
    width = text.integer("hidden_size_per_layer_input", default=0, low=0)
    return (text.integer("vocab_size_per_layer_input", "vocab_size"), width) if width else (0, 0)


def _widest(stack: tuple[Layer, ...]) -> int:
    dense = [layer.network.intermediate for layer in stack if isinstance(layer.network, Dense)]
    experts = [layer.network.intermediate for layer in stack if isinstance(layer.network, Experts)]
    return max(dense or experts or [0])


def _stated_dtype(top: Fields, text: Fields) -> str:
    return (text.text("torch_dtype", "dtype") or top.text("torch_dtype", "dtype")).removeprefix("torch.")


def _dtype(top: Fields, text: Fields) -> str:
    """The 16-bit type in use; engines load 32-bit checkpoints in 16 bits unless told otherwise."""
    return _DTYPES.get(_stated_dtype(top, text), "bfloat16")


def _tied(top: Fields, text: Fields, convention: Convention) -> bool:
    for fields in (text, top):
        if fields.get("tie_word_embeddings") is not None:
            return fields.flag("tie_word_embeddings")
    return convention.tied


def _architecture(top: Fields, model_type: str) -> str:
    listed = top.sequence("architectures")
    return str(listed[0]) if listed else model_type
