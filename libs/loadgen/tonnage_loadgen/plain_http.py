"""Plain requests outside the load: models, tokenizer, metrics. One connection each, whole answer in memory."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.target import Target, address_of

ANSWER_LIMIT = 64 << 20


@dataclass(slots=True)
class Answer:
    """Status and body."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False

    def document(self) -> Any:
        """The body as JSON; None when it is none."""
        try:
            return orjson.loads(bytes(self.body))
        except orjson.JSONDecodeError:
            return None


class _Reader:
    def __init__(self) -> None:
        self.answer = Answer()
        self.parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        self.answer.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.answer.body += body

    def on_message_complete(self) -> None:
        self.answer.complete = self.answer.status >= 200


async def ask(
    target: Target,
    path: str,
    document: Any = None,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    timeout_s: float = 10.0,
    method: str | None = None,
) -> Answer:
    """GET `path`, or POST `document` as JSON; `method` names another.

    Raises `TargetError` when there is no HTTP answer in `timeout_s`.
    """
    body = b"" if document is None else orjson.dumps(document)
    lines = [
        f"{method or ('GET' if document is None else 'POST')} {target.prefix}{path} HTTP/1.1",
        f"host: {target.authority}",
        "connection: close",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if document is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    request = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(target, request)
    except TimeoutError as error:
        raise TargetError(f"{target.url}{path}: no answer in {timeout_s:g} s; is the server up?") from error
    except (OSError, httptools.HttpParserError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise TargetError(f"{target.url}{path}: {reason}; is the server up?") from error


async def _exchange(target: Target, request: bytes) -> Answer:
    trusted = target.ssl_context()
    name = target.host if trusted is not None else None
    reader, writer = await asyncio.open_connection(
        await address_of(target), target.port, ssl=trusted, server_hostname=name
    )
    collected = _Reader()
    try:
        writer.write(request)
        while not collected.answer.complete:
            data = await reader.read(1 << 16)
            if not data:
                break
            collected.parser.feed_data(data)
            if len(collected.answer.body) > ANSWER_LIMIT:
                raise TargetError(f"{target.url}: an answer of more than {ANSWER_LIMIT} bytes")
    finally:
        writer.close()
    if collected.answer.status == 0:
        raise TargetError(f"{target.url}: the connection ended without an answer")
    return collected.answer
