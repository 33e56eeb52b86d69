"""Engines that answer at once with fixed bodies under uvicorn's heads: python engine_stub.py TOKENS PORT..."""

import asyncio
import itertools
import re
import sys
import time
from email.utils import formatdate

import uvloop

TOKENS = int(sys.argv[1])
PACES_S = itertools.cycle(0.01 + 0.002 * (7 * i % 32 - 15.5) / 32 for i in range(32))
"""Between the tokens of each stream of the user `paced` in turn, 9 to 11 ms: with one pace for all, those that once met
on the event loop would go on together, and 32 tokens come as one."""
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","model":"mock","choices":[{"index":0,'
EVENT += b'"delta":{"content":" token"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
STREAM_HEAD = b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = b'"usage":{"prompt_tokens":900,"completion_tokens":64,"total_tokens":964}'
CHAT = b'{"id":"c","object":"chat.completion","model":"mock","choices":[{"index":0,'
CHAT += b'"message":{"role":"assistant","content":"'
CHAT += b"token " * 32 + b'"},"finish_reason":"stop"}],' + USAGE + b"}"
MODELS = b'{"object":"list","data":[{"id":"mock","object":"model","max_model_len":32768}]}'


def fixed(body: bytes) -> bytes:
    return b"content-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (len(body), body)


class Clock:
    """An answer's first lines, made anew each second, as uvicorn does."""

    second = 0
    lines = b""

    def begin(self) -> bytes:
        now = int(time.time())
        if now != self.second:
            self.second = now
            self.lines = b"HTTP/1.1 200 OK\r\ndate: %b\r\nserver: uvicorn\r\n" % formatdate(now, usegmt=True).encode()
        return self.lines


CLOCK = Clock()


class Stub(asyncio.Protocol):
    def __init__(self) -> None:
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        write = self.transport.write  # type: ignore[attr-defined]
        if b'"stream":true' in body:
            write(CLOCK.begin() + STREAM_HEAD)
            if b'"user":"paced"' in body:
                asked = re.search(rb'"max_tokens":(\d+)', body)
                tokens = int(asked[1]) if asked else TOKENS
                return self.paced(asyncio.get_running_loop().time(), next(PACES_S), tokens)
            for _ in range(TOKENS):
                write(CHUNK)
            write(DONE)
        elif head.startswith(b"post") and b"/render" not in head.split(b"\r\n", 1)[0]:
            write(CLOCK.begin() + fixed(CHAT))
        else:
            write(CLOCK.begin() + fixed(MODELS))

    def paced(self, due: float, pace_s: float, left: int) -> None:
        """Write the token that is due, and the next one when that is: a late one delays no other."""
        if self.transport.is_closing():
            return
        self.transport.write(CHUNK if left else DONE)  # type: ignore[attr-defined]
        if left:
            due += pace_s
            asyncio.get_running_loop().call_at(due, self.paced, due, pace_s, left - 1)


async def main() -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Stub, "127.0.0.1", int(port), backlog=1024) for port in sys.argv[2:]]
    await asyncio.gather(*(server.serve_forever() for server in servers))


uvloop.run(main())
