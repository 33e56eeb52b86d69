"""One transfer's directory: part files, finished files, and the promise of its size to the quota."""

import contextlib
import shutil
from pathlib import Path

import orjson

from tonnage_coldstart.cache.layout import write_durably
from tonnage_coldstart.cache.parts import PartFile, finished
from tonnage_coldstart.errors import cache_error
from tonnage_coldstart.snapshot import Snapshot

PLAN = "plan.json"


class Transfer:
    """The files of `snapshot` on their way into `directory`; made or resumed by `open`."""

    def __init__(self, directory: Path, snapshot: Snapshot, *, drop_behind: bool = False) -> None:
        self.directory = directory
        self.tree = directory / "tree"
        self.snapshot = snapshot
        self._drop_behind = drop_behind
        self.parts: dict[int, PartFile] = {}
        self.checksums: dict[int, tuple[int, ...]] = {}
        self.resumed_bytes = 0

    def open(self) -> None:
        """Resume what an earlier try left, as far as it holds. Raises `CacheError`."""
        try:
            self.tree.mkdir(parents=True, exist_ok=True)
            for number, file in enumerate(self.snapshot.files):
                self._open_file(number, self.tree / file.name, file.size_bytes)
        except OSError as error:
            self.close()
            raise cache_error(error, self.directory) from error

    def _open_file(self, number: int, destination: Path, size_bytes: int) -> None:
        part = PartFile(self.directory, number, size_bytes, self.snapshot.chunk_bytes)
        done = finished(part.journal_path, destination, size_bytes, self.snapshot.chunk_bytes)
        if done is not None:
            self.checksums[number] = done
            self.resumed_bytes += size_bytes
            return
        self.parts[number] = part
        part.open()
        self.resumed_bytes += sum(
            min(self.snapshot.chunk_bytes, size_bytes - index * self.snapshot.chunk_bytes) for index in part.crcs
        )

    def needs(self, number: int, index: int) -> bool:
        """Whether a chunk is still to be fetched."""
        return number in self.parts and index not in self.parts[number].crcs

    def finish(self, number: int) -> Path:
        """Give a complete file its name; returns its path."""
        part = self.parts[number]
        destination = self.tree / self.snapshot.files[number].name
        part.finish(destination, drop=self._drop_behind)
        self.checksums[number] = part.checksums()
        return destination

    @property
    def complete(self) -> bool:
        """Every file has its name."""
        return len(self.checksums) == len(self.snapshot.files)

    def close(self) -> None:
        """Close descriptors; what is there stays for the next try."""
        for part in self.parts.values():
            part.close()

    def remove(self) -> None:
        """Give the space back."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def promise(directory: Path, snapshot: Snapshot) -> None:
    """Reserve a snapshot's bytes; what is there for another plan is removed. Raises OSError."""
    plan = {"uri": snapshot.uri, "size_bytes": snapshot.size_bytes, "chunk_bytes": snapshot.chunk_bytes}
    if directory.exists() and read_plan(directory) != plan:
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_durably(directory / PLAN, orjson.dumps(plan))


def read_plan(directory: Path) -> dict[str, object] | None:
    """The plan of a transfer; None when there is none or it is cut."""
    try:
        document = orjson.loads((directory / PLAN).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return document if isinstance(document, dict) else None


def promised_bytes(directory: Path) -> int:
    """Bytes a transfer will take in all, as its plan says; 0 without a plan."""
    size = (read_plan(directory) or {}).get("size_bytes")
    return size if isinstance(size, int) else 0


def written_bytes(directory: Path) -> int:
    """Bytes of a transfer that are on the disk."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # finished or removed meanwhile
            total += path.stat().st_blocks * 512
    return total
