"""Event streams from which the usage event that the router itself asked for is taken out."""

import re

import orjson

_END = re.compile(rb"\r?\n\r?\n")
_MAX_HELD = 1 << 20


class UsageStripper:
    """Passes whole events at once; an event cut between pieces waits for its end. Only the final event of vLLM's
    `include_usage` (no choices, a usage object) is dropped; empty lines before an event are no part of it."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = b""

    def feed(self, piece: bytes) -> bytes:
        """What may go to the client now."""
        if self.held:
            piece = self.held + piece
            self.held = b""
        if b'"usage"' not in piece and piece.endswith(b"\n\n"):
            return piece
        out: list[bytes] = []
        at = 0
        for match in _END.finditer(piece):
            event = piece[at : match.end()]
            at = match.end()
            content = event.lstrip(b"\r\n")
            out.append(event[: -len(content)] if content and _is_usage(content) else event)
        self.held = piece[at:]
        if len(self.held) > _MAX_HELD:
            out.append(self.held)
            self.held = b""
        return b"".join(out)

    def end(self) -> bytes:
        """What is left at the end of the stream."""
        held, self.held = self.held, b""
        return held


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        document = orjson.loads(event[5:])
    except orjson.JSONDecodeError:
        return False
    return type(document) is dict and document.get("choices") == [] and type(document.get("usage")) is dict
