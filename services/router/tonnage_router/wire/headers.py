"""Header lines that end at this hop, and heads built for the next one."""

HOP_BY_HOP = frozenset(
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

Header = tuple[bytes, bytes]


def nominated(connection: bytes) -> frozenset[bytes]:
    """Header names a Connection field makes hop-by-hop, lower case; `close` and `keep-alive` among them."""
    return frozenset(part.strip().lower() for part in connection.split(b",") if part.strip())


def lines(headers: list[Header], connection: bytes | None, without: frozenset[bytes] = frozenset()) -> bytes:
    """Header lines without those `connection` nominates and those named (in lower case) in `without`."""
    if without:
        headers = [header for header in headers if header[0].lower() not in without]
    if connection is not None:
        names = nominated(connection) - {b"close", b"keep-alive"}
        if names:
            headers = [header for header in headers if header[0].lower() not in names]
    return b"".join([b"%b: %b\r\n" % header for header in headers])
