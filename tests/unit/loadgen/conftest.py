import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from tonnage_core.engine_text import encode
from tonnage_core.traces import TraceRequest

MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 100_000}]}


def token(text: str = " tobak", finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return b"data: " + orjson.dumps({"id": "c", "choices": [choice], "usage": None}) + b"\n\n"


def usage(prompt: int, output: int, cached: int | None = None) -> bytes:
    found: dict[str, object] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        found["prompt_tokens_details"] = {"cached_tokens": cached}
    return b"data: " + orjson.dumps({"id": "c", "choices": [], "usage": found}) + b"\n\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def whole_stream(tokens: int = 3, prompt: int = 10) -> bytes:
    return token() * (tokens - 1) + token(finish="length") + usage(prompt, tokens) + DONE


def fixed(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body


def chunked(*pieces: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return STREAM_HEAD + framed + b"0\r\n\r\n"


@dataclass
class Call:
    """One completion request as the server saw it."""

    number: int
    connection: int
    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def json(self) -> dict[str, object]:
        document: dict[str, object] = orjson.loads(self.body)
        return document


def request(index: int = 0, *, at: float = 0.0, prompt: int = 600, output: int = 3, first_id: int = 1) -> TraceRequest:
    return TraceRequest(index, at, prompt, output, tuple(range(first_id, first_id + -(-prompt // 512))))


Answer = Callable[[Call], Awaitable[bytes | None]]
"""What to write; None ends the connection."""


@dataclass
class Server:
    """A scripted server: /v1/models is answered, /tokenize by `tokenize`, everything else by `answer`."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    stop: Callable[[], None] = lambda: None
    called: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def scripted(answer: Answer, *, tokenizer: bool = True, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    server = Server()
    serving: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            serving.add(task)
        server.connections += 1
        mine = server.connections
        try:
            while await _one_request(server, mine, reader, writer, answer, tokenizer=tokenizer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(one, host, 0)
    port = listening.sockets[0].getsockname()[1]
    server.stop = listening.close
    server.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        yield server
    finally:
        listening.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)


async def _one_request(
    server: Server,
    connection: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Answer,
    *,
    tokenizer: bool,
) -> bool:
    head = await reader.readuntil(b"\r\n\r\n")
    path = head.split(b" ", 2)[1]
    length = next((int(x[15:]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length:")), 0)
    body = await reader.readexactly(length)
    reply: bytes | None
    if path.endswith(b"/v1/models"):
        reply = fixed(orjson.dumps(MODELS))
    elif path.endswith(b"/tokenize"):
        tokens = encode(orjson.loads(body)["prompt"])
        found = orjson.dumps({"tokens": tokens, "count": len(tokens)})
        reply = fixed(found) if tokenizer else fixed(b"", "404 Not Found")
    elif path.endswith((b"/completions", b"/embeddings")):
        call = Call(len(server.calls), connection, head, body, reader, writer)
        server.calls.append(call)
        server.called.set()
        reply = await answer(call)
    else:
        reply = fixed(b"{}", "404 Not Found")
    if reply is None:
        return False
    writer.write(reply)
    await writer.drain()
    return True
