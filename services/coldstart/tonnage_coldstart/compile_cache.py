"""Compiled code (Inductor, Triton, the engine's own) kept between starts: captured after one, restored before the next.

An entry is a tree of files under one key. It is published like a snapshot, manifest last, and every file is checked
against its SHA-256 before any is put in place: compiled code that is not what was captured never runs.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tonnage_coldstart.cache.layout import fsync_directory, write_durably
from tonnage_coldstart.cache.store import KEEP_FREE_BYTES
from tonnage_coldstart.errors import CacheError, cache_error
from tonnage_core.coldstart.cache_policy import Entry, admit
from tonnage_core.coldstart.compile_key import CompileKey
from tonnage_core.coldstart.errors import UnsafeNameError
from tonnage_core.coldstart.file_names import safe_name

log = logging.getLogger("tonnage.coldstart.compile")
MANIFEST = "compile-manifest.json"
MAX_BYTES = 16 << 30
MAX_FILES = 200_000
QUOTA_BYTES = 32 << 30
"""Most bytes of all entries, unless told otherwise."""
DROPPED, INCOMING = re.compile(r"\.[0-9a-f]{32}"), re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]{8}")
LEFT_S = 6 * 3600.0
"""Seconds after which a capture that has not ended was killed."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did; `hit` is false when there is no entry, or one that is damaged (`reason` says which)."""

    hit: bool
    files: int
    bytes: int
    reason: str


class CompileCache:
    """Entries below `root`; `roots` map a name (`inductor`, `triton`, `vllm`) to the engine's directory of it."""

    def __init__(self, root: Path, *, quota_bytes: int = QUOTA_BYTES) -> None:
        """`quota_bytes`: most bytes of all entries; the least recently used make room for a new one."""
        self._root = root
        self._quota_bytes = quota_bytes

    def capture(self, key: CompileKey, roots: Mapping[str, Path]) -> int:
        """Keep what the directories hold now; returns the bytes. An entry of the key is replaced.

        Locks and temporary files are left out. Raises `CacheError`, before a byte is copied where they cannot fit.
        """
        incoming = self._root / f".{key.digest}.{uuid.uuid4().hex[:8]}"
        try:
            found = [(name, path, file) for name, path in roots.items() for file in _files(path)]
            if not found:
                raise CacheError(
                    f"nothing to capture in {', '.join(map(str, roots.values()))}: has the engine compiled?"
                )
            self._make_room(sum(file.stat().st_size for _, _, file in found), key.digest)
            files = [self._copy(name, path, file, incoming) for name, path, file in found]
            document = {"schema": "tonnage.compile_cache/1", "version": 1, "key": key.document(), "files": files}
            write_durably(incoming / MANIFEST, orjson.dumps(document))
            self._publish(incoming, self._root / key.digest)
        except OSError as error:
            raise cache_error(error, incoming) from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return sum(int(file["size"]) for file in files)

    def restore(self, key: CompileKey, roots: Mapping[str, Path]) -> Restored:
        """Put an entry's files where the engine looks for them; what is there already stays. Raises `CacheError`."""
        entry = self._root / key.digest
        document = _document(entry)
        if document is None or document["key"] != key.document():
            return Restored(False, 0, 0, "no entry")
        wanted = [file for file in document["files"] if file["root"] in roots]
        for file in wanted:
            if not _holds(entry / file["root"] / file["name"], file):
                log.warning("damaged entry", extra={"key": key.digest, "file": file["name"]})
                self.drop(key.digest)
                return Restored(False, 0, 0, f"damaged: {file['name']}")
        try:
            placed = [file for file in wanted if _place(entry / file["root"], roots[file["root"]], file)]
        except OSError as error:
            raise cache_error(error, entry) from error
        _touch(entry)
        return Restored(True, len(placed), sum(int(file["size"]) for file in placed), "restored")

    def adds(self, key: CompileKey, roots: Mapping[str, Path]) -> bool:
        """Whether the directories hold a file that the key's entry lacks. Raises `CacheError`."""
        document = _document(self._root / key.digest) or {"files": ()}
        kept = {(file["root"], file["name"]) for file in document["files"]}
        try:
            return any(
                (name, file.relative_to(path).as_posix()) not in kept
                for name, path in roots.items()
                for file in _files(path)
            )
        except OSError as error:
            raise cache_error(error, self._root) from error

    def entries(self) -> list[dict[str, Any]]:
        """The key, files and bytes of every whole entry, by digest."""
        found = []
        for _, document in self._whole():
            sizes = [int(file["size"]) for file in document["files"]]
            found.append({"key": document["key"], "files": len(sizes), "bytes": sum(sizes)})
        return found

    def drop(self, digest: str) -> bool:
        """Remove an entry; False when there is none. Raises `CacheError`."""
        hidden = self._root / f".{uuid.uuid4().hex}"
        if not re.fullmatch("[0-9a-f]{32}", digest):
            return False
        try:
            os.rename(self._root / digest, hidden)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise cache_error(error, self._root) from error
        shutil.rmtree(hidden, ignore_errors=True)
        return True

    def _whole(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Every whole entry, by digest: its folder and its manifest."""
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            document = None if folder.name.startswith(".") else _document(folder)
            if document is not None:
                yield folder, document

    def _make_room(self, needed_bytes: int, digest: str) -> None:
        """Drop what a new entry of `digest` has to displace, that digest's own aside: it is replaced."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._sweep()
        others = [
            Entry(folder.name, sum(int(file["size"]) for file in document["files"]), _used_s(folder))
            for folder, document in self._whole()
            if folder.name != digest
        ]
        room = admit(
            needed_bytes,
            others,
            quota_bytes=self._quota_bytes,
            reserved_bytes=0,
            free_bytes=shutil.disk_usage(self._root).free,
            keep_free_bytes=KEEP_FREE_BYTES,
        )
        if room.refused is not None:
            raise CacheError(
                f"{needed_bytes} bytes of compiled code do not fit into {self._root}, whatever leaves it: raise the "
                f"quota of {self._quota_bytes} bytes, or free the disk if it is that"
            )
        for one in room.evict:
            log.info("compiled code dropped to make room", extra={"key": one})
            self.drop(one)

    def _sweep(self) -> None:
        """Remove what killed captures and removals left."""
        for folder in self._root.glob(".*"):
            with contextlib.suppress(OSError):
                left = DROPPED.fullmatch(folder.name) or (
                    INCOMING.fullmatch(folder.name) and time.time() - folder.stat().st_mtime > LEFT_S
                )
                if left:
                    shutil.rmtree(folder, ignore_errors=True)

    def _copy(self, name: str, root: Path, file: Path, incoming: Path) -> dict[str, Any]:
        relative = safe_name(file.relative_to(root).as_posix())
        destination = incoming / safe_name(name) / relative
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, destination)
        with destination.open("rb") as copied:
            os.fsync(copied.fileno())
        found = destination.stat()
        mode = stat.S_IMODE(file.stat().st_mode) & 0o755
        return {"root": name, "name": relative, "size": found.st_size, "mode": mode, "sha256": _sha256(destination)}

    def _publish(self, incoming: Path, entry: Path) -> None:
        self.drop(entry.name)
        try:
            os.rename(incoming, entry)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else another start kept its code under this key just now: as good as ours
        fsync_directory(self._root)


