"""Small edits of a JSON object's bytes: everything outside an edit stays byte for byte as the client sent it."""

import codecs
import json
import re
from dataclasses import dataclass

import orjson

from tonnage_router.errors import BadBodyError

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.S)
_NESTED = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.S)
_SCALAR = re.compile(rb"[^,\]}\s]+")


@dataclass(frozen=True, slots=True)
class Span:
    """A value of one key: `body[start:end]`."""

    start: int
    end: int


class Edit:
    """Replace `body[start:end]` by `new`."""

    __slots__ = ("end", "new", "start")

    def __init__(self, start: int, end: int, new: bytes) -> None:
        self.start = start
        self.end = end
        self.new = new


def spans(body: bytes, start: int, names: frozenset[str]) -> dict[str, list[Span]]:
    """Where the values of `names` stand in the object whose `{` is the first non-space byte from `start`.

    A duplicate key has several spans. The body must be valid JSON: `BadBodyError` when its structure is not.
    """
    found: dict[str, list[Span]] = {}
    at = _open(body, start)
    if body[at : at + 1] == b"}":
        return found
    while True:
        key = _STRING.match(body, at)
        if key is None:
            raise BadBodyError("the body's keys cannot be located")
        at = _skip(body, key.end())
        if body[at : at + 1] != b":":
            raise BadBodyError("the body's keys cannot be located")
        at = _skip(body, at + 1)
        end = _value_end(body, at)
        name = _key(key.group())
        if name in names:
            found.setdefault(name, []).append(Span(at, end))
        at = _skip(body, end)
        if body[at : at + 1] != b",":
            return found
        at = _skip(body, at + 1)


def _open(body: bytes, start: int) -> int:
    at = _skip(body, len(codecs.BOM_UTF8) if not start and body.startswith(codecs.BOM_UTF8) else start)
    if body[at : at + 1] != b"{":
        raise BadBodyError("the body is not a JSON object")
    return _skip(body, at + 1)


def _skip(body: bytes, at: int) -> int:
    match = _SPACE.match(body, at)
    return match.end() if match else at


def _key(raw: bytes) -> str:
    inner = raw[1:-1]
    if b"\\" not in inner:
        return inner.decode("utf-8", "replace")
    try:
        return str(json.loads(raw))
    except ValueError as error:
        raise BadBodyError("the body's keys cannot be located") from error


def _value_end(body: bytes, at: int) -> int:
    first = body[at : at + 1]
    if first == b'"':
        match = _STRING.match(body, at)
    elif first in (b"{", b"["):
        return _nested_end(body, at)
    else:
        match = _SCALAR.match(body, at)
    if match is None:
        raise BadBodyError("the body's values cannot be located")
    return match.end()


def _nested_end(body: bytes, at: int) -> int:
    depth = 0
    for token in _NESTED.finditer(body, at):
        first = token.group()[:1]
        if first in (b"{", b"["):
            depth += 1
        elif first in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    raise BadBodyError("the body's values cannot be located")


def apply(body: bytes, edits: list[Edit]) -> bytes:
    """`body` with all edits made; edits must not overlap."""
    parts: list[bytes] = []
    at = 0
    for edit in edits if len(edits) == 1 else sorted(edits, key=lambda e: e.start):
        parts += (body[at : edit.start], edit.new)
        at = edit.end
    parts.append(body[at:])
    return b"".join(parts)


def set_text(body: bytes, name: str, value: str, *, absent: bool = False) -> list[Edit]:
    """Edits that make `name` the string `value`, at every place it stands, or as a new first key. `absent`: the parsed
    body is known not to have it, which saves the search."""
    new = orjson.dumps(value)
    found = None if absent else spans(body, 0, frozenset({name})).get(name)
    return [Edit(s.start, s.end, new) for s in found] if found else [insert(body, 0, orjson.dumps(name) + b":" + new)]


def ask_usage(body: bytes, *, absent: bool = False) -> list[Edit]:
    """Edits that make `stream_options.include_usage` true; `absent` as in `set_text`."""
    wanted = b'"include_usage":true'
    found = None if absent else spans(body, 0, frozenset({"stream_options"})).get("stream_options")
    if not found:
        return [insert(body, 0, b'"stream_options":{' + wanted + b"}")]
    edits: list[Edit] = []
    for span in found:
        if body[span.start : span.start + 1] != b"{":
            edits.append(Edit(span.start, span.end, b"{" + wanted + b"}"))
            continue
        inner = spans(body, span.start, frozenset({"include_usage"})).get("include_usage")
        if inner:
            edits += [Edit(s.start, s.end, b"true") for s in inner]
        else:
            edits.append(insert(body, span.start, wanted))
    return edits


def insert(body: bytes, start: int, member: bytes) -> Edit:
    """A new first member of the object at `start`, which may get several."""
    at = _open(body, start)
    comma = b"" if body[at : at + 1] == b"}" else b","
    return Edit(at, at, member + comma)
