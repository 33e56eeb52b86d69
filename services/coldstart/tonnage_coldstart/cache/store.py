"""The node cache as a whole: find, admit, publish, pin, delete."""

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from tonnage_coldstart.cache.layout import Layout, fsync_directory, write_durably
from tonnage_coldstart.cache.locks import file_lock, try_lock
from tonnage_coldstart.cache.transfer import promise, promised_bytes, written_bytes
from tonnage_coldstart.errors import CacheError, CacheReadOnlyError, NotCachedError, cache_error
from tonnage_coldstart.manifest import (
    MAX_MANIFEST_BYTES,
    BadManifestError,
    Manifest,
    ManifestFile,
    dump_manifest,
    parse_manifest,
)
from tonnage_coldstart.snapshot import Snapshot
from tonnage_core.coldstart.cache_policy import Admission, Entry, admit
from tonnage_core.coldstart.errors import QuotaExceededError
from tonnage_core.coldstart.file_names import MANIFEST_NAME
from tonnage_runtime.clock import Clock

KEEP_FREE_BYTES = 256 << 20
KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}--[0-9a-f]{16}")
"""A key can stand in a path: `slug(label)--digest`."""


@dataclass(frozen=True, slots=True)
class Cached:
    """A published snapshot. `suspects` are files whose size or time is not what was published."""

    key: str
    path: Path
    manifest: Manifest
    last_used_s: float
    pinned: bool
    suspects: tuple[str, ...]


