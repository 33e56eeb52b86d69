"""Where a rank's bytes go in its memory, and which rank checks which chunk of a file."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from tonnage_core.coldstart.fetch_plan import Chunk
from tonnage_core.coldstart.load_plan import ALIGN_BYTES, aligned
from tonnage_core.coldstart.safetensors_header import Header
from tonnage_core.coldstart.shard_plan import Part, Runs, TensorParallel, kept, replicas


@dataclass(frozen=True, slots=True)
class Piece:
    """Runs of the file that lie one after the other in memory from `arena_start`."""

    runs: Runs
    arena_start: int


class ShardArena:
    """One file's parts on one rank: `offsets` one a part, each aligned; `size_bytes` in all."""

    def __init__(self, header: Header, tp: TensorParallel, align_bytes: int = ALIGN_BYTES) -> None:
        self.tp = tp
        self.header = header
        self.parts: tuple[Part, ...] = kept(header.tensors, tp)
        sizes = [aligned(part.runs.size_bytes, align_bytes) for part in self.parts]
        self.offsets = tuple(accumulate(sizes, initial=0))[: len(sizes)]
        self.size_bytes = sum(sizes)
        self._starts = [tensor.start for tensor in header.tensors]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the file that this rank keeps."""
        return sum(part.runs.size_bytes for part in self.parts)

    def pieces(self, start: int, length: int) -> Iterator[Piece]:
        """What of the file's bytes `start .. start + length` this rank keeps, each byte once."""
        for number in range(self._first(start), len(self.parts)):
            if self._starts[number] >= start + length:
                return
            runs = self.parts[number].runs
            for clipped in clip(runs, start, start + length):
                yield Piece(clipped, self.offsets[number] + _before(runs, clipped.start))

    def checks(self, chunk: Chunk) -> bool:
        """Whether this rank checks the chunk: those that read it whole anyway, else one rank by the chunk's number.

        All ranks decide alike, so that together they check every chunk.
        """
        readers = self._whole_readers(chunk)
        return self.tp.rank in readers if readers else chunk.index % self.tp.size == self.tp.rank

    def _whole_readers(self, chunk: Chunk) -> range:
        """Ranks that keep every byte of the chunk, when it lies inside one tensor; else none."""
        end = chunk.start + chunk.length
        number = self._first(chunk.start)
        tensor = self.header.tensors[number] if number < len(self.parts) else None
        if tensor is None or chunk.start < tensor.start or end > tensor.end:
            return range(0)
        part = self.parts[number]
        if part.dim is None:
            return range(self.tp.size)
        if part.runs.count > 1:
            return range(0)
        first = (chunk.start - tensor.start) // part.runs.length
        if (end - 1 - tensor.start) // part.runs.length != first:
            return range(0)
        copies = replicas(tensor, self.tp)
        return range(first * copies, (first + 1) * copies)

    def _first(self, start: int) -> int:
        return max(0, bisect_right(self._starts, start) - 1)


def clip(runs: Runs, start: int, end: int) -> Iterator[Runs]:
    """What of `runs` lies in bytes `start .. end`: at most a cut run, whole runs, a cut run."""
    if runs.count == 0 or end <= runs.start or start >= runs.end:
        return
    first = max(0, (start - runs.start) // runs.stride)
    last = min(runs.count - 1, (end - 1 - runs.start) // runs.stride)
    whole_from = first if runs.start + first * runs.stride >= start else first + 1
    whole_to = last if runs.start + last * runs.stride + runs.length <= end else last - 1
    if whole_from > first:
        yield from _cut(runs, first, start, end)
    if whole_from <= whole_to:
        yield Runs(runs.start + whole_from * runs.stride, runs.length, runs.stride, whole_to - whole_from + 1)
    if whole_to < last and (last > first or whole_from == first):
        yield from _cut(runs, last, start, end)


def _cut(runs: Runs, number: int, start: int, end: int) -> Iterator[Runs]:
    at = runs.start + number * runs.stride
    low, high = max(at, start), min(at + runs.length, end)
    if low < high:
        yield Runs(low, high - low, high - low, 1)


def _before(runs: Runs, at: int) -> int:
    """Bytes of `runs` before byte `at` of the file, which is one of theirs."""
    number, inside = divmod(at - runs.start, runs.stride)
    return number * runs.length + inside
