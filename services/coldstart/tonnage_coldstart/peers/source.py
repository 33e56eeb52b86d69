"""A source in front of another: chunks from the nearest node that has them, the rest from where they came."""

import logging
import threading
from collections.abc import Sequence
from urllib.parse import quote

from crc32c import crc32c

from tonnage_coldstart.errors import ContentMismatchError, SourceError, TransientSourceError
from tonnage_coldstart.manifest import MAX_MANIFEST_BYTES, BadManifestError, Manifest, parse_manifest
from tonnage_coldstart.peers.shelf import TOKEN_HEADER
from tonnage_coldstart.snapshot import Snapshot, Source, SourceFile, WholeFile
from tonnage_coldstart.sources.http_client import HttpClient
from tonnage_core.coldstart.peers import Peer

log = logging.getLogger("tonnage.coldstart.peers")
FAILURES = 2
"""Failed chunks after which a node is not asked again by this transfer."""


class PeerSource:
    """`origin` behind `peers`; `peer_bytes` counts what came from them."""

    kind = "peer"

    def __init__(
        self,
        origin: Source,
        snapshot: Snapshot,
        peers: Sequence[Peer],
        manifest: Manifest,
        client: HttpClient,
        token: str,
    ) -> None:
        self._origin = origin
        self._snapshot = snapshot
        self._peers = list(peers)
        self._manifest = manifest
        self._files = manifest.by_name()
        self._client = client
        self._token = token
        self._failures: dict[str, int] = {}
        self._lock = threading.Lock()
        self.peer_bytes = 0

    def snapshot(self) -> Snapshot:
        """What the origin listed."""
        return self._snapshot

    def read_range(self, file: SourceFile, start: int, into: memoryview) -> None:
        """Fill `into` from a node whose bytes pass the check, else from the origin."""
        index, inside = divmod(start, self._manifest.chunk_bytes)
        described = self._files.get(file.name)
        if inside == 0 and described is not None and described.crc32c is not None:
            for peer in self._asked():
                if self._from(peer, file.name, index, described.crc32c[index], into):
                    with self._lock:
                        self.peer_bytes += len(into)
                    return
        self._origin.read_range(file, start, into)

    def open_whole(self, file: SourceFile) -> WholeFile:
        """Files without ranges come from the origin."""
        return self._origin.open_whole(file)

    def close(self) -> None:
        """Close the connections to other nodes; the origin has its own owner."""
        self._client.close()

    def _asked(self) -> list[Peer]:
        with self._lock:
            return [peer for peer in self._peers if self._failures.get(peer.node, 0) < FAILURES]

    def _from(self, peer: Peer, name: str, index: int, crc: int, into: memoryview) -> bool:
        url = f"{peer.url}/v1/chunks/{self._manifest.digest}?file={quote(name, safe='')}&index={index}"
        try:
            response = self._client.request("GET", url, {TOKEN_HEADER: self._token})
            try:
                if response.status != 200 or response.headers.get("content-length") != str(len(into)):
                    raise SourceError(peer.url, f"answered {response.status}", file=name)
                self._client.receive(response, into)
            finally:
                self._client.drop(response)
            if crc32c(into) != crc:
                raise ContentMismatchError(name, f"CRC32C of chunk {index} from {peer.node}", f"{crc:08x}", "another")
        except (SourceError, ContentMismatchError) as error:
            with self._lock:
                self._failures[peer.node] = self._failures.get(peer.node, 0) + 1
            log.warning("a node did not deliver", extra={"peer": peer.node, "error": str(error)})
            return False
        return True


def manifest_of(peer: Peer, snapshot: Snapshot, client: HttpClient, token: str) -> Manifest | None:
    """The manifest a node has of `snapshot`; None when it has none, or one of other files or sizes."""
    try:
        response = client.request("GET", f"{peer.url}/v1/manifests/{snapshot.key}", {TOKEN_HEADER: token})
        try:
            if response.status != 200:
                raise TransientSourceError(peer.url, f"answered {response.status}")
            manifest = parse_manifest(client.read(response, MAX_MANIFEST_BYTES), need_digest=True)
        finally:
            client.drop(response)
    except (SourceError, BadManifestError) as error:
        log.warning("a node's manifest cannot be used", extra={"peer": peer.node, "error": str(error)})
        return None
    return manifest if _describes(manifest, snapshot) else None


def _describes(manifest: Manifest, snapshot: Snapshot) -> bool:
    """Same revision, files and sizes, in the same chunks; digests of the origin, where there are some, agree."""
    found = manifest.by_name()
    if manifest.revision != snapshot.revision or manifest.chunk_bytes != snapshot.chunk_bytes:
        return False
    if found.keys() != {file.name for file in snapshot.files}:
        return False
    return all(_agrees(file, found[file.name].size, found[file.name].crc32c) for file in snapshot.files)


def _agrees(file: SourceFile, size: int, crcs: tuple[int, ...] | None) -> bool:
    return file.size_bytes == size and (file.chunk_crcs is None or file.chunk_crcs == crcs)
