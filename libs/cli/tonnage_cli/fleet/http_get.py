"""One small HTTP GET on loopback, for readiness and discovery; answers are bounded."""

import asyncio
import contextlib
from urllib.parse import urlsplit

MAX_ANSWER_BYTES = 4 << 20


async def http_get(url: str, *, timeout_s: float = 2.0) -> tuple[int, bytes]:
    """Status and body of `url`. Raises OSError when nothing answers, TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        return await _get(url)


async def _get(url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    reader, writer = await asyncio.open_connection(host, port)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read(-1))[:MAX_ANSWER_BYTES].partition(b"\r\n\r\n")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[1].isdigit():
        raise ConnectionError(f"{url}: not an HTTP answer")
    return int(words[1]), body


async def answers_ok(url: str) -> bool:
    """Whether `url` answers 200 now."""
    try:
        status, _ = await http_get(url)
    except (OSError, TimeoutError):
        return False
    return status == 200
