"""Spans in the protobuf encoding of OTLP (opentelemetry/proto/trace/v1/trace.proto, stable since 1.0).

Written out, since the router has one thread: generated classes take twice the CPU a span, OpenTelemetry's SDK over ten
times. Field numbers are those of the schema; tests read the bytes back with the generated classes.
"""

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

Value = str | int | float | bool
MAX_TEXT_BYTES = 256
"""Longer texts of attributes are cut: some come from clients."""


class Kind(IntEnum):
    """A span's kind."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Span(NamedTuple):
    """One span. Ids are numbers, `parent_id` 0 for none; times are nanoseconds since the epoch."""

    trace_id: int
    span_id: int
    parent_id: int
    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value | None]
    """Those of None are left out."""
    labels: bytes = b""
    """Further attributes, encoded: those that come again and again are encoded once."""
    error: str | None = None
    """Why it failed; None leaves the status unset."""
    state: bytes = b""
    """The trace's `tracestate`."""


def _varint(value: int) -> bytes:
    """A number from 0 up, seven bits a byte, lowest first."""
    if value < 128:
        return bytes((value,))
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _part(tag: int, content: bytes) -> bytes:
    """A field of bytes, text or a message; `tag` is the field's number times 8 plus 2."""
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    return bytes((tag,)) + _varint(size) + content


def _text(text: str) -> bytes:
    """UTF-8, what is no text replaced, cut between two characters."""
    made = text.encode("utf-8", "replace")
    if len(made) > MAX_TEXT_BYTES:
        made = made[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()
    return made


@lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    """A `KeyValue`'s key, field 1: names of attributes are few."""
    return _part(0x0A, _text(name))


@lru_cache(maxsize=1024)
def _texts(tag: int, name: str, text: str) -> bytes:
    """An attribute of text: most are a model's, an endpoint's or a path's name, which come again."""
    return _part(tag, _key(name) + _part(0x12, _part(0x0A, _text(text))))


def _attribute(tag: int, name: str, value: Value) -> bytes:
    """A `KeyValue`, key 1 and value 2, as the field of `tag`; its `AnyValue` has text 1, bool 2, int 3, double 4."""
    if isinstance(value, str):
        return _texts(tag, name, value)
    key = _key(name)
    if isinstance(value, float):
        return bytes((tag, len(key) + 11)) + key + b"\x12\x09\x21" + struct.pack("<d", value)
    number = _varint(value & 0xFFFFFFFFFFFFFFFF)
    size = len(number)
    kind = 0x10 if isinstance(value, bool) else 0x18
    return bytes((tag, len(key) + size + 3)) + key + bytes((0x12, size + 1, kind)) + number


def encoded_attributes(attributes: Mapping[str, Value | None]) -> bytes:
    """Attributes of a span; those of None are left out."""
    return b"".join([_attribute(0x4A, name, value) for name, value in attributes.items() if value is not None])


def encoded_span(span: Span) -> bytes:
    """A span as a field of `ScopeSpans`: those of many requests may be put one after the other."""
    made = [b"\x0a\x10", span.trace_id.to_bytes(16, "big"), b"\x12\x08", span.span_id.to_bytes(8, "big")]
    if span.state:
        made.append(_part(0x1A, span.state))
    if span.parent_id:
        made += (b"\x22\x08", span.parent_id.to_bytes(8, "big"))
    made += (
        _part(0x2A, _text(span.name)),
        bytes((0x30, span.kind)),
        b"\x39" + span.start_ns.to_bytes(8, "little"),
        b"\x41" + span.end_ns.to_bytes(8, "little"),
    )
    made += (encoded_attributes(span.attributes), span.labels)
    if span.error is not None:
        made.append(_part(0x7A, _part(0x12, _text(span.error)) + b"\x18\x02"))
    return _part(0x12, b"".join(made))


def encoded_request(resource: Mapping[str, Value], scope: str, version: str, spans: Iterable[bytes]) -> bytes:
    """An `ExportTraceServiceRequest` of encoded spans, all of one resource and one instrumentation scope."""
    by = _part(0x0A, _part(0x0A, scope.encode()) + _part(0x12, version.encode()))
    scoped = _part(0x12, by + b"".join(spans))
    named = b"".join(_attribute(0x0A, name, value) for name, value in resource.items())
    return _part(0x0A, _part(0x0A, named) + scoped)


def rejected_spans(answer: bytes) -> int:
    """How many spans an `ExportTraceServiceResponse` says the collector did not take; 0 where it does not say."""
    partial = _field(answer, 1)
    count = _field(partial, 1) if isinstance(partial, bytes) else None
    return count if isinstance(count, int) and count < 1 << 63 else 0


def _field(message: bytes, wanted: int) -> int | bytes | None:
    """The first field of that number, a varint or bytes; None where there is none, or the message is no such."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        found: int | bytes
        if tag & 7 == 0:
            found, at = _read_varint(message, at)
        elif tag & 7 == 2:
            size, at = _read_varint(message, at)
            found, at = message[at : at + size], at + size
        else:
            return None
        if at > len(message):
            return None
        if tag >> 3 == wanted:
            return found
    return None


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends: beyond the message for one that is cut, or longer than ten bytes."""
    value = 0
    for i, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    return value, len(message) + 1
