"""Header lines that end at this hop, and heads built for the next one."""

from typing import Final

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 section 7.6.1, and the older ones listed in RFC 2616 section 13.5.1."""

EVENT_CHUNK_END: Final = b"\n\n\r\n"
"""How a chunk of an event stream ends that holds whole events."""
Header = tuple[bytes, bytes]
NONE: Final[frozenset[bytes]] = frozenset()


def nominated(connection: bytes) -> frozenset[bytes]:
    """Header names a Connection field makes hop-by-hop, lower case; never the one that frames the body."""
    if connection == b"keep-alive":
        return NONE
    names = {part.strip().lower() for part in connection.split(b",")}
    return frozenset(names - {b"", b"close", b"keep-alive", b"content-length"})


def lines(headers: list[Header], connection: bytes | None, without: frozenset[bytes] = NONE) -> bytes:
    """Header lines without those `connection` nominates and those named (in lower case) in `without`."""
    if connection is not None:
        without |= nominated(connection)
    parts: list[bytes] = []
    for name, value in headers:
        if not without or name.lower() not in without:
            parts.append(name)
            parts.append(b": ")
            parts.append(value)
            parts.append(b"\r\n")
    return b"".join(parts)
