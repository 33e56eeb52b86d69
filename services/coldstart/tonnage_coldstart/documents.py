"""The JSON documents of the service and the command line."""

from dataclasses import asdict
from typing import Any

from tonnage_coldstart.cache.store import Cached, NodeCache
from tonnage_coldstart.progress import Standing
from tonnage_coldstart.staging import Staged


def stage_report(staged: Staged) -> dict[str, Any]:
    """`tonnage.stage/1`. `gbps` is snapshot bytes over all seconds, in GB/s; null for a snapshot that was there."""
    return {
        "schema": "tonnage.stage/1",
        "version": 1,
        "key": staged.key,
        "path": str(staged.path),
        "revision": staged.revision,
        "bytes": staged.bytes,
        "source_bytes": staged.source_bytes,
        "peer_bytes": staged.peer_bytes,
        "resumed_bytes": staged.resumed_bytes,
        "seconds": staged.seconds,
        "gbps": None if staged.cache_hit or staged.seconds <= 0 else staged.bytes / staged.seconds / 1e9,
        "cache_hit": staged.cache_hit,
        "verified": True,
        "verified_by": staged.verified_by,
        "repaired": list(staged.repaired),
        "retries": staged.retries,
        "phases": staged.phases,
        "ended_at": staged.ended_at,
    }


def standing_document(standing: Standing) -> dict[str, Any]:
    """A transfer's progress; what is unknown is null."""
    return asdict(standing)


def cache_document(cache: NodeCache, entries: list[Cached]) -> dict[str, Any]:
    """`tonnage.cache/1`: the snapshots of the cache."""
    return {
        "schema": "tonnage.cache/1",
        "version": 1,
        "quota_bytes": cache.quota_bytes,
        "bytes": sum(cached.manifest.size_bytes for cached in entries),
        "entries": [entry_document(cached) for cached in entries],
    }


def entry_document(cached: Cached) -> dict[str, Any]:
    """One snapshot."""
    manifest = cached.manifest
    return {
        "key": cached.key,
        "path": str(cached.path),
        "uri": manifest.uri,
        "label": manifest.label,
        "revision": manifest.revision,
        "bytes": manifest.size_bytes,
        "files": len(manifest.files),
        "created_at": manifest.created_at,
        "last_used_s": cached.last_used_s,
        "pinned": cached.pinned,
        "changed_files": list(cached.suspects),
    }
