"""The weight files of a model directory: their headers, their places in memory, their checksums."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tonnage_coldstart.errors import SourceError
from tonnage_core.coldstart.errors import InconsistentSnapshotError
from tonnage_core.coldstart.fetch_plan import CHUNK_BYTES
from tonnage_core.coldstart.file_names import INDEX_NAME, MANIFEST_NAME
from tonnage_core.coldstart.load_plan import Arena
from tonnage_core.coldstart.manifest_digest import Checksums, checksums_of
from tonnage_core.coldstart.safetensors_header import LENGTH_BYTES, header_bytes, parse_header
from tonnage_core.coldstart.snapshot import WEIGHTS, parse_index, require_agreement, require_shards

FLAGS = os.O_RDONLY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file, open.

    `direct` says whether `descriptor` reads past the page cache; `cold` is a second descriptor that does, for what the
    page cache does not hold, or -1.
    """

    name: str
    descriptor: int
    size_bytes: int
    arena: Arena
    crcs: tuple[int, ...] | None
    direct: bool
    cold: int = -1

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        if self.cold >= 0:
            os.close(self.cold)


@dataclass(frozen=True, slots=True)
class Weights:
    """The files of one model; `close` them."""

    files: tuple[WeightFile, ...]
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def checkable(self) -> bool:
        """Every file has checksums."""
        return all(file.crcs is not None for file in self.files)

    def close(self) -> None:
        """Close the descriptors."""
        for file in self.files:
            file.close()


def open_weights(path: Path, *, direct: bool | None) -> Weights:
    """Open a directory's shards, or one file; every header is checked, and against the index.

    `direct`: all reads past the page cache, none, or (None) those of what it does not hold.
    Raises `CorruptFileError`, `InconsistentSnapshotError` or `SourceError`.
    """
    folder, names, weight_map = _names(path)
    checksums = _checksums(folder)
    chunk_bytes = CHUNK_BYTES if checksums is None else checksums.chunk_bytes
    opened: list[WeightFile] = []
    try:
        for name in names:
            opened.append(_open(folder, name, checksums, direct if chunk_bytes % 4096 == 0 else False))
        held = {file.name: [tensor.name for tensor in file.arena.header.tensors] for file in opened}
        require_agreement(weight_map, held)
        _refuse_twice(held)
    except BaseException:
        Weights(tuple(opened), chunk_bytes).close()
        raise
    return Weights(tuple(opened), chunk_bytes)


def _names(path: Path) -> tuple[Path, Sequence[str], dict[str, str]]:
    if path.is_file():
        return path.parent, [path.name], {}
    if not path.is_dir():
        raise SourceError(str(path), "no such directory or file")
    names = sorted(one.name for one in path.iterdir() if one.name.endswith(WEIGHTS))
    index = path / INDEX_NAME
    weight_map = dict(parse_index(index.read_bytes(), str(index))) if index.is_file() else {}
    require_shards(weight_map, names)
    chosen = sorted(set(weight_map.values())) or names
    if not chosen:
        raise InconsistentSnapshotError(f"{path}: no {WEIGHTS} file")
    return path, chosen, weight_map


def _checksums(folder: Path) -> Checksums | None:
    manifest = folder / MANIFEST_NAME
    return checksums_of(manifest.read_bytes()) if manifest.is_file() else None


def _open(folder: Path, name: str, checksums: Checksums | None, direct: bool | None) -> WeightFile:
    opened: list[int] = []
    try:
        opened.append(os.open(folder / name, FLAGS | os.O_NONBLOCK))
        found = os.fstat(opened[0])
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(str(folder), "no regular file", file=name)
        size = found.st_size
        if checksums is not None and checksums.sizes.get(name, size) != size:
            raise SourceError(str(folder), f"{size} bytes, the manifest says {checksums.sizes[name]}", file=name)
        length = header_bytes(os.pread(opened[0], LENGTH_BYTES, 0), size, name)
        header = parse_header(os.pread(opened[0], length, LENGTH_BYTES), size, name)
        if direct is not False:
            opened.extend(_past_cache(folder, name, found))
    except BaseException as error:
        for one in opened:
            os.close(one)
        if isinstance(error, OSError):
            raise SourceError(str(folder), error.strerror or str(error), file=name) from error
        raise
    crcs = None if checksums is None else checksums.crc32c.get(name)
    cold = opened.pop() if len(opened) == 2 else -1
    if direct and cold >= 0:
        os.close(opened[0])
        return WeightFile(name, cold, size, Arena(header), crcs, direct=True)
    return WeightFile(name, opened[0], size, Arena(header), crcs, direct=False, cold=cold)


def _past_cache(folder: Path, name: str, found: os.stat_result) -> list[int]:
    """A descriptor of the file `found` that reads past the page cache, or none where the file system has no such."""
    try:
        descriptor = os.open(folder / name, FLAGS | os.O_DIRECT)
    except OSError:
        return []
    if not os.path.samestat(os.fstat(descriptor), found):
        os.close(descriptor)
        raise SourceError(str(folder), "replaced while it was opened; start again", file=name)
    return [descriptor]


def _refuse_twice(held: dict[str, list[str]]) -> None:
    where: dict[str, str] = {}
    for file, names in held.items():
        for name in names:
            if name in where:
                raise InconsistentSnapshotError(f"tensor {name!r} is in {where[name]} and in {file}")
            where[name] = file
