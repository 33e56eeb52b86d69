"""Chained block hashes: equal hashes mean equal blocks after equal prefixes, for one model, adapter and salt.

The chain follows vLLM's prefix cache design (docs/design/prefix_caching.md): the hash of a block covers its parent's
hash and its own tokens. Fields of the seed are tagged and length-prefixed, so adapter X and salt X differ.
"""

import struct
from collections.abc import Sequence

from xxhash import xxh3_128_digest

DIGEST_BYTES = 16
_MODEL, _ADAPTER, _SALT = b"m", b"a", b"s"


def seed_hash(model: str, adapter: str | None, salt: str | None) -> bytes:
    """The 16-byte parent of a request's first block. `None` and `""` are different adapters and salts."""
    fields = [(_MODEL, model), (_ADAPTER, adapter), (_SALT, salt)]
    encoded = [(tag, value.encode("utf-8", "surrogatepass")) for tag, value in fields if value is not None]
    return xxh3_128_digest(b"".join(tag + struct.pack("<I", len(raw)) + raw for tag, raw in encoded))


def chain(seed: bytes, block: bytes) -> bytes:
    """The 16-byte hash of `block` (any bytes) whose parent, or seed, hashes to `seed`."""
    return xxh3_128_digest(seed + block)


def hash_blocks(seed: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the full blocks of `tokens` (ids 0 to 2**32-1, packed little-endian); a partial last block has none."""
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; at least 1 token is needed")
    whole = len(tokens) - len(tokens) % block_size
    packed = struct.pack(f"<{whole}I", *tokens[:whole])
    return hash_bytes(seed, packed, 4 * block_size)


def hash_bytes(seed: bytes, data: bytes, block_bytes: int) -> list[bytes]:
    """Hashes of the full `block_bytes`-sized pieces of `data`; a partial last piece has none."""
    digest, hashes, parent = xxh3_128_digest, [], seed
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        parent = digest(parent + data[start : start + block_bytes])
        hashes.append(parent)
    return hashes
