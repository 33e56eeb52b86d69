"""The threads of one transfer: take a chunk, read, check and write it; the last chunk finishes its file."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from crc32c import crc32c

from tonnage_coldstart.cache.transfer import Transfer
from tonnage_coldstart.errors import (
    CancelledError,
    ContentMismatchError,
    TransientSourceError,
)
from tonnage_coldstart.fetch.gate import LONGEST_WAIT_S, Gate, Pacer
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.snapshot import Source
from tonnage_coldstart.verification import check_file
from tonnage_core.coldstart.brake import backoff_s
from tonnage_core.coldstart.fetch_plan import Chunk, chunks_of, fetch_order
from tonnage_core.errors import TonnageError


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How hard to pull."""

    connections: int = 8
    """Ranges in flight."""
    attempts: int = 6
    """Tries of one range before the transfer fails."""
    first_backoff_s: float = 0.2
    """Pause before the second try; doubles, with jitter."""
    drop_behind: bool = False
    """Let the page cache give up each file once it is on the disk: the pod's memory is not charged for it."""
    bytes_per_s: float | None = None
    """Most bytes a second of all transfers together, repeated ranges and other nodes' chunks too; None: no cap."""


class Fetch:
    """One transfer from one source. `run` returns when every file has its name, or raises the first error."""

    def __init__(
        self,
        source: Source,
        transfer: Transfer,
        options: FetchOptions,
        progress: Progress,
        stop: threading.Event,
        *,
        rng: Random,
        monotonic: Callable[[], float],
        pacer: Pacer | None = None,
    ) -> None:
        """`pacer`: shared with other transfers; by default one of `options` for this transfer alone."""
        self._source = source
        self._transfer = transfer
        self._options = options
        self._progress = progress
        self._stop = stop
        self._rng = rng
        self._gate = Gate(options.connections, monotonic, rng)
        self._pacer = pacer or Pacer(options.bytes_per_s, monotonic)
        self._files = transfer.snapshot.files
        self._chunk_bytes = transfer.snapshot.chunk_bytes
        self._tasks = self._chunks()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._failed = threading.Event()

    def run(self) -> None:
        """Fetch what is missing."""
        for number in [number for number, part in self._transfer.parts.items() if part.complete]:
            self._finish(number)
        threads = [threading.Thread(target=self._work, name=f"fetch-{i}", daemon=True) for i in range(self._width())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        if not self._transfer.complete:
            raise CancelledError("stopped; what was fetched is kept for the next try")

    def _width(self) -> int:
        missing = sum(1 for _ in self._chunks())
        return min(self._options.connections, missing)

    def _chunks(self) -> Iterator[Chunk]:
        names = [file.name for file in self._files]
        for number in fetch_order(names, [file.size_bytes for file in self._files]):
            chunks = (
                chunk
                for chunk in chunks_of(number, self._files[number].size_bytes, self._chunk_bytes)
                if self._transfer.needs(number, chunk.index)
            )
            if self._files[number].ranges:
                yield from chunks
            else:
                yield from list(chunks)[:1]

    def _work(self) -> None:
        buffer = memoryview(bytearray(self._chunk_bytes))
        try:
            while not self._stopped():
                with self._lock:
                    chunk = next(self._tasks, None)
                if chunk is None:
                    return
                self._fetch(chunk, buffer)
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: `run` raises it to the caller
            with self._lock:
                self._error = self._error or error
            self._failed.set()

    def _fetch(self, chunk: Chunk, buffer: memoryview) -> None:
        if self._files[chunk.file].ranges:
            self._retried(lambda: self._range(chunk, buffer[: chunk.length]))
        else:
            self._retried(lambda: self._whole(chunk.file, buffer))
        part = self._transfer.parts[chunk.file]
        with self._lock:
            last = part.complete and not part.claimed
            part.claimed = part.claimed or last
        if last:
            self._finish(chunk.file)

    def _range(self, chunk: Chunk, view: memoryview) -> None:
        self._pacer.wait(chunk.length, self._pause)
        self._source.read_range(self._files[chunk.file], chunk.start, view)
        self._keep(chunk, view)

    def _whole(self, number: int, buffer: memoryview) -> None:
        file = self._files[number]
        whole = self._source.open_whole(file)
        try:
            for chunk in chunks_of(number, file.size_bytes, self._chunk_bytes):
                if self._stopped():
                    raise CancelledError("stopped; what was fetched is kept for the next try")
                self._pacer.wait(chunk.length, self._pause)
                whole.read_into(buffer[: chunk.length])
                if self._transfer.needs(number, chunk.index):
                    self._keep(chunk, buffer[: chunk.length])
        finally:
            whole.close()

    def _keep(self, chunk: Chunk, view: memoryview) -> None:
        self._progress.received(chunk.length)
        crc = crc32c(view)
        file = self._files[chunk.file]
        if file.chunk_crcs is not None and file.chunk_crcs[chunk.index] != crc:
            expected, found = f"{file.chunk_crcs[chunk.index]:08x}", f"{crc:08x}"
            raise ContentMismatchError(file.name, f"CRC32C of chunk {chunk.index}", expected, found)
        self._transfer.parts[chunk.file].write(chunk, view, crc)
        self._progress.fetched(chunk.length)

    def _finish(self, number: int) -> None:
        part = self._transfer.parts[number]
        try:
            check_file(part.path, self._files[number])
        except TonnageError:
            part.discard()
            raise
        self._transfer.finish(number)
        self._progress.finished_file()

    def _retried(self, read: Callable[[], None]) -> None:
        for attempt in range(self._options.attempts):
            if attempt:
                self._progress.retried()
                self._pause(backoff_s(attempt - 1, self._rng, self._options.first_backoff_s))
            self._gate.enter(self._stopped)
            try:
                read()
            except TransientSourceError as error:
                self._gate.leave(refusal=error.refused, retry_after_s=error.retry_after_s, served=False)
                if attempt + 1 == self._options.attempts:
                    raise
            except ContentMismatchError:
                self._gate.leave(refusal=False, served=False)
                if attempt + 1 == self._options.attempts:
                    raise
            except TonnageError:
                self._gate.leave(refusal=False, served=False)
                raise
            else:
                self._gate.leave(refusal=False)
                return

    def _stopped(self) -> bool:
        return self._stop.is_set() or self._failed.is_set()

    def _pause(self, seconds: float) -> None:
        """In short steps, as a stop must not wait for the end of a long one."""
        left = seconds
        while left > 0:
            if self._failed.wait(min(left, LONGEST_WAIT_S)) or self._stop.is_set():
                raise CancelledError("stopped; what was fetched is kept for the next try")
            left -= LONGEST_WAIT_S
