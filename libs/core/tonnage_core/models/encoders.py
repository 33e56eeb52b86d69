"""Vision and audio encoders of a multimodal config: their weights, and what one image or clip costs."""

from dataclasses import dataclass, replace

from tonnage_core.models.fields import Fields
from tonnage_core.models.tensors import Split, Tensor, vector

_GATED = ("pixtral", "gemma4_vision", "qwen2_5_vl", "mllama_vision_model")
_NO_BIAS = ("pixtral", "gemma4_vision", "siglip2_nobias")
_WHOLE_ATTENTION = ("moonvit", "gemma4_vision")
"""Towers whose attention and projector engines keep whole on every tensor-parallel rank."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder beside the language model.

    `item_tokens`: the most embeddings one image or clip takes in the prompt; `item_elements`: elements of its input
    (pixels x channels); `item_patches`: positions the tower runs over; `hidden_elements` and `wide_elements`:
    activations alive for one of them, the second kind split over tensor-parallel ranks. They size the profile run.
    """

    kind: str
    tensors: tuple[Tensor, ...]
    item_tokens: int
    item_elements: int
    item_patches: int
    hidden_elements: int
    wide_elements: int
    output_copies: int = 1
    """Hidden-size vectors an embedding carries: one, and one for each deep layer it feeds."""


def encoders_of(config: Fields, text_hidden: int) -> tuple[Encoder, ...]:
    """Every encoder a config has; an empty tuple for text-only models."""
    found = []
    vision = config.section("vision_config", "vision_tower_config")
    if vision is not None and (vision.get("hidden_size", "vt_hidden_size", "width", "embed_dim") is not None):
        found.append(_vision(config, vision, text_hidden))
    audio = config.section("audio_config")
    if audio is not None and audio.get("d_model", "hidden_size") is not None:
        found.append(_audio(audio, text_hidden))
    return tuple(found)


def _block(hidden: int, width: int, heads_width: int, gated: bool, biased: bool, whole: bool) -> list[Tensor]:
    rows, columns = (Split.NONE, Split.NONE) if whole else (Split.ROWS, Split.COLUMNS)
    found = [
        Tensor("qkv", 3 * heads_width, hidden, split=rows),
        Tensor("proj", hidden, heads_width, split=columns),
        Tensor("fc1", width * (2 if gated else 1), hidden, split=Split.ROWS),
        Tensor("fc2", hidden, width, split=Split.COLUMNS),
        vector("norms", hidden * (4 if biased else 2)),
    ]
    if biased:
        found.append(vector("bias", 3 * heads_width + width, rows))
        found.append(vector("output_bias", 2 * hidden))
    return found


def _repeat(block: list[Tensor], name: str, layers: int) -> list[Tensor]:
    return [
        Tensor(f"{name}.{t.name}", t.rows, t.columns, layers, t.split, t.unit, t.linear, t.element_bytes) for t in block
    ]


