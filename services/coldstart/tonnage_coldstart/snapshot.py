"""What a source offers: its files under one revision, and the port every source serves."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tonnage_core.coldstart.fetch_plan import CHUNK_BYTES
from tonnage_core.coldstart.file_names import slug


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file. `version` pins it (ETag, version id, mtime); digests are those the source publishes, if any."""

    name: str
    size_bytes: int
    version: str
    sha256: str | None = None
    chunk_crcs: tuple[int, ...] | None = None
    """CRC32C of each chunk of `Snapshot.chunk_bytes`, in order."""
    ranges: bool = True
    """False when the source can only send the whole file."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All files of one revision."""

    uri: str
    """Canonical, without credentials."""
    label: str
    """The model's name as a person would say it."""
    revision: str
    """Commit or version of the whole, or a digest over the files' versions."""
    files: tuple[SourceFile, ...]
    chunk_bytes: int = CHUNK_BYTES
    weight_map: dict[str, str] = field(default_factory=dict)
    """Tensor -> shard of the index; empty without one."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def key(self) -> str:
        """Name of the cache entry: the label for people, a digest over URI, revision and file set for the rest."""
        digest = hashlib.sha256(f"{self.uri}\n{self.revision}\n".encode())
        for file in sorted(self.files, key=lambda file: file.name):
            digest.update(f"{file.name}\t{file.size_bytes}\t{file.version}\n".encode())
        return f"{slug(self.label)}--{digest.hexdigest()[:16]}"


def files_revision(files: Sequence[SourceFile]) -> str:
    """A revision for a source that has none: a digest over names, sizes and versions."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        digest.update(f"{file.name}\t{file.size_bytes}\t{file.version}\n".encode())
    return digest.hexdigest()[:40]


class WholeFile(Protocol):
    """A file read from its beginning."""

    def read_into(self, into: memoryview) -> None:
        """Fill `into` with the next bytes; raises `TransientSourceError` when the file ends before."""
        ...

    def close(self) -> None:
        """Release the connection."""
        ...


class Source(Protocol):
    """The port: safe to call from several threads at once."""

    kind: str

    def snapshot(self) -> Snapshot:
        """List the files under one revision. Raises `SourceError`."""
        ...

    def read_range(self, file: SourceFile, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes from `start`.

        Raises `TransientSourceError` (try again), `WholeFileOnlyError` (use `open_whole`), `SourceChangedError`, or
        another `SourceError`.
        """
        ...

    def open_whole(self, file: SourceFile) -> WholeFile:
        """Read a file from its beginning, for sources without ranges."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...
