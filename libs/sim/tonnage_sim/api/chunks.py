"""What completion and chat streams have in common: events, and a frame prepared for the usual token."""

from collections.abc import Callable
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
_MARK = "\x00"


def event(document: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


class WordFrame:
    """The frame of a chunk that differs only in its word: cut in two around the word once, joined for each token."""

    __slots__ = ("_after", "_before")

    def __init__(self, document: Callable[[str], dict[str, Any]], frame: Callable[[bytes], bytes], width: int) -> None:
        """`document` makes the chunk for a text, `frame` frames bytes for the connection, `width` is a word's bytes."""
        framed = frame(event(document("x" * width)))
        self._before, _, self._after = framed.partition(b"x" * width)

    def join(self, word: bytes) -> bytes:
        """The frame with this word: letters and a space only, `width` bytes."""
        return self._before + word + self._after
