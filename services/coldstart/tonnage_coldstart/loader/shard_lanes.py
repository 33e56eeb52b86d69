"""The readers of one tensor-parallel rank: only the bytes it keeps are read, and the chunks it checks.

Rows a rank keeps of a tensor cut by columns are short runs, thousands of them: they are gathered through a mapping of
the file, which is read by the processor alone; the device copies from the pinned slab, never from the mapping. A file
that somebody cuts short while it is mapped ends the process (SIGBUS): snapshots of the cache are never written again.
"""

import contextlib
import mmap
import threading
from collections.abc import Sequence

import numpy as np
from crc32c import crc32c

from tonnage_coldstart.errors import SourceError
from tonnage_coldstart.loader.lanes import Lanes, Target, compare, pieces, read_into
from tonnage_coldstart.loader.ring import Ring, Slab
from tonnage_coldstart.loader.weights import WeightFile, Weights
from tonnage_core.coldstart.fetch_plan import Chunk
from tonnage_core.coldstart.shard_layout import Piece, ShardArena

GATHER_BELOW_BYTES = 256 << 10
"""Runs shorter than this are gathered through the mapping; longer ones are read each by its own call."""


class ShardLanes(Lanes):
    """One rank's load; `arenas` one a file. `read_bytes` counts what was read of the files, checks included."""

    def __init__(
        self,
        weights: Weights,
        arenas: Sequence[ShardArena],
        target: Target,
        *,
        verify: bool,
        slab_bytes: int,
        drop_behind: bool = False,
    ) -> None:
        super().__init__(weights, target, verify=verify, drop_behind=drop_behind)
        self._arenas = arenas
        self._slab_bytes = slab_bytes
        self._maps: dict[int, mmap.mmap] = {}
        self._counting = threading.Lock()
        self.read_bytes = 0

    def close(self) -> None:
        """Give the mappings back; after an error the last one goes with its traceback."""
        for one in self._maps.values():
            with contextlib.suppress(BufferError):
                one.close()
        self._maps.clear()

    def through_shards(self, ring: Ring) -> None:
        """Take chunks in turn; what this rank keeps of each goes to the device, what it checks is checked."""
        self.enter()
        scratch = memoryview(bytearray(0))
        while (chunk := self._next()) is not None:
            file, arena = self._weights.files[chunk.file], self._arenas[chunk.file]
            wanted = list(arena.pieces(chunk.start, chunk.length))
            if self._checks(file) and arena.checks(chunk):
                if chunk.length <= self._slab_bytes and all(piece.runs.count == 1 for piece in wanted):
                    self._checked_in_slab(file, chunk, wanted, ring)
                    self._drop(file, chunk)
                    continue
                if len(scratch) < chunk.length:
                    scratch = memoryview(bytearray(chunk.length))
                self._checked(file, chunk, wanted, scratch, ring)
            else:
                for piece in wanted:
                    self._read(file, chunk.file, piece, ring)
            self._drop(file, chunk)

    def _checked_in_slab(self, file: WeightFile, chunk: Chunk, wanted: list[Piece], ring: Ring) -> None:
        """The whole chunk into the slab; what this rank keeps goes on from there while the chunk is checked."""
        slab = ring.take()
        read_into(file, slab.view, chunk.start, chunk.length)
        self._count(chunk.length)
        for piece in wanted:
            at, size = piece.runs.start - chunk.start, piece.runs.length
            self.put(chunk.file, piece.arena_start, slab, at, size)
        if self._target.stream is not None:
            slab.sent(self._target.stream)
        whole = wanted[0].arena_start if len(wanted) == 1 and wanted[0].runs.length == chunk.length else None
        if not self.leave_to_device(chunk.file, chunk.start, chunk.length, whole):
            compare(file, chunk.index, crc32c(slab.view[: chunk.length]))
        ring.give(slab)

    def _checked(self, file: WeightFile, chunk: Chunk, wanted: list[Piece], scratch: memoryview, ring: Ring) -> None:
        """The whole chunk, once: checked, then this rank's part of it taken from memory."""
        read_into(file, scratch, chunk.start, chunk.length)
        self._count(chunk.length)
        compare(file, chunk.index, crc32c(scratch[: chunk.length]))
        held = np.frombuffer(scratch, dtype=np.uint8)
        for piece in wanted:
            self._gather(held, chunk.start, chunk.file, piece, ring)

    def _read(self, file: WeightFile, number: int, piece: Piece, ring: Ring) -> None:
        self._count(piece.runs.size_bytes)
        if piece.runs.length < GATHER_BELOW_BYTES and piece.runs.count > 1:
            self._gather(np.frombuffer(self._map(file, number), dtype=np.uint8), 0, number, piece, ring)
            return
        arena_at = piece.arena_start
        for run in range(piece.runs.count):
            start = piece.runs.start + run * piece.runs.stride
            for at, size in pieces(start, piece.runs.length, self._slab_bytes):
                slab = ring.take()
                read_into(file, slab.view, at, size)
                self._put(number, slab, arena_at, size)
                ring.give(slab)
                arena_at += size

    def _gather(
        self, held: "np.ndarray[tuple[int], np.dtype[np.uint8]]", base: int, number: int, piece: Piece,
        ring: Ring,
    ) -> None:  # fmt: skip
        """Runs of `held`, which begins at byte `base` of the file, side by side into slabs and to the device."""
        runs, arena_at = piece.runs, piece.arena_start
        if runs.length > self._slab_bytes:
            for at, size in pieces(runs.start, runs.length, self._slab_bytes):
                self._rows(held[at - base : at - base + size].reshape(1, size), number, arena_at, ring)
                arena_at += size
            return
        at_once = self._slab_bytes // runs.length
        for first, count in pieces(0, runs.count, at_once):
            begin = runs.start - base + first * runs.stride
            rows = np.lib.stride_tricks.as_strided(held[begin:], (count, runs.length), (runs.stride, 1))
            self._rows(rows, number, arena_at, ring)
            arena_at += count * runs.length

    def _rows(
        self, rows: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]", number: int, arena_at: int,
        ring: Ring,
    ) -> None:  # fmt: skip
        slab = ring.take()
        np.copyto(slab.tensor.numpy()[: rows.size].reshape(rows.shape), rows)
        self._put(number, slab, arena_at, rows.size)
        ring.give(slab)

    def _put(self, number: int, slab: Slab, arena_at: int, size: int) -> None:
        self.put(number, arena_at, slab, 0, size)
        if self._target.stream is not None:
            slab.sent(self._target.stream)

    def _map(self, file: WeightFile, number: int) -> mmap.mmap:
        with self._counting:
            found = self._maps.get(number)
            if found is None:
                found = self._maps[number] = _mapped(file)
            return found

    def _count(self, size: int) -> None:
        with self._counting:
            self.read_bytes += size


def _mapped(file: WeightFile) -> mmap.mmap:
    try:
        return mmap.mmap(file.descriptor, file.size_bytes, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:  # shorter than when it was opened, or no memory for its pages
        raise SourceError(file.name, f"cannot be mapped: {error}") from error
