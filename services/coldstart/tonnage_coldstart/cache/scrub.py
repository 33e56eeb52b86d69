"""The scrub: read every byte of a snapshot again and compare it with the manifest."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from tonnage_coldstart.cache.layout import Layout
from tonnage_coldstart.cache.parts import write_journal
from tonnage_coldstart.cache.store import Cached
from tonnage_coldstart.errors import cache_error
from tonnage_coldstart.manifest import Manifest, ManifestFile
from tonnage_coldstart.verification import sha256_of
from tonnage_core.coldstart.fetch_plan import chunk_count, chunks_of


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what was published; `chunks` are the bad ones, None when the file as a whole is wrong."""

    name: str
    chunks: tuple[int, ...] | None
    problem: str


def scrub(
    cached: Cached,
    *,
    names: tuple[str, ...] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> list[Damage]:
    """Compare the files (all, or `names`) with the manifest's checksums; what the disk holds, not the page cache."""
    found = []
    for file in cached.manifest.files:
        if (names is None or file.name in names) and not stopped():
            damage = _scrub_file(cached.path / file.name, file, cached.manifest.chunk_bytes, on_bytes)
            if damage is not None:
                found.append(damage)
    return found


def reopen(layout: Layout, cached: Cached, damage: list[Damage], numbers: dict[str, int]) -> None:
    """Make part files of a withdrawn snapshot, so that the next transfer fetches the bad chunks only.

    The snapshot's tree already lies in its transfer. `numbers` are the files' places in the snapshot to fetch.
    """
    directory = layout.transfer(cached.key)
    bad = {one.name: one for one in damage}
    try:
        for file in cached.manifest.files:
            journal = directory / f"{numbers[file.name]:05d}.journal"
            write_journal(journal, _good(file, cached.manifest, bad.get(file.name)))
            if file.name in bad and (directory / "tree" / file.name).exists():
                os.rename(directory / "tree" / file.name, journal.with_suffix(".part"))
    except OSError as error:
        raise cache_error(error, directory) from error


def _good(file: ManifestFile, manifest: Manifest, damage: Damage | None) -> dict[int, int]:
    if damage is not None and damage.chunks is None:
        return {}
    bad = set(damage.chunks or ()) if damage is not None else set()
    return {index: crc for index, crc in enumerate(file.crc32c or ()) if index not in bad}


def _scrub_file(path: Path, file: ManifestFile, chunk_bytes: int, on_bytes: Callable[[int], None]) -> Damage | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return Damage(file.name, None, error.strerror or str(error))
    try:
        size = os.fstat(descriptor).st_size
        if size != file.size:
            return Damage(file.name, None, f"{size} bytes, {file.size} were published")
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        bad = _bad_chunks(descriptor, file, chunk_bytes, on_bytes)
    except OSError as error:
        return Damage(file.name, None, error.strerror or str(error))
    finally:
        os.close(descriptor)
    if bad:
        return Damage(file.name, bad, f"{len(bad)} of {chunk_count(file.size, chunk_bytes)} chunks have another CRC32C")
    if file.sha256 is not None and sha256_of(path) != file.sha256:
        return Damage(file.name, None, "another SHA-256")
    return None


def _bad_chunks(
    descriptor: int, file: ManifestFile, chunk_bytes: int, on_bytes: Callable[[int], None]
) -> tuple[int, ...]:
    if file.crc32c is None:
        return ()
    buffer = memoryview(bytearray(chunk_bytes))
    bad = []
    for chunk in chunks_of(0, file.size, chunk_bytes):
        view = buffer[: chunk.length]
        count = os.preadv(descriptor, [view], chunk.start)
        if count != chunk.length or crc32c(view) != file.crc32c[chunk.index]:
            bad.append(chunk.index)
        on_bytes(chunk.length)
    return tuple(bad)
