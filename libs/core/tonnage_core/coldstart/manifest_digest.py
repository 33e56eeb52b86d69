"""The manifest's own checksum, and the chunk checksums it holds, without any schema library."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage_core.coldstart.fetch_plan import chunk_count


@dataclass(frozen=True, slots=True)
class Checksums:
    """Chunk checksums of a snapshot: CRC32C of each chunk of `chunk_bytes`, by file name."""

    chunk_bytes: int
    crc32c: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]


def manifest_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 over the document without its `digest`, as JSON with sorted keys and no spaces."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def checksums_of(raw: bytes) -> Checksums | None:
    """The checksums of a cache's manifest, or None when it is damaged, has no digest or is no manifest."""
    try:
        document = json.loads(raw)
        if document["schema"] != "tonnage.manifest/1" or document["digest"] != manifest_digest(document):
            return None
        files = {file["name"]: file for file in document["files"]}
        crcs = {name: tuple(file["crc32c"]) for name, file in files.items() if file.get("crc32c") is not None}
        sizes = {name: file["size"] for name, file in files.items()}
        found = Checksums(document["chunk_bytes"], crcs, sizes)
        return found if _fits(found) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _fits(found: Checksums) -> bool:
    """Whether each file has one number a chunk."""
    if not all(type(one) is int for one in (found.chunk_bytes, *found.sizes.values())) or found.chunk_bytes < 1:
        return False
    return all(
        len(crcs) == chunk_count(found.sizes[name], found.chunk_bytes) and all(type(crc) is int for crc in crcs)
        for name, crcs in found.crc32c.items()
    )
