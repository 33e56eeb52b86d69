"""A directory or one file on this machine or a mounted file system; the Hugging Face cache layout among them."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tonnage_coldstart.errors import SourceChangedError, SourceError, TransientSourceError, UnknownSourceError
from tonnage_coldstart.manifest import MAX_MANIFEST_BYTES
from tonnage_coldstart.snapshot import Snapshot, SourceFile, WholeFile
from tonnage_coldstart.sources.composition import Listing, compose
from tonnage_core.coldstart.file_names import MANIFEST_NAME

MAX_ENTRIES = 100_000


class LocalSource:
    """Files below `root`. A symbolic link is followed to a file below `root`, or to the blobs of an HF cache."""

    kind = "local"

    def __init__(self, root: Path) -> None:
        self._only: str | None = None
        self._root = self._resolve(root)
        self._blobs = _hub_blobs(self._root)
        self._paths: dict[str, Path] = {}

    def snapshot(self) -> Snapshot:
        """The model's files; the revision is the commit of an HF cache, or a digest over sizes and times."""
        self._paths = dict(self._walk()) if self._only is None else {self._only: self._root / self._only}
        sizes = {name: self._version(name, path.stat()) for name, path in self._paths.items()}
        listing = Listing(
            uri=f"file://{self._root if self._only is None else self._root / self._only}",
            label=_label(self._root) if self._only is None else Path(self._only).stem,
            revision=self._root.name if self._blobs is not None else None,
            files={name: SourceFile(name, size, version) for name, (size, version) in sizes.items()},
        )
        return compose(listing, self._read_small)

    def read_range(self, file: SourceFile, start: int, into: memoryview) -> None:
        """Fill `into`; the file must still be the one that was listed."""
        descriptor = self._open(file.name)
        try:
            _, version = self._version(file.name, os.fstat(descriptor))
            if version != file.version:
                raise SourceChangedError(str(self._root), file.name, file.version, version)
            done = 0
            while done < len(into):
                count = os.preadv(descriptor, [into[done:]], start + done)
                if count == 0:
                    raise TransientSourceError(str(self._root), f"ends at byte {start + done}", file=file.name)
                done += count
        except OSError as error:
            raise TransientSourceError(str(self._root), error.strerror or str(error), file=file.name) from error
        finally:
            os.close(descriptor)

    def open_whole(self, file: SourceFile) -> WholeFile:
        """Local files always have ranges."""
        raise SourceError(str(self._root), "has ranges", file=file.name)

    def close(self) -> None:
        """Nothing is held open."""

    def _resolve(self, root: Path) -> Path:
        try:
            found = root.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise UnknownSourceError(f"{root}: no such directory or file") from error
        if found.is_file():
            self._only = found.name
            return found.parent
        if not found.is_dir():
            raise UnknownSourceError(f"{root}: neither a directory nor a file")
        return _hub_snapshot(found) or found

    def _walk(self) -> Iterator[tuple[str, Path]]:
        seen = 0
        for folder, folders, names in os.walk(self._root, onerror=self._unreadable):
            folders[:] = [name for name in sorted(folders) if not name.startswith(".")]
            for name in names + [one for one in folders if (Path(folder) / one).is_symlink()]:
                seen += 1
                if seen > MAX_ENTRIES:
                    raise SourceError(str(self._root), f"over {MAX_ENTRIES} files: give the directory of one model")
                path = Path(folder) / name
                if not name.startswith("."):
                    yield path.relative_to(self._root).as_posix(), self._confined(path)

    def _confined(self, path: Path) -> Path:
        if not path.is_symlink():
            return path
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise SourceError(str(self._root), "a symbolic link that leads nowhere", file=path.name) from error
        allowed = [self._root] if self._blobs is None else [self._root, self._blobs]
        if not target.is_file() or not any(target.is_relative_to(folder) for folder in allowed):
            raise SourceError(
                str(self._root), "a symbolic link out of the directory (or to a directory): refused", file=path.name
            )
        return target

    def _unreadable(self, error: OSError) -> None:
        raise SourceError(str(self._root), f"{error.filename}: {error.strerror}") from error

    def _version(self, name: str, found: os.stat_result) -> tuple[int, str]:
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(str(self._root), "not a regular file", file=name)
        return found.st_size, f"{found.st_size}:{found.st_mtime_ns}"

    def _open(self, name: str) -> int:
        path = self._paths.get(name) or self._confined(self._root / name)
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(str(self._root), error.strerror or str(error), file=name) from error

    def _read_small(self, name: str, limit_bytes: int) -> bytes | None:
        path = self._root / MANIFEST_NAME if name == MANIFEST_NAME else self._paths.get(name)
        if path is None or not path.is_file() or self._only is not None:
            return None
        size = path.stat().st_size
        if size > min(limit_bytes, MAX_MANIFEST_BYTES):
            raise SourceError(str(self._root), f"{size} bytes, over the limit of {limit_bytes}", file=name)
        return path.read_bytes()


def _hub_snapshot(folder: Path) -> Path | None:
    """The snapshot of `models--ORG--NAME`: the one `refs/main` names, or the only one."""
    snapshots = folder / "snapshots"
    if not snapshots.is_dir() or not (folder / "blobs").is_dir():
        return None
    reference = folder / "refs" / "main"
    if reference.is_file():
        named = snapshots / reference.read_text(encoding="utf-8").strip()
        if named.is_dir() and named.parent == snapshots:
            return named
    held = [path for path in snapshots.iterdir() if path.is_dir()]
    if len(held) != 1:
        raise UnknownSourceError(f"{folder}: {len(held)} snapshots and no refs/main: name one of {snapshots}")
    return held[0]


def _hub_blobs(root: Path) -> Path | None:
    """The blobs that a snapshot of an HF cache links to, when `root` is one."""
    blobs = root.parent.parent / "blobs"
    return blobs if root.parent.name == "snapshots" and blobs.is_dir() else None


def _label(root: Path) -> str:
    hub = root.parent.parent.name
    if root.parent.name == "snapshots" and hub.startswith("models--"):
        return hub.removeprefix("models--").replace("--", "/")
    return root.name or "model"
