"""Token usage read out of answers as they pass, across any split of the bytes."""

import json
import re
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import orjson

from tonnage_router.wire.headers import EVENT_CHUNK_END

_WHOLE_PARSE_BYTES: Final = 16 << 10
_KEPT_BYTES: Final = 1 << 20
_MARK: Final = b'"usage"'
_EVENT: Final = b"data:"
_MOST: Final = 1 << 40
"""No request uses more tokens; larger counts, like negative ones, are no counts."""
_OBJECT = re.compile(rb'"usage"\s*:\s*\{')


@dataclass(slots=True, init=False)
class Usage:
    """Tokens an engine says it counted. `cached_tokens` is None when it does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None

    def __init__(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens


class StreamTap:
    """Remembers the last usage that a whole line of an event stream gave, and counts the events."""

    __slots__ = ("_carry", "_last", "events")

    def __init__(self) -> None:
        self.events = 0
        self._carry = b""
        self._last: Usage | None = None

    def passes(self, piece: bytes) -> bool:
        """Whether `piece` is whole events that say nothing of usage, so that it need not be fed."""
        if self._carry or not piece.endswith(b"\n\n") or _tells(piece):
            return False
        self.events += piece.count(_EVENT)
        return True

    def passes_chunk(self, data: bytes, at: int) -> bool:
        """As `passes`, for a piece in its chunk's framing: it begins at `at`."""
        if self._carry or not data.endswith(EVENT_CHUNK_END) or _tells(data):
            return False
        alone = data[at : at + len(_EVENT)] == _EVENT and data.find(b"\n\n") == len(data) - len(EVENT_CHUNK_END)
        self.events += 1 if alone else data.count(_EVENT)  # engines send each event in a chunk of its own
        return True

    def feed(self, piece: bytes) -> None:
        """Take the next bytes; lines cut between pieces are joined."""
        self.events += piece.count(_EVENT)
        if self._carry:
            piece = self._carry + piece
        if piece.endswith(b"\n"):
            self._carry = b""
            if _tells(piece):
                self._last = _last_usage(piece, self._last)
        else:
            cut = piece.rfind(b"\n") + 1
            if cut and _OBJECT.search(piece, 0, cut):
                self._last = _last_usage(piece[:cut], self._last)
            self._carry = piece[cut:][-_KEPT_BYTES:]

    def usage(self) -> Usage | None:
        """The last usage seen, or None."""
        return _last_usage(self._carry, self._last)


def _tells(piece: bytes) -> bool:
    """Whether `piece` holds a usage object; some engines give each event a usage of null."""
    at = piece.find(_MARK)  # `in` tries for an integer first
    return at >= 0 and _OBJECT.search(piece, at) is not None


def _last_usage(lines: bytes, last: Usage | None) -> Usage | None:
    """The last usage of `lines`, else `last`, which came before them."""
    for line in lines.split(b"\n"):
        if _MARK in line and line.startswith(b"data:"):
            last = _from_document(_loads(line[5:]), last) or last
    return last


class BodyTap:
    """Keeps a whole JSON answer, or the end of a long one."""

    __slots__ = ("_pieces", "_size", "events")

    def __init__(self) -> None:
        self.events = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def passes(self, piece: bytes) -> bool:
        """Never: all of it is kept."""
        return False

    def passes_chunk(self, data: bytes, at: int) -> bool:
        """Never: all of it is kept."""
        return False

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the body."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _KEPT_BYTES:
            kept = b"".join(self._pieces)[-_WHOLE_PARSE_BYTES:]
            self._pieces, self._size = [kept], len(kept)

    def usage(self) -> Usage | None:
        """The usage object of the body, or None."""
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if len(body) <= _WHOLE_PARSE_BYTES and body[:1] == b"{":
            return _from_document(_loads(body))
        return _from_tail(body)


def _loads(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def _from_tail(body: bytes) -> Usage | None:
    """Usage stands last in engines' answers, after what may be megabytes of embeddings."""
    at = body.rfind(_MARK)
    start = body.find(b"{", at)
    if at < 0 or start < 0:
        return None
    try:
        usage, _ = json.JSONDecoder().raw_decode(body[start:].decode("utf-8", "replace"))
    except ValueError:
        return None
    return _from_document({"usage": usage})


def _from_document(document: Any, before: Usage | None = None) -> Usage | None:
    if type(document) is not dict:
        return None
    usage = document.get("usage")
    # The last event of /v1/responses, and the first of /v1/messages, whose last may leave the prompt out.
    if usage is None and type(nested := document.get("response") or document.get("message")) is dict:
        usage = nested.get("usage")
    if type(usage) is not dict:
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    if prompt is None and before is not None:
        prompt = before.prompt_tokens
    completion = usage.get("completion_tokens", usage.get("output_tokens", 0))
    if not _is_count(prompt) or not _is_count(completion):
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if type(details) is dict else None
    return Usage(prompt, completion, cached if _is_count(cached) else None)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST
