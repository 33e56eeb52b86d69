"""The readers of one load: each takes a run of chunks, reads it, sends it on, checks it while it travels."""

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from crc32c import crc32c

from tonnage_coldstart.errors import ContentMismatchError, DeviceMemoryError, SourceError
from tonnage_coldstart.loader.device_check import WORD_BYTES, DeviceCheck, device_check
from tonnage_coldstart.loader.device_copy import device_copy
from tonnage_coldstart.loader.host_copy import host_copy
from tonnage_coldstart.loader.residency import resident
from tonnage_coldstart.loader.ring import Ring, Slab
from tonnage_coldstart.loader.weights import WeightFile, Weights
from tonnage_core.coldstart.fetch_plan import Chunk, chunks_of

log = logging.getLogger("tonnage.coldstart.loader")
BLOCK_BYTES = 4096
new_stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
new_check: Callable[["torch.cuda.Stream | None", int], DeviceCheck | None] = device_check


@dataclass(frozen=True, slots=True)
class Target:
    """Where the bytes go: one flat uint8 tensor a file."""

    arenas: Sequence[torch.Tensor]
    stream: "torch.cuda.Stream | None"


class Lanes:
    """One load's threads. `run` returns when every byte is in its arena and checked, or raises the first error."""

    def __init__(
        self, weights: Weights, target: Target, *, verify: bool, run_chunks: int = 1, drop_behind: bool = False
    ) -> None:
        """`run_chunks`: chunks that a thread takes at a time."""
        self._weights = weights
        self._target = target
        self._verify = verify
        self._run_bytes = run_chunks * weights.chunk_bytes
        self._drop_behind = drop_behind
        on_host = all(arena.device.type == "cpu" for arena in target.arenas)
        self._copy = host_copy if on_host else device_copy(target.stream)
        self._later: DeviceCheck | None = new_check(target.stream, weights.chunk_bytes) if verify else None
        self._bases = [arena.data_ptr() for arena in target.arenas]
        self._chunks = self._all_chunks()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self, work: Sequence[Callable[[Self], None]]) -> None:
        """Run one thread for each of `work`, fewer where the system has no more. None is left after it, not even after
        an interrupt: they write into memory that is given back then."""
        threads = [threading.Thread(target=self._guarded, args=(one,), daemon=True) for one in work]
        try:
            _start(threads)
            for thread in threads:
                thread.join()
            if self._later is not None and self._error is None:
                self._guarded(Lanes._check_later)
        except BaseException as error:
            self._fail(error, None)  # so that no reader takes another run
            _outlast(threads)
            raise
        finally:
            if self._target.stream is not None:
                self._target.stream.synchronize()
        if self._error is not None:
            raise self._error

    def through(self, ring: Ring) -> None:
        """Read slabs full, in turn; each is copied to the device while its chunks are checked."""
        self.enter()
        while (run := self._next()) is not None:
            file, crc = self._weights.files[run.file], 0
            for start, length in pieces(run.start, run.length, ring.slab_bytes):
                slab = ring.take()
                read_into(file, slab.view, start, length)
                sent_to = self._send(run.file, slab, start, length)
                if not self.leave_to_device(run.file, start, length, sent_to):
                    crc = self._check(file, slab, start, length, crc)
                ring.give(slab)
            self._drop(file, run)

    def _check(self, file: WeightFile, slab: Slab, start: int, length: int, crc: int) -> int:
        """Compare the chunks that end in the slab; the checksum of the one that goes on is returned for the next."""
        if not self._checks(file):
            return 0
        at, chunk_bytes = start, self._weights.chunk_bytes
        while at < start + length:
            index = at // chunk_bytes
            chunk_end = min((index + 1) * chunk_bytes, file.size_bytes)
            end = min(chunk_end, start + length)
            crc = crc32c(slab.view[at - start : end - start], crc)
            if end == chunk_end:
                compare(file, index, crc)
                crc = 0
            at = end
        return crc

    def enter(self) -> None:
        """Make the device and the load's stream this thread's own."""
        stream = self._target.stream
        if stream is not None:
            torch.cuda.set_stream(stream)
            stream.query()  # a first call of the runtime binds its context to the thread

    def _send(self, number: int, slab: Slab, start: int, length: int) -> int | None:
        """Copy to the device; returns where in its arena the bytes lie, None when in more than one piece."""
        segments = self._weights.files[number].arena.segments(start, length)
        for one in segments:
            if one.arena_start is not None:
                self.put(number, one.arena_start, slab, one.file_start - start, one.length)
        if self._target.stream is not None:
            slab.sent(self._target.stream)
        return segments[0].arena_start if len(segments) == 1 else None

    def leave_to_device(self, number: int, start: int, length: int, sent_to: int | None) -> bool:
        """Whether the device will check these bytes: whole chunks that lie in one piece, aligned to words."""
        chunk_bytes = self._weights.chunk_bytes
        if self._later is None or sent_to is None or not self._checks(self._weights.files[number]):
            return False
        if start % chunk_bytes or length % chunk_bytes or sent_to % WORD_BYTES:
            return False
        for at in range(0, length, chunk_bytes):
            self._later.add(number, (start + at) // chunk_bytes, self._bases[number] + sent_to + at)
        return True

    def put(self, number: int, arena_start: int, slab: Slab, at: int, size: int) -> None:
        """Copy `size` bytes at `at` of the slab to `arena_start` of a file's arena; a device does so in order."""
        if self._copy is not None:
            self._copy(self._bases[number] + arena_start, slab.address + at, size)
        else:
            target = self._target.arenas[number][arena_start : arena_start + size]
            target.copy_(slab.tensor[at : at + size], non_blocking=True)

    def _check_later(self) -> None:
        """What was left to the device."""
        assert self._later is not None
        for number, index, crc in self._later.checksums():
            compare(self._weights.files[number], index, crc)

    def _checks(self, file: WeightFile) -> bool:
        return self._verify and file.crcs is not None

    def _drop(self, file: WeightFile, chunk: Chunk) -> None:
        if self._drop_behind:
            os.posix_fadvise(file.descriptor, chunk.start, chunk.length, os.POSIX_FADV_DONTNEED)

    def _all_chunks(self) -> Iterator[Chunk]:
        for number, file in enumerate(self._weights.files):
            yield from chunks_of(number, file.size_bytes, self._run_bytes)

    def _next(self) -> Chunk | None:
        with self._lock:
            return None if self._error is not None else next(self._chunks, None)

    def _guarded(self, work: Callable[[Self], None]) -> None:
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


def _start(threads: list[threading.Thread]) -> None:
    """Start them; those that cannot be are taken out. Raises `DeviceMemoryError` when it is all."""
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError as error:
            if number == 0:
                raise DeviceMemoryError("the system gives no thread to read with: raise the limit of tasks") from error
            log.warning("fewer readers than asked", extra={"readers": number, "error": str(error)[:200]})
            del threads[number:]
            return


def _outlast(threads: list[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                thread.join()


def pieces(start: int, length: int, most: int) -> Iterator[tuple[int, int]]:
    """(start, length) pairs of at most `most` bytes that cover `length` bytes from `start`."""
    for at in range(start, start + length, most):
        yield at, min(most, start + length - at)


def compare(file: WeightFile, chunk: int, crc: int) -> None:
    """Raise `ContentMismatchError` unless `crc` is that of the file's chunk number `chunk`."""
    assert file.crcs is not None
    if crc != file.crcs[chunk]:
        raise ContentMismatchError(file.name, f"CRC32C of chunk {chunk}", f"{file.crcs[chunk]:08x}", f"{crc:08x}")


def read_into(file: WeightFile, view: memoryview, start: int, length: int) -> None:
    """Fill the beginning of `view`, from the page cache where it holds all of it. Reads past it are whole blocks."""
    try:
        if not _read_past_cache(file, view, start, length):
            _read(file.name, file.descriptor, view, start, length, block_bytes=BLOCK_BYTES if file.direct else 1)
    except OSError as error:
        raise SourceError(
            file.name, f"{error.strerror or error}, between bytes {start} and {start + length}"
        ) from error


def _read_past_cache(file: WeightFile, view: memoryview, start: int, length: int) -> bool:
    """Whether that was read past the page cache: not what it holds, nor where blocks are of another size."""
    if file.cold < 0 or resident(file.descriptor, start, length):
        return False
    try:
        _read(file.name, file.cold, view, start, length, block_bytes=BLOCK_BYTES)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _read(name: str, descriptor: int, view: memoryview, start: int, length: int, *, block_bytes: int) -> None:
    done = 0
    while done < length:
        wanted = -(-(length - done) // block_bytes) * block_bytes
        count = os.preadv(descriptor, [view[done : done + wanted]], start + done)
        if count == 0:
            raise SourceError(name, f"ends at byte {start + done}: cut while it was read")
        done += count
