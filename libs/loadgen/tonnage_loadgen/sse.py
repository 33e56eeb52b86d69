"""Server-sent events of a completion stream, read at the lowest cost a token: bytes are searched, not parsed.

The usual events, one line `data: {... "choices":[{ ...}`, usage alike and `[DONE]`, are recognised by byte searches.
JSON has no raw newline, and a quote inside a string is escaped, so no search can be fooled by generated text. What is
not usual (other spacing, errors, comments, CRLF line ends, several data lines) takes the careful way.
"""

from array import array
from typing import Any

import orjson

_USUAL_START = b"data: {"
_USUAL_CHOICE = b'"choices":[{'
_USUAL_USAGE = b'"choices":[],"usage":{'
_USUAL_DONE = b"data: [DONE]"
EVENT_LIMIT = 1 << 20
"""Bytes of one event; a longer one is an error, or a line without end would take all memory and time."""


class CompletionStream:
    """Feeds on body bytes however they are cut; keeps one time a token event.

    `times` are the instants of events with a choice. After the stream, `usage`, `last_event`, `error` and `done` say
    how it ended.
    """

    __slots__ = ("_tail", "done", "error", "last_event", "overrun", "times", "usage_event")

    def __init__(self) -> None:
        self.times = array("d")
        self.usage_event: bytes | None = None
        self.last_event = b""
        self.error: bytes | None = None
        self.done = False
        self.overrun = False
        """It is longer than any answer: the connection can be dropped."""
        self._tail = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take body bytes that arrived at `now` (seconds)."""
        if self._tail:
            data = self._tail + data
        held = b""
        if b"\r" in data:
            data, held = _unix_lines(data)
        events = data.split(b"\n\n")
        self._tail = events.pop() + held
        if len(self._tail) > EVENT_LIMIT:
            self._tail = b""
            self._too_long(b"an event", EVENT_LIMIT)
        for event in events:
            if _USUAL_CHOICE in event and event.startswith(_USUAL_START):
                self.times.append(now)
                self.last_event = event
            elif event == _USUAL_DONE:
                self.done = True
            elif _USUAL_USAGE in event and event.startswith(_USUAL_START):
                self.usage_event = event
            else:
                self._careful(event, now)

    def end(self, now: float) -> None:
        """The body is over: an event without its blank line still counts."""
        rest, self._tail = self._tail.strip(b"\r\n"), b""
        if rest:
            self._careful(rest, now)

    def drop_empty_end(self) -> None:
        """Forget the time of a last event that only says why the stream ended: no text, no token."""
        if len(self.times) > 1 and self._ends_empty():
            self.times.pop()

    def says_nothing(self) -> bool:
        """Its one event says why the stream ended, and no more."""
        return len(self.times) == 1 and self._ends_empty()

    def usage(self) -> dict[str, Any] | None:
        """The `usage` object, from its own chunk or from the last one."""
        for event in (self.usage_event, self.last_event):
            if event:
                usage = _document(_payload(event)).get("usage")
                if isinstance(usage, dict):
                    return usage
        return None

    def finish_reason(self) -> str | None:
        """Why the last choice ended, as the server words it."""
        reason = (_first_choice(_document(_payload(self.last_event))) or {}).get("finish_reason")
        return reason if isinstance(reason, str) else None

    def _too_long(self, what: bytes, limit: int) -> None:
        self.error = b'{"error":"%b is longer than %d bytes"}' % (what, limit)
        self.overrun = True

    def _ends_empty(self) -> bool:
        choice = _first_choice(_document(_payload(self.last_event)))
        if choice is None or choice.get("finish_reason") is None:
            return False
        return choice.get("text", None) == "" or _empty(choice.get("delta"))

    def _careful(self, event: bytes, now: float) -> None:
        payload = _payload(event)
        if not payload:
            return
        if payload == b"[DONE]":
            self.done = True
            return
        document = _document(payload)
        if _first_choice(document) is not None:
            self.times.append(now)
            self.last_event = event
        elif document.get("error") is not None or document.get("object") == "error" or not document:
            self.error = payload
        if isinstance(document.get("usage"), dict):
            self.usage_event = event


def _empty(delta: Any) -> bool:
    """A chat delta without a token: only a role, or nothing."""
    return isinstance(delta, dict) and not any(value for key, value in delta.items() if key != "role")


def _unix_lines(data: bytes) -> tuple[bytes, bytes]:
    """CRLF and lone CR as LF; a CR at the end is held back, for its LF may come next."""
    held = b"\r" if data.endswith(b"\r") else b""
    whole = data[: len(data) - len(held)]
    return whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), held


def _payload(event: bytes) -> bytes:
    lines = event.split(b"\n")
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")).strip()


def _document(payload: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _first_choice(document: dict[str, Any]) -> dict[str, Any] | None:
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None
