"""Where things lie below the cache directory. All on one file system, so that a rename is atomic."""

import os
from dataclasses import dataclass
from pathlib import Path

from tonnage_core.coldstart.file_names import MANIFEST_NAME


@dataclass(frozen=True, slots=True)
class Layout:
    """`models/KEY` published snapshots, `incoming/KEY` transfers, `locks`, `used`, `pins` one file a key, `trash`."""

    root: Path

    def prepare(self) -> None:
        """Make the directories; raises OSError."""
        for name in ("models", "incoming", "locks", "used", "pins", "trash"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    @property
    def models(self) -> Path:
        """Published snapshots."""
        return self.root / "models"

    @property
    def incoming(self) -> Path:
        """Transfers under way or interrupted."""
        return self.root / "incoming"

    @property
    def trash(self) -> Path:
        """Directories on their way out: renamed here first, so that nothing is seen half deleted."""
        return self.root / "trash"

    def model(self, key: str) -> Path:
        """A published snapshot's directory; what an engine is pointed at."""
        return self.models / key

    def manifest(self, key: str) -> Path:
        """A published snapshot's manifest."""
        return self.models / key / MANIFEST_NAME

    def transfer(self, key: str) -> Path:
        """A transfer's directory."""
        return self.incoming / key

    def lock(self, key: str, purpose: str) -> Path:
        """The lock file of a key: `stage` (exclusive, one transfer) or `use` (shared by readers)."""
        return self.root / "locks" / f"{key}.{purpose}"

    def used(self, key: str) -> Path:
        """Its mtime is the last use."""
        return self.root / "used" / key

    def pin(self, key: str) -> Path:
        """Exists while the snapshot is pinned."""
        return self.root / "pins" / key


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, all or nothing, on disk when this returns."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)
