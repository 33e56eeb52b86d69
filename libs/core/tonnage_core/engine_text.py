"""The simulated engine's tokenizer: any list of word ids survives a trip through text, and any text encodes.

Ids 0..255 are the bytes of UTF-8; ids 256..65791 are words, each a space and five letters, consonant-vowel-consonant-
vowel-consonant, so 16 x 4 x 16 x 4 x 16 = 65,536 of them. A word is recognised only after a space, never inside
another, so `encode(a + b) == encode(a) + encode(b)` whenever `b` starts with a space: text that is extended keeps its
tokens, and with them its cache blocks. UTF-8 has no bytes 0xF8..0xFF: those ids are the special tokens.
"""

import re
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache

from tonnage_core.errors import BadInputError

WORD_BASE = 256
"""The id of the first word."""
WORDS = 1 << 16
WORD_CHARS = 6
"""Characters, and bytes, of a word's text."""
TOKENS = WORD_BASE + WORDS
"""Size of the vocabulary."""

BOS, SYSTEM, USER, ASSISTANT, TOOL, END_OF_TURN, EOS = 248, 249, 250, 251, 252, 253, 254
"""Special tokens: no text encodes to them, and `decode` leaves them out."""
SPECIAL = frozenset(range(248, 256))

_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aeio"
_RUN_OF_WORDS = re.compile(f"(?: [{_CONSONANTS}][{_VOWELS}][{_CONSONANTS}][{_VOWELS}][{_CONSONANTS}])+".encode())
_PLACES = (b" ", *(letters.encode() for letters in (_CONSONANTS, _VOWELS, _CONSONANTS, _VOWELS, _CONSONANTS)))
"""What may stand at each place of a word."""


class TokenRangeError(BadInputError):
    """A token id is outside the vocabulary."""

    def __init__(self, token_id: int) -> None:
        super().__init__(f"token id {token_id} is out of vocabulary: ids are 0 to {TOKENS - 1}")
        self.token_id = token_id


def encode(text: str) -> list[int]:
    """The token ids of `text`: words where it has them, UTF-8 bytes elsewhere."""
    return encode_array(text).tolist()


def encode_array(text: str) -> "array[int]":
    """The same as 32-bit numbers side by side: no object a token, for long prompts that are hashed as bytes."""
    data = text.encode("utf-8", "surrogatepass")
    if _only_words(data):
        return _words_of(data)
    tokens = array("I")
    end = 0
    for run in _RUN_OF_WORDS.finditer(data):
        start = run.start()
        tokens.extend(data[end:start])
        end = run.end()
        tokens.extend(_words_of(data[start:end]))
    tokens.extend(data[end:])
    return tokens


def decode(token_ids: Sequence[int]) -> str:
    """The text of `token_ids`; bytes that are not UTF-8 become U+FFFD, special tokens nothing.

    Raises `TokenRangeError` for an id outside 0..TOKENS-1.
    """
    if not token_ids:
        return ""
    check_range(token_ids)
    return b"".join(map(_table().__getitem__, token_ids)).decode("utf-8", "replace")


def word(token_id: int) -> str:
    """The text of one token."""
    return decode((token_id,))


def word_bytes(token_id: int) -> bytes:
    """The UTF-8 bytes of one token, whose id is known to be in the vocabulary: the quick way."""
    return _table()[token_id]


def check_range(token_ids: Sequence[int]) -> None:
    """Raise `TokenRangeError` for the first extreme id outside the vocabulary."""
    low, high = min(token_ids, default=0), max(token_ids, default=0)
    if low < 0:
        raise TokenRangeError(low)
    if high >= TOKENS:
        raise TokenRangeError(high)


def _only_words(data: bytes) -> bool:
    """Whether `data` is words and nothing else: every sixth byte from each place on is one that may stand there."""
    return len(data) % WORD_CHARS == 0 and not any(
        data[place::WORD_CHARS].translate(None, allowed) for place, allowed in enumerate(_PLACES)
    )


def _words_of(letters: bytes) -> "array[int]":
    """Ids of back-to-back words, six bytes each, with every step over all words at once.

    A word's number is c1 v1 c2 v2 c3 in 4, 2, 4, 2 and 4 bits. Each letter's bits are looked up where they belong
    in the high or the low byte, and the bytes are joined as one long integer of little-endian 32-bit lanes.
    """
    lanes = bytearray(4 * (len(letters) // 6))
    for at, planes in ((0, _LOW_BYTE), (1, _HIGH_BYTE)):
        joined = 0
        for letter, bits in planes:
            joined |= int.from_bytes(letters[letter::6].translate(bits), "little")
        lanes[at::4] = joined.to_bytes(len(lanes) // 4, "little")
    offset = int.from_bytes(WORD_BASE.to_bytes(4, "little") * (len(lanes) // 4), "little")
    ids = array("I")
    ids.frombytes((int.from_bytes(lanes, "little") + offset).to_bytes(len(lanes), "little"))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def _bits(letters: str, shift: int) -> bytes:
    """A translation table: each of `letters` to its number shifted left (right when negative), within one byte."""
    table = bytearray(256)
    for number, letter in enumerate(letters):
        table[ord(letter)] = (number << shift if shift >= 0 else number >> -shift) & 0xFF
    return bytes(table)


_HIGH_BYTE = ((1, _bits(_CONSONANTS, 4)), (2, _bits(_VOWELS, 2)), (3, _bits(_CONSONANTS, -2)))
_LOW_BYTE = ((3, _bits(_CONSONANTS, 6)), (4, _bits(_VOWELS, 4)), (5, _bits(_CONSONANTS, 0)))


@lru_cache(maxsize=1)
def _table() -> list[bytes]:
    """Bytes of each token by id."""
    plain = [b"" if i in SPECIAL else bytes((i,)) for i in range(WORD_BASE)]
    ends = [v + c for v in _VOWELS for c in _CONSONANTS]
    return plain + [f" {c}{middle}{end}".encode() for c in _CONSONANTS for middle in ends for end in ends]
