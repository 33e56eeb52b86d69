"""The fetch plan: files cut into chunks, each byte in exactly one chunk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CHUNK_BYTES = 8 << 20
"""Unit of fetch, of verification and of refetch: large enough for the wire, small enough to repeat."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes `start .. start + length` of file number `file`; `index` counts the chunks of that file."""

    file: int
    index: int
    start: int
    length: int


def chunk_count(size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Chunks of a file: none for an empty one."""
    return -(-size_bytes // chunk_bytes)


def chunks_of(file: int, size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The chunks of one file in order; the last may be short."""
    for index in range(chunk_count(size_bytes, chunk_bytes)):
        start = index * chunk_bytes
        yield Chunk(file, index, start, min(chunk_bytes, size_bytes - start))


def fetch_order(names: Sequence[str], sizes: Sequence[int], small_bytes: int = 1 << 20) -> tuple[int, ...]:
    """File numbers in the order to fetch: small files first, as the checks need them; then by name."""
    return tuple(sorted(range(len(names)), key=lambda file: (sizes[file] > small_bytes, names[file])))
