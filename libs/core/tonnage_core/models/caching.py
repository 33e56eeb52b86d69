"""What one layer caches for one token on one rank, in bytes, by cache element type."""

from typing import TYPE_CHECKING

from tonnage_core.errors import BadInputError
from tonnage_core.models.layers import Attention, CompressedAttention, Indexer, LatentAttention, Mixer
from tonnage_core.parallelism import local_heads, pipeline_stages

if TYPE_CHECKING:
    from tonnage_core.models.shape import ModelShape

ELEMENT_BYTES: dict[str, float] = {
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "half": 2,
    "fp32": 4,
    "float32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "fp8_ds_mla": 1,
    "int8": 1,
    "nvfp4": 0.5625,
}
"""Bytes of a cached element; NVFP4 has one scale byte for 16 elements."""

PACKED_LATENT = "fp8_ds_mla"
ROTARY_BYTES = 2
"""The packed format keeps rotary keys in 16 bits and one 4-byte scale for 128 latent elements."""


class CacheTypeError(BadInputError):
    """A cache element type that no engine offers."""


def resolved_type(kv_dtype: str, shape: "ModelShape") -> str:
    """The type in use: `auto` is what the checkpoint says; 8 bits on sparse latent attention are the packed format."""
    chosen = kv_dtype
    if chosen in ("", "auto"):
        chosen = shape.quantization.kv_cache or "auto"
    sparse = any(isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer for layer in shape.stack)
    return PACKED_LATENT if sparse and chosen.startswith("fp8") else chosen


def element_bytes(kv_dtype: str, shape: "ModelShape") -> float:
    """Bytes of a cache element; `auto`: what the checkpoint says, else the model's own dtype."""
    if kv_dtype in ("", "auto"):
        return ELEMENT_BYTES[shape.quantization.kv_cache] if shape.quantization.kv_cache else shape.element_bytes
    found = ELEMENT_BYTES.get(kv_dtype)
    if found is None:
        raise CacheTypeError(f"unknown KV cache type {kv_dtype[:40]!r}; use auto, {', '.join(sorted(ELEMENT_BYTES))}")
    return found


def index_bytes(indexer: Indexer | None) -> int:
    """One 8-bit index key with a 4-byte scale for 128 elements: 132 bytes at the usual width."""
    return 0 if indexer is None else indexer.head_dim + indexer.head_dim // 128 * 4


def latent_bytes(mixer: LatentAttention, size: float, kv_dtype: str, tp: int) -> float:
    """The compressed vector and rotary key of one token, whatever the tensor-parallel size.

    Where an engine caches every head instead, values are padded to the width of keys.
    """
    if mixer.cached_by_head:
        return local_heads(mixer.heads, tp) * 2 * (mixer.nope_dim + mixer.rope_dim) * size
    if kv_dtype == PACKED_LATENT:
        return mixer.kv_lora_rank + mixer.kv_lora_rank // 128 * 4 + mixer.rope_dim * ROTARY_BYTES
    return (mixer.kv_lora_rank + mixer.rope_dim) * size


def token_bytes(mixer: Mixer | None, size: float, kv_dtype: str, tp: int) -> float:
    """Cache bytes of one token in one layer, at full length; recurrent layers cache none by token."""
    if isinstance(mixer, Attention):
        if not mixer.cached:
            return 0
        keys = local_heads(mixer.kv_heads, tp) * (mixer.head_dim + mixer.v_head_dim) * size
        return keys + mixer.index_dim * size
    if isinstance(mixer, LatentAttention):
        return latent_bytes(mixer, size, kv_dtype, tp) + index_bytes(mixer.indexer)
    if isinstance(mixer, CompressedAttention):
        return compressed_bytes(mixer) / mixer.ratio + index_bytes(mixer.indexer) / mixer.ratio if mixer.ratio else 0
    return 0


def compressed_bytes(mixer: CompressedAttention) -> int:
    """One packed entry: 8-bit latent, a scale byte for 64 elements, one byte of padding, 16-bit rotary part."""
    latent = mixer.head_dim - mixer.rope_dim
    return latent + mixer.rope_dim * ROTARY_BYTES + -(-(latent // 64 + 1) // 8) * 8


def bytes_per_token(shape: "ModelShape", kv_dtype: str, tp: int, pp: int = 1) -> int:
    """Cache bytes of one token on one rank, every attention layer at full length; with stages, of the dearest one."""
    kv_dtype = resolved_type(kv_dtype, shape)
    size = element_bytes(kv_dtype, shape)
    costs = [token_bytes(layer.mixer, size, kv_dtype, tp) for layer in shape.stack]
    start, dearest = 0, 0.0
    for count in pipeline_stages(shape.layers, pp):
        dearest = max(dearest, sum(costs[start : start + count]))
        start += count
    return round(dearest)
