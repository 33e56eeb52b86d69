"""The manifest: proof that a snapshot is complete, and what each of its bytes must be.

A snapshot directory without a valid manifest does not exist. The same document, served beside a model's files, gives a
source its digests.
"""

from collections.abc import Iterable
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tonnage_core.coldstart.fetch_plan import CHUNK_BYTES, chunk_count
from tonnage_core.coldstart.file_names import safe_name
from tonnage_core.coldstart.manifest_digest import manifest_digest
from tonnage_core.errors import TonnageError

MAX_MANIFEST_BYTES = 256 << 20


class ManifestFile(BaseModel):
    """One file; a digest that is not known is null."""

    model_config = ConfigDict(frozen=True)

    name: str
    size: int = Field(ge=0)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    crc32c: tuple[int, ...] | None = None
    version: str = ""
    mtime_ns: int | None = None


class Manifest(BaseModel):
    """The document; `digest` is the SHA-256 of all the rest in canonical form, null where a person wrote it."""

    model_config = ConfigDict(frozen=True)

    schema_: Literal["tonnage.manifest/1"] = Field(default="tonnage.manifest/1", alias="schema")
    version: int = 1
    uri: str = ""
    label: str = ""
    revision: str = ""
    created_at: str = ""
    chunk_bytes: int = Field(default=CHUNK_BYTES, ge=4096, le=1 << 30)
    source_digests: bool = False
    """True when the bytes were checked against digests the source publishes."""
    files: tuple[ManifestFile, ...]
    digest: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def by_name(self) -> dict[str, ManifestFile]:
        """The files by name."""
        return {file.name: file for file in self.files}


class BadManifestError(TonnageError):
    """Why a document is no manifest."""


def parse_manifest(raw: bytes, *, need_digest: bool) -> Manifest:
    """A manifest from JSON. `need_digest`: refuse one whose own digest is missing, as in the cache.

    Raises `BadManifestError`; names are safe and unique, chunk lists have the right length.
    """
    if len(raw) > MAX_MANIFEST_BYTES:
        raise BadManifestError(f"over {MAX_MANIFEST_BYTES >> 20} MiB")
    try:
        document = orjson.loads(raw)
        manifest = Manifest.model_validate(document)
    except orjson.JSONDecodeError as error:
        raise BadManifestError(f"not JSON: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise BadManifestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if manifest.digest is None and need_digest:
        raise BadManifestError("no digest")
    if manifest.digest is not None and manifest.digest != manifest_digest(document):
        raise BadManifestError("its digest does not match: it was changed or cut")
    _check_files(manifest)
    return manifest


def dump_manifest(manifest: Manifest) -> bytes:
    """JSON with the digest filled in."""
    document = manifest.model_dump(by_alias=True, mode="json")
    document["digest"] = manifest_digest(document)
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 if len(manifest.files) < 200 else 0)


def _check_files(manifest: Manifest) -> None:
    names = [safe_name(file.name) for file in manifest.files]
    _refuse_duplicates(names)
    for file in manifest.files:
        expected = chunk_count(file.size, manifest.chunk_bytes)
        if file.crc32c is not None and len(file.crc32c) != expected:
            raise BadManifestError(f"{file.name}: {len(file.crc32c)} chunk checksums, {expected} were expected")


def _refuse_duplicates(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadManifestError(f"{name} stands twice")
        seen.add(name)
