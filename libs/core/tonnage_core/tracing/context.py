"""The trace context of a request: `traceparent` and `tracestate`, as W3C Trace Context (level 1) defines them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

SAMPLED = 1
RANDOM = 2
"""The right-most 7 bytes of the trace id are random (level 2); passed on as it came."""
MAX_STATE_BYTES = 512
"""What every receiver has to be able to pass on (section 3.3.1.5)."""

_HEADER = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_STATE = re.compile(rb"[\t\x20-\x7e]{,%d}" % MAX_STATE_BYTES)
_VERSION_0 = b"00"
_NO_VERSION = b"ff"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Whose child a request is. `trace_id` (16 bytes) and `parent_id` (8 bytes) as numbers, neither 0."""

    trace_id: int
    parent_id: int
    flags: int
    state: bytes = b""
    """`tracestate`, empty where it is too long to be kept, or is no text that a span can hold."""

    @property
    def sampled(self) -> bool:
        """The caller may have recorded it."""
        return bool(self.flags & SAMPLED)


def read_context(parents: Sequence[bytes], states: Sequence[bytes]) -> TraceContext | None:
    """The context in the values of a request's `traceparent` and `tracestate` lines; None where there is none, several,
    or one that is malformed: the request then begins a trace, and its `tracestate` means nothing.

    A version that is not known yet is read as far as version 00 goes (section 4.1).
    """
    if len(parents) != 1:
        return None
    found = _HEADER.fullmatch(parents[0].strip(b" \t"))
    if found is None:
        return None
    version, trace_id, parent_id, flags, rest = found.groups()
    if version == _NO_VERSION or (version == _VERSION_0 and rest is not None):
        return None
    trace, parent = int(trace_id, 16), int(parent_id, 16)
    if not trace or not parent:
        return None
    state = b",".join(states)
    # One byte that is not UTF-8, and a collector refuses the whole batch that the span is in.
    return TraceContext(trace, parent, int(flags, 16), state if _STATE.fullmatch(state) else b"")


def header(trace_id: int, span_id: int, flags: int) -> bytes:
    """The value of `traceparent` that names a span."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, flags)
