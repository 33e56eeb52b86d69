"""What one tensor-parallel rank keeps of each tensor, and in which runs of bytes that lies in the file.

The cut follows Megatron-style layers as engines load them (Shoeybi et al. 2019, section 3): projections into a layer
are cut by output rows, projections out of it by input columns, the vocabulary by rows; norms and what is unknown stay
whole on every rank. Fewer key/value heads than ranks: each rank keeps one head's copy.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tonnage_core.coldstart.safetensors_header import DTYPE_BITS, Tensor
from tonnage_core.errors import BadInputError

ROWS = re.compile(
    r"(^|\.)(q_proj|k_proj|v_proj|gate_proj|up_proj|w1|w3|embed_tokens|lm_head|q_b_proj|kv_b_proj)"
    r"\.(weight|bias|weight_scale|weight_scale_inv)$"
)
COLUMNS = re.compile(r"(^|\.)(o_proj|down_proj|w2)\.(weight|weight_scale_inv)$")
KV_HEADS = re.compile(r"(^|\.)(k_proj|v_proj)\.")
FUSED = re.compile(r"(^|\.)(qkv_proj|gate_up_proj|query_key_value|W_pack|c_attn|gate_up)\.")


class ShardError(BadInputError):
    """A tensor that cannot be cut as asked; nothing is read."""


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """One rank of `size`. `kv_heads` is the model's number of key/value heads, None while unknown."""

    rank: int
    size: int
    kv_heads: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 1024 or not 0 <= self.rank < self.size:
            raise ShardError(f"tensor-parallel rank {self.rank} of {self.size}: ranks go from 0 to size - 1")


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank keeps: indices `begin .. end` of dimension `dim`; the whole tensor when `dim` is None."""

    tensor: Tensor
    dim: int | None
    begin: int
    end: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        if self.dim is None:
            return self.tensor.shape
        shape = list(self.tensor.shape)
        shape[self.dim] = self.end - self.begin
        return tuple(shape)

    @property
    def runs(self) -> "Runs":
        """Where its bytes lie in the file."""
        tensor = self.tensor
        if self.dim is None or tensor.size_bytes == 0:
            return Runs(tensor.start, tensor.size_bytes, tensor.size_bytes, 1 if tensor.size_bytes else 0)
        count = _product(tensor.shape[: self.dim])
        stride = tensor.size_bytes // count
        row = stride // tensor.shape[self.dim]
        return Runs(tensor.start + self.begin * row, (self.end - self.begin) * row, stride, count)


@dataclass(frozen=True, slots=True)
class Runs:
    """`count` runs of `length` bytes, the first at byte `start` of the file, each `stride` bytes after the last."""

    start: int
    length: int
    stride: int
    count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all runs."""
        return self.length * self.count

    @property
    def end(self) -> int:
        """Byte after the last run."""
        return self.start + (self.count - 1) * self.stride + self.length if self.count else self.start


def cut_dimension(name: str, dimensions: int) -> int | None:
    """The dimension ranks share of a tensor, None when each keeps all of it. Raises `ShardError` for fused layouts."""
    if FUSED.search(name):
        raise ShardError(f"tensor {name!r} holds several projections in one: its cut is not known; load it with tp 1")
    if ROWS.search(name) and dimensions >= 1:
        return 0
    return 1 if COLUMNS.search(name) and dimensions >= 2 else None


def part_of(tensor: Tensor, tp: TensorParallel) -> Part:
    """The part of `tensor` that a rank keeps. Raises `ShardError` naming the tensor when it does not divide."""
    dim = None if tp.size == 1 else cut_dimension(tensor.name, len(tensor.shape))
    if dim is None or tensor.size_bytes == 0 or tensor.shape[dim] == 1:
        return Part(tensor, None, 0, 0)
    extent, parts, number = tensor.shape[dim], tp.size, tp.rank
    if dim == 0 and KV_HEADS.search(tensor.name) and tp.kv_heads is not None and tp.kv_heads < tp.size:
        if tp.size % tp.kv_heads:
            raise ShardError(f"tensor-parallel size {tp.size} is no multiple of the model's {tp.kv_heads} KV heads")
        parts, number = tp.kv_heads, tp.rank * tp.kv_heads // tp.size
    if extent % parts:
        raise ShardError(f"tensor {tensor.name!r}: dimension {dim} of {extent} does not divide by {parts} ranks")
    share = extent // parts
    part = Part(tensor, dim, number * share, (number + 1) * share)
    _require_whole_bytes(part)
    return part


def kept(tensors: Iterable[Tensor], tp: TensorParallel) -> tuple[Part, ...]:
    """The parts of a file's tensors that a rank keeps, in the order of their bytes."""
    return tuple(part_of(tensor, tp) for tensor in tensors)


def replicas(tensor: Tensor, tp: TensorParallel) -> int:
    """Ranks that keep the same bytes of `tensor`: 1 for a plain cut, all of them for a whole tensor."""
    if part_of(tensor, tp).dim is None:
        return tp.size
    shared = KV_HEADS.search(tensor.name) and tp.kv_heads is not None and tp.kv_heads < tp.size
    return tp.size // tp.kv_heads if shared and tp.kv_heads else 1


def kv_heads_of(config: Mapping[str, object]) -> int | None:
    """Key/value heads of a `config.json`, of its text part where it has several; None when it does not say."""
    text = config.get("text_config")
    for found in (config, text if isinstance(text, Mapping) else {}):
        for name in ("num_key_value_heads", "num_attention_heads"):
            value = found.get(name)
            if type(value) is int and value > 0:
                return value
    return None


def _require_whole_bytes(part: Part) -> None:
    bits = DTYPE_BITS.get(part.tensor.dtype, 8)
    assert part.dim is not None
    inner = _product(part.tensor.shape[part.dim + 1 :])
    if (part.end - part.begin) * inner * bits % 8 or part.begin * inner * bits % 8:
        raise ShardError(f"tensor {part.tensor.name!r}: a rank's part of {part.tensor.dtype} does not fill whole bytes")
    if part.runs.size_bytes * _product(part.tensor.shape) != part.tensor.size_bytes * _product(part.shape):
        raise ShardError(f"tensor {part.tensor.name!r}: dtype {part.tensor.dtype} cannot be cut by bytes")


def _product(shape: Iterable[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
