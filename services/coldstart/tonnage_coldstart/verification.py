"""The checks a finished file must pass before it gets its name."""

import hashlib
from pathlib import Path

from tonnage_coldstart.errors import ContentMismatchError
from tonnage_coldstart.snapshot import SourceFile
from tonnage_core.coldstart.safetensors_header import LENGTH_BYTES, Header, header_bytes, parse_header
from tonnage_core.coldstart.snapshot import WEIGHTS

READ_BYTES = 4 << 20


def check_file(path: Path, file: SourceFile) -> Header | None:
    """SHA-256 where the source publishes one and no chunk checksums were compared; the structure of safetensors.

    Returns the header of a weight file. Raises `ContentMismatchError` or `CorruptFileError`.
    """
    if file.sha256 is not None and file.chunk_crcs is None:
        found = sha256_of(path)
        if found != file.sha256:
            raise ContentMismatchError(file.name, "its SHA-256", file.sha256, found)
    return read_header(path, file.name) if file.name.endswith(WEIGHTS) else None


def read_header(path: Path, name: str) -> Header:
    """The header of a weight file on disk, checked against the file's size."""
    size = path.stat().st_size
    with path.open("rb") as opened:
        length = header_bytes(opened.read(LENGTH_BYTES), size, name)
        return parse_header(opened.read(length), size, name)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as opened:
        while count := opened.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
