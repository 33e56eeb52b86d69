"""One request as read from a client connection."""

from typing import TYPE_CHECKING, Final

from tonnage_router.wire.headers import Header, lines

if TYPE_CHECKING:
    from tonnage_core.flow_control.tenants import TenantAccount

JOINED: Final = 1024


class Incoming:
    """A request head and, once complete, its body. `error` is the status the router answers instead of routing."""

    __slots__ = (
        "_loose",
        "_rendered",
        "account",
        "authorization",
        "body",
        "body_size",
        "connection",
        "deadline_ms",
        "encoding",
        "error",
        "expects",
        "explain",
        "head_size",
        "headers",
        "hosts",
        "keep_alive",
        "length",
        "method",
        "parts",
        "path",
        "request_id",
        "session",
        "target",
        "transfer",
        "version_11",
    )

    def __init__(self, target: bytes) -> None:
        self.target = target
        self.path = target
        self.method = b""
        self.version_11 = True
        self.keep_alive = True
        self.headers: list[Header] = []
        self.head_size = len(target)
        self.hosts = 0
        self.connection: bytes | None = None
        self.transfer: bytes | None = None
        self.length: int | None = None
        self.encoding: bytes | None = None
        self.expects = False
        self.explain = False
        self.authorization: bytes | None = None
        self.account: TenantAccount | None = None
        self.deadline_ms: bytes | None = None
        self.session: bytes | None = None
        self.request_id: bytes | None = None
        self.parts: list[bytes] = []
        self.body_size = 0
        self.body = b""
        self.error: tuple[int, str] | None = None
        self._rendered: dict[frozenset[bytes], bytes] | None = None
        self._loose = 0

    def repeated(self, length: int) -> "Incoming":
        """A request with the same head but for the Content-Length, its body still to come."""
        again = Incoming(self.target)
        again.path = self.path
        again.method = self.method
        again.headers = self.headers
        again.head_size = self.head_size
        again.hosts = self.hosts
        again.connection = self.connection
        again.length = length
        again.encoding = self.encoding
        again.explain = self.explain
        again.authorization = self.authorization
        again.deadline_ms = self.deadline_ms
        again.session = self.session
        again.request_id = self.request_id
        if self._rendered is None:
            self._rendered = {}
        again._rendered = self._rendered
        return again

    @property
    def repeatable(self) -> bool:
        """Whether another request of the connection may have this head: it passed, told the body's length, and ends
        nothing."""
        told = self.length is not None and self.transfer is None
        return told and self.keep_alive and self.version_11 and not self.expects and self.error is None

    def lines(self, without: frozenset[bytes]) -> bytes:
        """End-to-end header lines, without those named (in lower case) in `without`."""
        if self._rendered is None:
            return lines(self.headers, self.connection, without)
        found = self._rendered.get(without)
        if found is None:
            found = self._rendered[without] = lines(self.headers, self.connection, without)
        return found

    def take_header(self, name: bytes, value: bytes) -> None:
        """Keep a header for upstream, or note it where it ends at this hop or routing reads it."""
        self.head_size += len(name) + len(value)
        lower = name.lower()
        note = _NOTES.get(lower)
        if note is None:
            self.headers.append((name, value))
        elif note == _READ:
            self.headers.append((name, value))
            self._read(lower, value)
        elif note == _FRAMING:
            self._frame(lower, value)

    def _read(self, lower: bytes, value: bytes) -> None:
        if lower == b"authorization":
            self.authorization = value
        elif lower == b"x-api-key":
            self.authorization = self.authorization or b"Bearer " + value
        elif lower == b"x-session-id":
            self.session = value
        elif lower == b"x-request-id":
            self.request_id = value
        elif lower == b"content-encoding":
            self.encoding = value.strip().lower()
        elif lower == b"x-tonnage-deadline-ms":
            self.deadline_ms = value.strip()
        else:
            self.explain = value.strip() == b"1"

    def _frame(self, lower: bytes, value: bytes) -> None:
        if lower == b"content-length":
            self.length = int(value)
        elif lower == b"host":
            self.hosts += 1
        elif lower == b"connection":
            self.connection = value if self.connection is None else self.connection + b"," + value
        elif lower == b"transfer-encoding":
            self.transfer = value if self.transfer is None else self.transfer + b"," + value
        elif lower == b"expect":
            self.expects = value.strip().lower() == b"100-continue"

    def may_wait_s(self, longest_s: float) -> float:
        """How long the request may queue: what the client says, within the router's own limit."""
        asked = self.deadline_ms
        # Thousands of digits would be refused by `int` with an exception.
        stated = asked is not None and asked.isdigit() and len(asked) < 16
        return min(longest_s, int(asked) / 1e3) if asked is not None and stated else longest_s

    def take_body(self, piece: bytes) -> None:
        """Append body bytes. Pieces are joined by the thousand: an object costs forty bytes beside what it holds."""
        self.parts.append(piece)
        self.body_size += len(piece)
        self._loose += 1
        if self._loose == JOINED:
            self._loose = 0
            self.parts[-JOINED:] = [b"".join(self.parts[-JOINED:])]

    def finish(self) -> None:
        """The body is whole."""
        self.body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts.clear()


_READ: Final = 1
_FRAMING: Final = 2
_DROP: Final = 3
_NOTES: Final = {
    b"authorization": _READ,
    b"x-api-key": _READ,
    b"x-session-id": _READ,
    b"x-request-id": _READ,
    b"x-tonnage-explain": _READ,
    b"x-tonnage-deadline-ms": _READ,
    b"content-encoding": _READ,
    b"content-length": _FRAMING,
    b"host": _FRAMING,
    b"connection": _FRAMING,
    b"transfer-encoding": _FRAMING,
    b"expect": _FRAMING,
    b"keep-alive": _DROP,
    b"proxy-connection": _DROP,
    b"proxy-authenticate": _DROP,
    b"proxy-authorization": _DROP,
    b"te": _DROP,
    b"trailer": _DROP,
    b"upgrade": _DROP,
}
