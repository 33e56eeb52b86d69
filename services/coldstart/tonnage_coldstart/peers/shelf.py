"""What a node serves to others: chunks of published snapshots, each checked against the manifest as it leaves."""

import os
import threading
from dataclasses import dataclass

from crc32c import crc32c

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.errors import ContentMismatchError, NotCachedError
from tonnage_coldstart.manifest import Manifest, ManifestFile, dump_manifest
from tonnage_runtime.access import SharedToken

TOKEN_HEADER = "x-tonnage-peer-token"


@dataclass(frozen=True, slots=True)
class Shelved:
    """A snapshot that is served: its manifest, parsed once, and its files by name."""

    path: str
    manifest: Manifest
    files: dict[str, ManifestFile]


class Shelf:
    """Chunks by the manifest's digest; safe to call from several threads."""

    def __init__(self, cache: NodeCache, token: SharedToken) -> None:
        self._cache = cache
        self._token = token
        self._known: dict[str, Shelved] = {}
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether this node serves others at all: it needs a token."""
        return bool(self._token)

    def admits(self, token: str) -> bool:
        """Whether a caller's token is the fleet's."""
        return self._token.admits(token)

    def manifest(self, key: str) -> bytes:
        """The manifest of a snapshot. Raises `NotCachedError`."""
        cached = self._cache.find(key)
        if cached is None:
            raise NotCachedError(f"{key}: not in the cache")
        return dump_manifest(cached.manifest)

    def chunk(self, digest: str, file: str, index: int) -> bytes:
        """One chunk, checked now. Raises `NotCachedError`; `ContentMismatchError` when the disk lost bits."""
        shelved = self._find(digest)
        described = shelved.files.get(file)
        if described is None or described.crc32c is None or not 0 <= index < len(described.crc32c):
            raise NotCachedError(f"no chunk {index} of {file[:100]!r} in {digest[:16]}")
        start = index * shelved.manifest.chunk_bytes
        length = min(shelved.manifest.chunk_bytes, described.size - start)
        try:
            descriptor = os.open(os.path.join(shelved.path, file), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            self._forget(digest)
            raise NotCachedError(f"{file[:100]!r} of {digest[:16]} left the cache") from error
        try:
            raw = os.pread(descriptor, length, start)
        finally:
            os.close(descriptor)
        found = crc32c(raw)
        if len(raw) != length or found != described.crc32c[index]:
            expected = f"{described.crc32c[index]:08x}"
            raise ContentMismatchError(file, f"CRC32C of chunk {index}", expected, f"{found:08x}")
        return raw

    def _find(self, digest: str) -> Shelved:
        with self._lock:
            known = self._known.get(digest)
            if known is None:
                self._known = {
                    cached.manifest.digest or "": Shelved(str(cached.path), cached.manifest, cached.manifest.by_name())
                    for cached in self._cache.entries()
                }
                known = self._known.get(digest)
        if known is None:
            raise NotCachedError(f"no snapshot with the manifest {digest[:16]}")
        return known

    def _forget(self, digest: str) -> None:
        with self._lock:
            self._known.pop(digest, None)
