"""How the answers of each API are read: completion streams, chat streams (whose first event has a role and no token),
and whole JSON answers (embeddings), which count as one event at their end."""

import orjson

from tonnage_loadgen.open_loop import MakeStream
from tonnage_loadgen.sse import EVENT_LIMIT, CompletionStream

BODY_LIMIT = 16 << 20
"""Bytes of a whole answer: some hundred embeddings of the longest kind."""
_ROLE_ONLY = (b'"content":""', b'"content":null', b'"delta":{"role":"assistant"}')


class ChatStream(CompletionStream):
    """A chat stream: a first event that only names the role is no token."""

    __slots__ = ("_first", "_started")

    def __init__(self) -> None:
        super().__init__()
        self._first = b""
        self._started = False

    def feed(self, data: bytes, now: float) -> None:
        """Take body bytes that arrived at `now` (seconds)."""
        super().feed(data, now)
        if self._started:
            return
        self._first = (self._first + data)[-EVENT_LIMIT:]
        if self.times:
            self._started = True
            first = _first_choice_event(self._first)
            if b'"role":"assistant"' in first and any(mark in first for mark in _ROLE_ONLY):
                del self.times[0]
            self._first = b""


def _first_choice_event(data: bytes) -> bytes:
    """The first event with a choice, without spaces after colons; comments and other events may stand before it."""
    events = data.replace(b"\r\n", b"\n").replace(b": ", b":").split(b"\n\n")
    return next((event for event in events if b'"delta"' in event), b"")


class WholeAnswer(CompletionStream):
    """A JSON answer without a stream: one event, when its last byte is there."""

    __slots__ = ("_body", "_last")

    def __init__(self) -> None:
        super().__init__()
        self._body = bytearray()
        self._last = 0.0

    def feed(self, data: bytes, now: float) -> None:
        """Take body bytes that arrived at `now` (seconds)."""
        self._last = now
        if len(self._body) + len(data) > BODY_LIMIT:
            self._body.clear()
            self._too_long(b"the answer", BODY_LIMIT)
        elif not self.overrun:
            self._body += data

    def end(self, now: float) -> None:
        """The body is over: right when it is a JSON object without an error."""
        try:
            document = orjson.loads(bytes(self._body))
        except orjson.JSONDecodeError:
            return
        if not isinstance(document, dict):
            return
        if document.get("error") is not None:
            self.error = bytes(self._body)
            return
        self.times.append(self._last or now)
        self.done = True
        if isinstance(document.get("usage"), dict):
            self.usage_event = b"data: " + orjson.dumps({"usage": document["usage"]})

    def drop_empty_end(self) -> None:
        """Its one event is the answer."""

    def says_nothing(self) -> bool:
        """It is there, so it says something."""
        return False


APIS: dict[str, tuple[str, MakeStream]] = {
    "completions": ("/v1/completions", CompletionStream),
    "chat": ("/v1/chat/completions", ChatStream),
    "embeddings": ("/v1/embeddings", WholeAnswer),
}
"""API -> path and reader."""
