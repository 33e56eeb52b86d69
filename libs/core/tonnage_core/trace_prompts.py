"""Prompts made from a trace's block ids: equal ids give equal tokens, unequal ids differ from the block's first tokens.

A block begins with its id as base-N digits, lowest first, N being the number of token ids in use; the rest is a slice
of one fixed pseudo-random pool, at a place the id decides. With the default 65,536 words two ids differ in their first
token unless they are equal modulo 65,536, and always within the first four.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice

from tonnage_core.engine_text import WORD_BASE, WORDS

MAX_HASH_ID = (1 << 63) - 1
POOL = 1 << 16
"""Places a block's filler can start at; also the longest block, in tokens."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The token ids prompts are written in (two or more, distinct)."""

    ids: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.ids) < 2:
            raise ValueError(f"a vocabulary of {len(self.ids)} token ids cannot write block ids; 2 are needed")

    @cached_property
    def digits(self) -> int:
        """Tokens that write any block id: the least d with len(ids)**d > MAX_HASH_ID."""
        count, reach = 0, 1
        while reach <= MAX_HASH_ID:
            count, reach = count + 1, reach * len(self.ids)
        return count

    @cached_property
    def filler(self) -> list[int]:
        """2 * POOL pseudo-random token ids, the same in every process."""
        raw = hashlib.shake_128(b"tonnage trace filler").digest(2 * POOL * 4)
        size, ids = len(self.ids), self.ids
        return [ids[drawn % size] for drawn in struct.unpack(f"<{2 * POOL}I", raw)]

    def head(self, hash_id: int) -> list[int]:
        """The block id as tokens, lowest digit first, always `digits` of them."""
        size, ids, written = len(self.ids), self.ids, []
        for _ in range(self.digits):
            hash_id, digit = divmod(hash_id, size)
            written.append(ids[digit])
        return written


@lru_cache(maxsize=1)
def words() -> Vocabulary:
    """The default: the simulated engine's 65,536 words, each six bytes of text."""
    return Vocabulary(list(range(WORD_BASE, WORD_BASE + WORDS)))


def filler_start(hash_id: int) -> int:
    """Where in the filler a block's tokens after its head come from: 0..POOL-1 (splitmix64's finaliser)."""
    mixed = (hash_id * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) % POOL


def block_token_ids(hash_id: int, block_tokens: int = 512, vocabulary: Vocabulary | None = None) -> list[int]:
    """The `block_tokens` (1..POOL) token ids of trace block `hash_id` (0..MAX_HASH_ID)."""
    if not 0 <= hash_id <= MAX_HASH_ID:
        raise ValueError(f"block id {hash_id} is outside 0..{MAX_HASH_ID}")
    if not 1 <= block_tokens <= POOL:
        raise ValueError(f"a block of {block_tokens} tokens is outside 1..{POOL}")
    chosen = words() if vocabulary is None else vocabulary
    tokens = chosen.head(hash_id)[:block_tokens]
    start = filler_start(hash_id)
    tokens += chosen.filler[start : start + block_tokens - len(tokens)]
    return tokens


def prompt_tokens(
    hash_ids: Sequence[int], length: int, block_tokens: int = 512, vocabulary: Vocabulary | None = None
) -> list[int]:
    """The first `length` tokens of the blocks `hash_ids`, which must hold at least that many."""
    needed = -(-length // block_tokens)
    if needed > len(hash_ids):
        raise ValueError(f"{len(hash_ids)} blocks of {block_tokens} tokens do not hold {length} tokens")
    tokens: list[int] = []
    for hash_id in islice(hash_ids, needed):
        tokens += block_token_ids(hash_id, block_tokens, vocabulary)
    del tokens[length:]
    return tokens
