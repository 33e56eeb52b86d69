"""The readers of one load: each takes a chunk, reads it, sends it on, checks it while it travels."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from crc32c import crc32c

from tonnage_coldstart.errors import ContentMismatchError, SourceError
from tonnage_coldstart.loader.ring import Slab, bytes_of
from tonnage_coldstart.loader.weights import WeightFile, Weights
from tonnage_core.coldstart.fetch_plan import Chunk, chunks_of

BLOCK_BYTES = 4096
MAX_VECTORS = 512
new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event
new_stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream


@dataclass(frozen=True, slots=True)
class Target:
    """Where the bytes go: one flat uint8 tensor a file."""

    arenas: Sequence[torch.Tensor]
    stream: "torch.cuda.Stream | None"


class Lanes:
    """One load's threads. `run` returns when every byte is in its arena and checked, or raises the first error."""

    def __init__(self, weights: Weights, target: Target, *, verify: bool, max_chunk_bytes: int) -> None:
        self._weights = weights
        self._target = target
        self._verify = verify
        self._max_chunk_bytes = max_chunk_bytes
        self._chunks = self._all_chunks()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self, work: Sequence[Callable[["Lanes"], None]]) -> None:
        """Run one thread for each of `work`."""
        threads = [threading.Thread(target=self._guarded, args=(one,), daemon=True) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._target.stream is not None:
            self._target.stream.synchronize()
        if self._error is not None:
            raise self._error

    def through(self, slabs: list[Slab]) -> None:
        """Read chunks into the slabs in turn and copy them to the device."""
        turn = 0
        while (chunk := self._next()) is not None:
            slab = slabs[turn % len(slabs)]
            turn += 1
            slab.wait()
            self._through_slab(chunk, slab)
        for slab in slabs:
            slab.wait()

    def direct(self) -> None:
        """Read chunks straight into the arenas, which lie in host memory."""
        views = [bytes_of(arena) for arena in self._target.arenas]
        while (chunk := self._next()) is not None:
            file = self._weights.files[chunk.file]
            segments = file.arena.segments(chunk.start, chunk.length)
            parts = [
                memoryview(bytearray(one.length))
                if one.arena_start is None
                else views[chunk.file][one.arena_start : one.arena_start + one.length]
                for one in segments
            ]
            _read_vectors(file, parts, chunk.start)
            self._check(file, chunk, parts)

    def _through_slab(self, chunk: Chunk, slab: Slab) -> None:
        file = self._weights.files[chunk.file]
        _read(file, slab.view, chunk)
        arena = self._target.arenas[chunk.file]
        with torch.cuda.stream(self._target.stream):
            for one in file.arena.segments(chunk.start, chunk.length):
                if one.arena_start is not None:
                    at = one.file_start - chunk.start
                    source = slab.tensor[at : at + one.length]
                    arena[one.arena_start : one.arena_start + one.length].copy_(source, non_blocking=True)
            if self._target.stream is not None:
                slab.busy = new_event()
                slab.busy.record(self._target.stream)
        self._check(file, chunk, [slab.view[: chunk.length]])

    def _check(self, file: WeightFile, chunk: Chunk, parts: Sequence[memoryview]) -> None:
        if not self._verify or file.crcs is None:
            return
        crc = 0
        for part in parts:
            crc = crc32c(part, crc)
        if crc != file.crcs[chunk.index]:
            expected, found = f"{file.crcs[chunk.index]:08x}", f"{crc:08x}"
            raise ContentMismatchError(file.name, f"CRC32C of chunk {chunk.index}", expected, found)

    def _all_chunks(self) -> Iterator[Chunk]:
        for number, file in enumerate(self._weights.files):
            yield from chunks_of(number, file.size_bytes, self._max_chunk_bytes)

    def _next(self) -> Chunk | None:
        with self._lock:
            return None if self._error is not None else next(self._chunks, None)

    def _guarded(self, work: Callable[["Lanes"], None]) -> None:
        try:
            work(self)
        except OSError as error:
            self._fail(SourceError("weights", error.strerror or str(error)), error)
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: `run` raises it to the caller
            self._fail(error, None)

    def _fail(self, error: BaseException, cause: BaseException | None) -> None:
        error.__cause__ = cause
        if self._error is None:
            self._error = error


def _read(file: WeightFile, view: memoryview, chunk: Chunk) -> None:
    """Fill the beginning of `view` with a chunk. Past the page cache the length is a whole number of blocks."""
    done = 0
    while done < chunk.length:
        wanted = chunk.length - done
        if file.direct:
            wanted = -(-wanted // BLOCK_BYTES) * BLOCK_BYTES
        count = os.preadv(file.descriptor, [view[done : done + wanted]], chunk.start + done)
        if count == 0:
            raise SourceError(file.name, f"ends at byte {chunk.start + done}: cut while it was read")
        done += count


def _read_vectors(file: WeightFile, parts: Sequence[memoryview], start: int) -> None:
    left = [part for part in parts if part.nbytes]
    at = start
    while left:
        count = os.preadv(file.descriptor, left[:MAX_VECTORS], at)
        if count == 0:
            raise SourceError(file.name, f"ends at byte {at}: cut while it was read")
        at += count
        while left and count >= left[0].nbytes:
            count -= left.pop(0).nbytes
        if count:
            left[0] = left[0][count:]
