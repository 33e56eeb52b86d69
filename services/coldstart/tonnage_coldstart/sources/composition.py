"""From a listing to a snapshot: the manifest's digests where there is one, the index's shards checked."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tonnage_coldstart.errors import SourceError
from tonnage_coldstart.manifest import MAX_MANIFEST_BYTES, BadManifestError, Manifest, parse_manifest
from tonnage_coldstart.snapshot import Snapshot, SourceFile, files_revision
from tonnage_core.coldstart.fetch_plan import CHUNK_BYTES
from tonnage_core.coldstart.file_names import INDEX_NAME, MANIFEST_NAME
from tonnage_core.coldstart.snapshot import parse_index, require_shards, select

MAX_INDEX_BYTES = 128 << 20

ReadSmall = Callable[[str, int], bytes | None]
"""Name and limit in bytes -> the file's bytes, None when there is none."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source has; `revision` None when it has no version of the whole."""

    uri: str
    label: str
    revision: str | None
    files: dict[str, SourceFile]


def compose(listing: Listing, read_small: ReadSmall) -> Snapshot:
    """The snapshot to stage. Raises when manifest, index and listing contradict each other."""
    manifest = read_source_manifest(listing.uri, read_small)
    if manifest is None:
        files = [listing.files[name] for name in select(listing.files)]
        chunk_bytes = CHUNK_BYTES
    else:
        select(file.name for file in manifest.files)
        files = [_with_digests(file.name, listing, manifest) for file in manifest.files]
        chunk_bytes = manifest.chunk_bytes
    names = [file.name for file in files]
    raw = read_small(INDEX_NAME, MAX_INDEX_BYTES) if INDEX_NAME in names else None
    weight_map = dict(parse_index(raw, f"{listing.uri}/{INDEX_NAME}")) if raw is not None else {}
    require_shards(weight_map, names)
    revision = (manifest.revision if manifest else "") or listing.revision or files_revision(files)
    label = (manifest.label if manifest else "") or listing.label
    return Snapshot(listing.uri, label, revision, tuple(files), chunk_bytes, weight_map)


def read_source_manifest(uri: str, read_small: ReadSmall) -> Manifest | None:
    """The source's own manifest, if it has one; raises `SourceError` when it is not valid."""
    raw = read_small(MANIFEST_NAME, MAX_MANIFEST_BYTES)
    if raw is None:
        return None
    try:
        return parse_manifest(raw, need_digest=False)
    except BadManifestError as error:
        raise SourceError(uri, f"not a valid manifest: {error}", file=MANIFEST_NAME) from error


def _with_digests(name: str, listing: Listing, manifest: Manifest) -> SourceFile:
    described = manifest.by_name()[name]
    found = listing.files.get(name)
    if found is None:
        raise SourceError(listing.uri, f"{MANIFEST_NAME} names it but it is not there", file=name)
    if found.size_bytes != described.size:
        raise SourceError(
            listing.uri, f"has {found.size_bytes} bytes, {MANIFEST_NAME} says {described.size}", file=name
        )
    return replace(found, sha256=described.sha256, chunk_crcs=described.crc32c)
