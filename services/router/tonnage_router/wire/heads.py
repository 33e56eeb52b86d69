"""Heads that a connection's peer sends again, equal in all but the digits of their Content-Length.

Most programs do, request after request. What the parser made of such a head once holds for every later one, so these
pass the parser by; any other head goes through it.
"""

from typing import Final

END: Final = b"\r\n\r\n"
LARGEST: Final = 4096
"""Bytes of the longest head that is remembered: one is held a connection."""
MOST_DIGITS: Final = 15
FIELD: Final = b"\r\ncontent-length: "


class RepeatedHead:
    """The last head of a connection whose body had a Content-Length. `digits`, `length` and `body_at`
    are of the last match."""

    __slots__ = ("_after", "_before", "body_at", "digits", "length")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self.digits = b""
        self.length = 0
        self.body_at = 0

    def learn(self, data: bytes, body_bytes: int) -> bool:
        """Remember the head that `data` begins with, if `body_bytes`, those of the body that a parser found in `data`,
        say that the head ends where it seems to. False: nothing is remembered."""
        self.forget()
        end = data.find(END) + len(END)
        if end < len(END) or end > LARGEST or len(data) - end != body_bytes:
            return False
        at = data[:end].lower().find(FIELD) + len(FIELD)
        if at < len(FIELD):
            return False
        digits_end = data.find(b"\r", at)
        if not data[at:digits_end].isdigit() or digits_end - at > MOST_DIGITS:
            return False
        self._before, self._after = data[:at], data[digits_end:end]
        return True

    def forget(self) -> None:
        """Remember nothing: what comes next is the parser's."""
        self._before = self._after = b""

    def matches(self, data: bytes) -> bool:
        """Whether `data` begins with the remembered head, its Content-Length apart."""
        before = self._before
        if not before or not data.startswith(before):
            return False
        first = at = len(before)
        last, length, after = min(len(data), first + MOST_DIGITS), 0, self._after
        while (
            at < last and 48 <= data[at] <= 57
        ):  # digit by digit: compiled, three method calls take five times as long
            length = 10 * length + data[at] - 48
            at += 1
        body_at = at + len(after)
        if at == first or data[at:body_at] != after:
            return False
        self.digits = data[first:at]
        self.length, self.body_at = length, body_at
        return True
