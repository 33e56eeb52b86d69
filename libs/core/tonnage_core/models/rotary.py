"""Cosine and sine tables of rotary embeddings, kept whole on every rank.

Rows are positions (stretched by the scaling), columns the rotated part of a head. Source: vLLM's rotary embedding
layers (Apache-2.0), facts only.
"""

from typing import TYPE_CHECKING

from tonnage_core.models.fields import Fields
from tonnage_core.models.layers import Attention, CompressedAttention, LatentAttention

if TYPE_CHECKING:
    from tonnage_core.models.shape import ModelShape

MULTIMODAL_ROWS = 4
"""Engines stretch the table this far for multimodal sections."""


def rotary_elements(config: Fields, shape: "ModelShape") -> int:
    """Elements of all distinct tables; 0 for models that rotate nothing."""
    if shape.learned_positions or (config.get("position_embedding_type") not in (None, "rope")):
        return 0
    found: set[tuple[int, int, str]] = set()
    parameters = config.section("rope_parameters")
    for layer in shape.stack:
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            found.add(_attention_table(config, parameters, shape, mixer))
        elif isinstance(mixer, LatentAttention | CompressedAttention) and mixer.rope_dim:
            found.add((_rows(config, _scaling(config, parameters), shape), mixer.rope_dim, ""))
    return sum(rows * width for rows, width, _ in found)


def _scaling(config: Fields, parameters: Fields | None) -> Fields | None:
    return config.section("rope_scaling") or parameters


def _attention_table(
    config: Fields, parameters: Fields | None, shape: "ModelShape", mixer: Attention
) -> tuple[int, int, str]:
    kind = "sliding_attention" if mixer.window else "full_attention"
    own = parameters.section(kind) if parameters else None
    local = mixer.window is not None and config.get("rope_local_base_freq", "swa_rope_theta") is not None
    scaling = own or (None if local else _scaling(config, parameters))
    factor = (own or parameters or config).number(
        "partial_rotary_factor", default=config.number("partial_rotary_factor", default=1)
    )
    width = config.optional("rotary_dim") or max(1, int(mixer.head_dim * min(1.0, factor)))
    separate = kind if own is not None or local else ""
    return _rows(config, scaling, shape), width, separate


def _rows(config: Fields, scaling: Fields | None, shape: "ModelShape") -> int:
    rows = shape.max_position_embeddings
    if scaling is None:
        return rows
    if scaling.get("mrope_section") is not None:
        return rows * MULTIMODAL_ROWS
    kind = scaling.text("rope_type", "type")
    factor = scaling.number("factor", default=1)
    original = scaling.optional("original_max_position_embeddings")
    if kind == "yarn" and original is not None:
        return round(original * factor)
    if kind in ("linear", "dynamic"):
        return round(rows * max(1.0, factor))
    if kind in ("longrope", "su"):
        return rows + (original or config.optional("original_max_position_embeddings") or 0)
    return rows


def longest_sequence(config: Fields, positions: int) -> int:
    """Tokens of the longest sequence: scaled positions, except where the config's number already counts the scaling."""
    scaling = config.section("rope_scaling", "rope_parameters")
    kind = scaling.text("rope_type", "type") if scaling else ""
    if scaling is None or config.get("rope_local_base_freq") is not None:
        return positions
    factor = max(1.0, scaling.number("factor", default=1))
    original = scaling.optional("original_max_position_embeddings")
    if kind == "yarn":
        return max(positions, round(original * factor)) if original else round(positions * factor)
    return round(positions * factor) if kind in ("linear", "dynamic") else positions
