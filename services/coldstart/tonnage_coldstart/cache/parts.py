"""A file on its way in: the part file, and the journal of the chunks that are written and what they must be.

A chunk enters the journal after its bytes are written. On resume each journaled chunk is read back and checked, so a
torn write (a crash of the machine) costs one chunk, never a wrong byte.
"""

import os
import struct
import threading
from collections.abc import Mapping
from pathlib import Path

from crc32c import crc32c

from tonnage_coldstart.errors import cache_error
from tonnage_core.coldstart.fetch_plan import Chunk, chunk_count, chunks_of

RECORD = struct.Struct("<III")
"""Chunk index, CRC32C of the chunk, CRC32C of the first eight bytes of the record."""


class PartFile:
    """One file of a transfer; `write` may be called from several threads."""

    def __init__(self, directory: Path, number: int, size_bytes: int, chunk_bytes: int) -> None:
        self.path = directory / f"{number:05d}.part"
        self.journal_path = directory / f"{number:05d}.journal"
        self.size_bytes = size_bytes
        self.chunk_bytes = chunk_bytes
        self.crcs: dict[int, int] = {}
        self.claimed = False
        """Set once, by the thread that finishes the file."""
        self._lock = threading.Lock()
        self._part = -1
        self._journal = -1

    @property
    def complete(self) -> bool:
        """Every chunk is written."""
        return len(self.crcs) == chunk_count(self.size_bytes, self.chunk_bytes)

    def open(self) -> None:
        """Open or create; the journal's chunks that hold are in `crcs`. Raises `CacheError`."""
        try:
            self._part = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self.crcs = {
                index: crc for index, crc in read_journal(self.journal_path).items() if self._holds(index, crc)
            }
            self._rewrite_journal()
        except OSError as error:
            self.close()
            raise cache_error(error, self.path) from error

    def write(self, chunk: Chunk, data: memoryview, crc: int) -> None:
        """Write a chunk's bytes, then its journal record. Raises `CacheError`, `DiskFullError` among them."""
        try:
            write_all(self._part, data, chunk.start)
            with self._lock:
                os.write(self._journal, _record(chunk.index, crc))
                self.crcs[chunk.index] = crc
        except OSError as error:
            raise cache_error(error, self.path) from error

    def finish(self, destination: Path, *, drop: bool = False) -> None:
        """Make the bytes durable and give the file its name. The journal stays until the snapshot is published.

        `drop`: the page cache may let the file's pages go; until they are durable it could not.
        """
        try:
            os.ftruncate(self._part, self.size_bytes)
            os.fsync(self._part)
            if drop:
                os.posix_fadvise(self._part, 0, 0, os.POSIX_FADV_DONTNEED)
            destination.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.path, destination)
        except OSError as error:
            raise cache_error(error, self.path) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptors; idempotent."""
        for descriptor in (self._part, self._journal):
            if descriptor >= 0:
                os.close(descriptor)
        self._part = self._journal = -1

    def discard(self) -> None:
        """Forget the file: its bytes turned out wrong as a whole."""
        self.close()
        self.crcs.clear()
        self.journal_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def checksums(self) -> tuple[int, ...]:
        """CRC32C of each chunk in order; only for a complete file."""
        return tuple(self.crcs[index] for index in range(chunk_count(self.size_bytes, self.chunk_bytes)))

    def _holds(self, index: int, crc: int) -> bool:
        if index >= chunk_count(self.size_bytes, self.chunk_bytes):
            return False
        start = index * self.chunk_bytes
        data = os.pread(self._part, min(self.chunk_bytes, self.size_bytes - start), start)
        return len(data) == min(self.chunk_bytes, self.size_bytes - start) and crc32c(data) == crc

    def _rewrite_journal(self) -> None:
        write_journal(self.journal_path, self.crcs)
        self._journal = os.open(self.journal_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


def finished(journal_path: Path, destination: Path, size_bytes: int, chunk_bytes: int) -> tuple[int, ...] | None:
    """The checksums of a file that was finished by an earlier try, or None when it has to be fetched."""
    try:
        if destination.stat().st_size != size_bytes:
            return None
    except OSError:
        return None
    crcs = read_journal(journal_path)
    wanted = [chunk.index for chunk in chunks_of(0, size_bytes, chunk_bytes)]
    return tuple(crcs[index] for index in wanted) if all(index in crcs for index in wanted) else None


def read_journal(path: Path) -> dict[int, int]:
    """Chunk index -> CRC32C; a torn or damaged record is left out."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    found: dict[int, int] = {}
    for index, crc, check in RECORD.iter_unpack(raw[: len(raw) // RECORD.size * RECORD.size]):
        if crc32c(struct.pack("<II", index, crc)) == check:
            found[index] = crc
    return found


def write_journal(path: Path, crcs: Mapping[int, int]) -> None:
    """Replace a journal, all or nothing."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(b"".join(_record(index, crc) for index, crc in crcs.items()))
    os.replace(temporary, path)


def write_all(descriptor: int, data: memoryview, start: int) -> None:
    """Write every byte of `data` at `start`; a short write goes on."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], start + done)


def _record(index: int, crc: int) -> bytes:
    head = struct.pack("<II", index, crc)
    return head + struct.pack("<I", crc32c(head))