class NodeCache:
    """One directory, shared by every process of the node; `quota_bytes` None leaves only the disk as the limit."""

    def __init__(
        self,
        root: Path,
        clock: Clock,
        *,
        quota_bytes: int | None = None,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        on_evict: Callable[[str], None] = lambda key: None,
    ) -> None:
        self.layout = Layout(root)
        self.quota_bytes = quota_bytes
        self._clock = clock
        self._keep_free_bytes = keep_free_bytes
        self._on_evict = on_evict

    def prepare(self) -> None:
        """Make the directories and empty the trash of a killed process. Raises `CacheError`."""
        try:
            self.layout.prepare()
            for left in self.layout.trash.iterdir():
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise cache_error(error, self.layout.root) from error

    def find(self, key: str) -> Cached | None:
        """A published snapshot, or None: no directory, no manifest or one that is damaged."""
        path = self.layout.model(_checked(key))
        manifest = read_manifest(path)
        if manifest is None:
            return None
        used = _mtime(self.layout.used(key))
        return Cached(
            key=key,
            path=path,
            manifest=manifest,
            last_used_s=used if used is not None else path.stat().st_mtime,
            pinned=self.layout.pin(key).exists(),
            suspects=tuple(file.name for file in manifest.files if not _as_published(path / file.name, file)),
        )

    def entries(self) -> list[Cached]:
        """Every published snapshot, by key. Raises `CacheError` when the directory cannot be read."""
        try:
            keys = sorted(path.name for path in self.layout.models.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cache_error(error, self.layout.models) from error
        found = (self.find(key) for key in keys if not key.startswith("."))
        return [cached for cached in found if cached is not None]

    @contextlib.contextmanager
    def single_flight(self, key: str, stop: Event, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """One transfer of a key at a time on the node."""
        with file_lock(self.layout.lock(_checked(key), "stage"), stop=stop, on_wait=on_wait):
            yield

    @contextlib.contextmanager
    def reading(self, key: str, stop: Event) -> Iterator[Cached]:
        """Hold a snapshot while it is read: it is not evicted meanwhile. Works in a read-only cache too."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(CacheReadOnlyError):
                stack.enter_context(file_lock(self.layout.lock(_checked(key), "use"), shared=True, stop=stop))
            cached = self.find(key)
            if cached is None:
                raise NotCachedError(f"{key}: not in the cache {self.layout.root}; stage it first")
            yield cached

    def touch(self, key: str) -> None:
        """Note a use now, for the eviction order."""
        path, now = self.layout.used(_checked(key)), self._clock.wall()
        with contextlib.suppress(OSError):
            path.touch()
            os.utime(path, (now, now))

    def admit(self, key: str, snapshot: Snapshot) -> None:
        """Make room for a transfer and promise it, or raise `QuotaExceededError` before its first byte."""
        with file_lock(self.layout.lock("admission", "lock"), stop=Event()):
            self._drop_idle(key, key.rsplit("--", 1)[0] + "--")
            decision = self._decide(key, snapshot.size_bytes)
            if decision.refused is not None and self._drop_idle(key):
                decision = self._decide(key, snapshot.size_bytes)
            if decision.refused is not None:
                raise QuotaExceededError(snapshot.size_bytes, f"{key}: {decision.refused}")
            for leaving in decision.evict:
                self._on_evict(leaving)
                self._remove(leaving)
            try:
                promise(self.layout.transfer(key), snapshot)
            except OSError as error:
                raise cache_error(error, self.layout.transfer(key)) from error

    def _decide(self, key: str, size_bytes: int) -> Admission:
        others = [path for path in self.layout.incoming.iterdir() if path.name != key]
        reserved = sum(map(promised_bytes, others))
        return admit(
            size_bytes,
            [self._policy_entry(cached) for cached in self.entries() if cached.key != key],
            quota_bytes=self.quota_bytes,
            reserved_bytes=reserved,
            pending_bytes=max(0, reserved - sum(map(written_bytes, others))),
            free_bytes=shutil.disk_usage(self.layout.root).free,
            keep_free_bytes=self._keep_free_bytes,
            staged_bytes=written_bytes(self.layout.transfer(key)),
        )

    def publish(self, key: str, tree: Path, manifest: Manifest) -> Path:
        """Turn a complete tree into the snapshot: manifest last inside it, then one rename. Returns its path."""
        try:
            for folder in sorted({(tree / file.name).parent for file in manifest.files} | {tree}):
                fsync_directory(folder)
            write_durably(tree / MANIFEST_NAME, dump_manifest(manifest))
            destination = self.layout.model(key)
            if destination.exists():
                self._to_trash(destination)
            os.rename(tree, destination)
            fsync_directory(self.layout.models)
            shutil.rmtree(self.layout.transfer(key), ignore_errors=True)
        except OSError as error:
            raise cache_error(error, tree) from error
        self.touch(key)
        return destination

    def pin(self, key: str, *, pinned: bool) -> None:
        """Keep a snapshot from eviction, or let it go. Raises `NotCachedError`."""
        if self.find(key) is None:
            raise NotCachedError(f"{key}: not in the cache")
        try:
            if pinned:
                write_durably(self.layout.pin(key), b"")
            else:
                self.layout.pin(key).unlink(missing_ok=True)
        except OSError as error:
            raise cache_error(error, self.layout.pin(key)) from error

    def delete(self, key: str) -> None:
        """Remove a snapshot, or the rest of a transfer. Raises `NotCachedError`; `CacheError` while it is in use."""
        known = self.layout.model(_checked(key)).exists() or self.layout.transfer(key).exists()
        if not known:
            raise NotCachedError(f"{key}: not in the cache")
        with try_lock(self.layout.lock(key, "stage")) as idle, try_lock(self.layout.lock(key, "use")) as unused:
            if not (idle and unused):
                raise CacheError(f"{key}: in use or being staged; stop its readers first")
            self._remove(key)
            self._to_trash(self.layout.transfer(key))

    def withdraw(self, key: str, tree: Path) -> None:
        """Take a damaged snapshot out of sight, its files becoming the finished files of a transfer."""
        try:
            shutil.rmtree(tree, ignore_errors=True)
            tree.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.layout.model(key), tree)
            (tree / MANIFEST_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise cache_error(error, tree) from error

    def _policy_entry(self, cached: Cached) -> Entry:
        with try_lock(self.layout.lock(cached.key, "use")) as unused:
            in_use = not unused
        return Entry(cached.key, cached.manifest.size_bytes, cached.last_used_s, cached.pinned, in_use)

    def _drop_idle(self, own: str, family: str = "") -> int:
        """Drop interrupted transfers: of other revisions of a model (they will not be resumed), or all of them."""
        dropped = 0
        for path in self.layout.incoming.iterdir():
            if path.name == own or not path.name.startswith(family):
                continue
            with try_lock(self.layout.lock(path.name, "stage")) as idle:
                if idle:
                    self._to_trash(path)
                    dropped += 1
        return dropped

    def _remove(self, key: str) -> None:
        self._to_trash(self.layout.model(key))
        for left in (self.layout.used(key), self.layout.pin(key)):
            left.unlink(missing_ok=True)

    def _to_trash(self, path: Path) -> None:
        hidden = self.layout.trash / uuid.uuid4().hex
        try:
            os.rename(path, hidden)
        except FileNotFoundError:
            return
        except OSError as error:
            raise cache_error(error, path) from error
        shutil.rmtree(hidden, ignore_errors=True)


def read_manifest(path: Path) -> Manifest | None:
    """The valid manifest of a snapshot directory, or None."""
    try:
        with (path / MANIFEST_NAME).open("rb") as file:
            raw = file.read(MAX_MANIFEST_BYTES + 1)
        return parse_manifest(raw, need_digest=True)
    except (OSError, BadManifestError):
        return None


def _as_published(path: Path, file: ManifestFile) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_size == file.size and file.mtime_ns in (None, found.st_mtime_ns)


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _checked(key: str) -> str:
    if KEY.fullmatch(key) is None:
        raise NotCachedError(f"{key[:100]!r}: not a key of the cache")
    return key
