"""How a weight format stores a matrix: bits an element, scales, zero points, and what kernels keep beside them."""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One way to store a projection.

    `bits` an element; one scale of `scale_bytes` for every `group_rows` x `group_columns` elements (0: the whole side,
    so (1, 0) is one a row and (0, 0) one a tensor); `zero_bits` a group for stored zero points; `input_index_bytes` an
    input channel (activation order). `activation_bits`: precision the products run in.
    """

    name: str
    bits: float
    scale_bytes: int = 0
    group_rows: int = 0
    group_columns: int = 0
    zero_bits: int = 0
    input_index_bytes: int = 0
    activation_bits: int = 16

    def size(self, rows: int, columns: int, copies: int = 1) -> float:
        """Bytes of `copies` matrices of `rows` x `columns`, scales included."""
        groups = ceil(rows / (self.group_rows or rows)) * ceil(columns / (self.group_columns or columns))
        elements = rows * columns * self.bits / 8
        return copies * (elements + groups * (self.scale_bytes + self.zero_bits / 8) + columns * self.input_index_bytes)


def plain(name: str, element_bytes: float) -> WeightFormat:
    """An unquantised format."""
    return WeightFormat(name, element_bytes * 8, activation_bits=int(min(16, element_bytes * 8)))


BF16 = plain("bf16", 2)
FP16 = plain("fp16", 2)
FP32 = plain("fp32", 4)
FP8_TENSOR = WeightFormat("fp8", 8, scale_bytes=4, activation_bits=8)
FP8_CHANNEL = WeightFormat("fp8", 8, scale_bytes=4, group_rows=1, activation_bits=8)
INT8_CHANNEL = WeightFormat("w8a8", 8, scale_bytes=4, group_rows=1, activation_bits=8)
INT8_WEIGHT = WeightFormat("int8", 8, scale_bytes=2, group_rows=1)
NVFP4 = WeightFormat("nvfp4", 4, scale_bytes=1, group_rows=1, group_columns=16, activation_bits=4)
MXFP4 = WeightFormat("mxfp4", 4, scale_bytes=1, group_rows=1, group_columns=32)
MXFP8 = WeightFormat("mxfp8", 8, scale_bytes=1, group_rows=1, group_columns=32, activation_bits=8)


def fp8_block(rows: int, columns: int, scale_bytes: int = 4) -> WeightFormat:
    """FP8 with one scale a block of `rows` x `columns`."""
    return WeightFormat("fp8", 8, scale_bytes=scale_bytes, group_rows=rows, group_columns=columns, activation_bits=8)


def integer_groups(bits: int, group: int, *, zero_points: bool, activation_order: bool = False) -> WeightFormat:
    """GPTQ, AWQ and pack-quantized integers: 16-bit scales a group of input columns, 16-bit products."""
    name = f"w{bits}a16"
    return WeightFormat(
        name,
        bits,
        scale_bytes=2,
        group_rows=1,
        group_columns=max(0, group),
        zero_bits=bits if zero_points else 0,
        input_index_bytes=8 if activation_order else 0,
    )


PRECISIONS: dict[str, WeightFormat] = {
    "bf16": BF16,
    "fp16": FP16,
    "fp32": FP32,
    "fp8": FP8_CHANNEL,
    "w8a8": INT8_CHANNEL,
    "int8": INT8_WEIGHT,
    "w4a16": integer_groups(4, 128, zero_points=False),
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
}
"""A named precision for every projection, used when a checkpoint without a quantisation block is asked for in it."""