def _files(root: Path) -> Iterator[Path]:
    """Regular files below `root`, without links, locks and temporary files; bounded."""
    count = size = 0
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_symlink() or not path.is_file() or name.endswith((".lock", ".tmp")) or ".tmp." in name:
                continue
            count, size = count + 1, size + path.stat().st_size
            if count > MAX_FILES or size > MAX_BYTES:
                raise CacheError(f"{root}: over {MAX_FILES} files or {MAX_BYTES >> 30} GiB: is this a compile cache?")
            yield path


def _touch(entry: Path) -> None:
    """Note the use; where that cannot be written the entry only looks older than it is."""
    with contextlib.suppress(OSError):
        os.utime(entry / MANIFEST)


def _used_s(entry: Path) -> float:
    try:
        return (entry / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _document(entry: Path) -> dict[str, Any] | None:
    try:
        document = orjson.loads((entry / MANIFEST).read_bytes())
        texts = [document["key"][name] for name in ("digest", "engine", "gpu", "model")]
        numbers = []
        for file in document["files"]:
            safe_name(file["root"])
            safe_name(file["name"])
            texts.append(file["sha256"])
            numbers += [file["size"], file["mode"]]
        whole = all(type(one) is str for one in texts) and all(type(one) is int and one >= 0 for one in numbers)
        if document["schema"] != "tonnage.compile_cache/1" or not whole:
            return None
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, UnsafeNameError):
        return None
    return dict(document)


def _holds(path: Path, file: Mapping[str, Any]) -> bool:
    try:
        return bool(path.stat().st_size == file["size"] and _sha256(path) == file["sha256"])
    except OSError:
        return False


def _place(source: Path, target: Path, file: Mapping[str, Any]) -> bool:
    destination = target / file["name"]
    if destination.exists():
        return False
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{uuid.uuid4().hex}.tmp")
    shutil.copyfile(source / file["name"], temporary)
    temporary.chmod(int(file["mode"]) & 0o755)
    os.rename(temporary, destination)
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
