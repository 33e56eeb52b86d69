"""Where each byte of a weight file goes in memory: one arena a file, every tensor aligned."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from tonnage_core.coldstart.safetensors_header import Header, Tensor

ALIGN_BYTES = 512
"""The alignment of the CUDA caching allocator, which kernels rely on."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` bytes of a file from `file_start` go to `arena_start`; None: bytes of no tensor, as the header."""

    file_start: int
    arena_start: int | None
    length: int


class Arena:
    """The layout of one file's tensors: `offsets` one a tensor of the header, in its order; `size_bytes` in all."""

    def __init__(self, header: Header, align_bytes: int = ALIGN_BYTES) -> None:
        self.header = header
        self._tensors = header.tensors
        ends = accumulate((aligned(tensor.size_bytes, align_bytes) for tensor in header.tensors), initial=0)
        self.offsets = tuple(ends)[: len(header.tensors)]
        self.size_bytes = sum(aligned(tensor.size_bytes, align_bytes) for tensor in header.tensors)
        self._starts = [tensor.start for tensor in header.tensors]

    def segments(self, start: int, length: int) -> list[Segment]:
        """The file's bytes `start .. start + length` in order, each in one segment; neighbours are merged."""
        merged: list[Segment] = []
        for piece in self._pieces(start, start + length):
            last = merged[-1] if merged else None
            if last is not None and _continues(last, piece):
                merged[-1] = Segment(last.file_start, last.arena_start, last.length + piece.length)
            else:
                merged.append(piece)
        return merged

    def _pieces(self, start: int, end: int) -> Iterator[Segment]:
        if start < self.header.body_start:
            yield Segment(start, None, min(end, self.header.body_start) - start)
        first = max(0, bisect_right(self._starts, start) - 1)
        for number in range(first, len(self._tensors)):
            tensor = self._tensors[number]
            if tensor.start >= end:
                return
            piece = _overlap(tensor, self.offsets[number], start, end)
            if piece is not None:
                yield piece


def _overlap(tensor: Tensor, offset: int, start: int, end: int) -> Segment | None:
    first, last = max(tensor.start, start), min(tensor.end, end)
    return Segment(first, offset + first - tensor.start, last - first) if first < last else None


def _continues(last: Segment, piece: Segment) -> bool:
    if last.arena_start is None or piece.arena_start is None:
        return False
    return last.arena_start + last.length == piece.arena_start


def aligned(size_bytes: int, align_bytes: int) -> int:
    """`size_bytes` rounded up to a whole number of `align_bytes`."""
    return -(-size_bytes // align_bytes) * align_bytes