def _vision(config: Fields, vision: Fields, text_hidden: int) -> Encoder:
    kind = vision.text("model_type") or config.text("model_type")
    hidden = vision.integer("hidden_size", "vt_hidden_size", "width", "embed_dim")
    if vision.get("embed_dim") is not None and vision.get("depth") is not None and vision.get("vt_hidden_size") is None:
        hidden = vision.integer("embed_dim", "hidden_size")
    layers = vision.integer("depth", "num_hidden_layers", "vt_num_hidden_layers", "layers", "num_layers")
    width = vision.integer("intermediate_size", "vt_intermediate_size", default=4 * hidden)
    heads = vision.integer("num_heads", "num_attention_heads", "vt_num_attention_heads", default=16)
    inner = vision.integer(
        "qkv_hidden_size", default=heads * vision.integer("head_dim", default=max(1, hidden // heads))
    )
    biased = vision.flag("attn_bias", "attention_bias", default=kind not in _NO_BIAS)
    whole = kind.startswith(_WHOLE_ATTENTION) or vision.get("init_pos_emb_height") is not None
    block = _block(hidden, width, inner, kind in _GATED, biased, whole)
    projector = _projector(config, vision, hidden, text_hidden)
    if whole:
        projector = [replace(tensor, split=Split.NONE) for tensor in projector]
    tensors = _repeat(block, "vision_tower.layers", layers) + _patches(vision, hidden) + projector
    wide = width * (3 if kind in _GATED else 2)
    deep = len(vision.sequence("deepstack_visual_indexes") or ())
    return Encoder("vision", tuple(tensors), *_item(config, vision), 2 * hidden, wide, 1 + deep)


def _patches(vision: Fields, hidden: int) -> list[Tensor]:
    patch, channels = vision.integer("patch_size", default=14), vision.integer("in_channels", "num_channels", default=3)
    columns = patch * patch * channels * vision.integer("temporal_patch_size", default=1)
    found = [Tensor("vision_tower.patch_embed", hidden, columns, linear=False)]
    size = vision.optional("image_size")
    positions = vision.optional("num_position_embeddings", "position_embedding_size")
    if positions is None and vision.get("init_pos_emb_height") is not None:
        positions = vision.integer("init_pos_emb_height") * vision.integer("init_pos_emb_width", default=1)
    if positions is None and size is not None and vision.text("model_type") != "pixtral":
        positions = (size // patch) ** 2
    if positions:
        factor = 2 if vision.get("position_embedding_size") is not None else 1
        found.append(Tensor("vision_tower.position_embedding", positions * factor, hidden, linear=False))
    return found


def _merge(config: Fields, vision: Fields) -> int:
    """Patches that become one embedding."""
    side = config.optional("spatial_merge_size") or vision.optional("spatial_merge_size")
    kernel = vision.sequence("merge_kernel_size")
    if side is None and kernel:
        side = vision.check("merge_kernel_size", kernel[0], 1, 64)
    ratio = vision.get("pixel_shuffle_ratio") or config.get("downsample_ratio")
    if side is None and ratio is not None:
        shrink = config if vision.get("pixel_shuffle_ratio") is None else vision
        side = round(1 / max(0.01, shrink.number("pixel_shuffle_ratio", "downsample_ratio", default=1)))
    return (side or 1) ** 2


def _projector(config: Fields, vision: Fields, hidden: int, text_hidden: int) -> list[Tensor]:
    """A two-layer perceptron from merged patches to the language model, as most families have it."""
    merged = hidden * _merge(config, vision)
    out = vision.integer("out_hidden_size", default=text_hidden)
    shuffled = vision.optional("projector_input_dim")
    if shuffled is not None:
        inner = vision.integer("projector_output_dim", default=shuffled)
        return [
            Tensor("multi_modal_projector.fc1", shuffled, merged, split=Split.ROWS),
            Tensor("multi_modal_projector.fc2", inner, shuffled, split=Split.COLUMNS),
            Tensor(
                "multi_modal_projector.linear",
                out,
                vision.integer("vision_output_dim", default=inner),
                split=Split.NONE,
            ),
        ]
    if config.get("mm_tokens_per_image", "vision_soft_tokens_per_image") is not None:
        return [Tensor("multi_modal_projector.linear", out, hidden, linear=False)]
    if config.get("spatial_merge_size") is not None:
        return [
            Tensor("multi_modal_projector.merging", hidden, merged, linear=False),
            Tensor("multi_modal_projector.linear_1", out, hidden, split=Split.ROWS),
            Tensor("multi_modal_projector.linear_2", out, out, split=Split.COLUMNS),
        ]
    features = config.sequence("vision_feature_layer")
    if features is not None:
        merged = hidden * len(features)
    wide = merged if _merge(config, vision) > 1 else out
    mergers = 1 + len(vision.sequence("deepstack_visual_indexes") or ())
    return [
        Tensor("multi_modal_projector.linear_1", wide, merged, mergers, split=Split.ROWS),
        Tensor("multi_modal_projector.linear_2", out, wide, mergers, split=Split.COLUMNS),
    ]


def _item(config: Fields, vision: Fields) -> tuple[int, int, int]:
    """(embeddings, input elements, patches) of the largest image.

    Towers of any resolution do not say their largest image in the config: the processors' usual limit counts.
    """
    patch, channels = vision.integer("patch_size", default=14), vision.integer("in_channels", "num_channels", default=3)
    pixels = channels * patch * patch * vision.integer("temporal_patch_size", default=1)
    fixed = config.optional("mm_tokens_per_image", "vision_soft_tokens_per_image")
    size = vision.optional("image_size")
    merge = _merge(config, vision)
    if size is None:
        pooled = vision.integer("pooling_kernel_size", default=1) ** 2
        patches = (
            fixed * pooled if fixed is not None else vision.integer("in_token_limit", default=_limit(vision) * merge)
        )
        return fixed or patches // merge, patches * pixels, patches
    tiles = _tiles(config, vision, size)
    patches = (-(-size // patch)) ** 2
    tokens = fixed if fixed is not None else max(1, patches // merge)
    return tokens * tiles, channels * size * size * tiles, patches * tiles


def _limit(vision: Fields) -> int:
    """Embeddings of the largest image: 1,024 for towers with a fixed grid of positions, else 16,384."""
    return 1024 if vision.get("init_pos_emb_height") is not None else 16384


def _tiles(config: Fields, vision: Fields, size: int) -> int:
    """Tiles of the largest image, the overview included."""
    grid = config.sequence("image_grid_pinpoints")
    if grid:
        sizes = [pair for pair in grid if isinstance(pair, list | tuple) and len(pair) == 2]
        sides = [[config.check("image_grid_pinpoints", side, 1, 1 << 20) // size for side in pair] for pair in sizes]
        return 1 + max((height * width for height, width in sides), default=0)
    if vision.get("pixel_shuffle_ratio") is not None:
        return 17
    return 1 + config.integer("max_dynamic_patch", default=0, low=0, high=1 << 10)


def _audio(audio: Fields, text_hidden: int) -> Encoder:
    hidden = audio.integer("d_model", "hidden_size")
    layers = audio.integer("encoder_layers", "num_hidden_layers", "conf_num_hidden_layers", default=1)
    width = audio.integer("encoder_ffn_dim", "intermediate_size", default=4 * hidden)
    block = _block(hidden, width, hidden, False, True, False)
    found = _repeat(block, "audio_tower.layers", layers)
    bins = audio.integer("num_mel_bins", default=128)
    found.append(Tensor("audio_tower.conv", hidden, 3 * (bins + hidden), linear=False))
    found.append(Tensor("audio_projector.linear", text_hidden, hidden, split=Split.NONE))
    tokens = audio.integer("max_source_positions", default=1500)
    return Encoder("audio", tuple(found), tokens, 2 * tokens * bins, tokens, 2 * hidden, 2 * width)
