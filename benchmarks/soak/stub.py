"""Engines on every loopback address at once: python stub.py PORT SLOTS SERVICE_S MODEL ADAPTERS.

One listener answers for all addresses 127.0.0.0/8, so that a thousand endpoints cost one process. Each address serves
SLOTS requests at a time for SERVICE_S each, in the order of arrival, and lists ADAPTERS adapters of its own.
"""

import asyncio
import sys
from collections import defaultdict, deque
from collections.abc import Callable

import orjson
import uvloop

PORT, SLOTS, SERVICE_S, MODEL, ADAPTERS = (
    int(sys.argv[1]),
    int(sys.argv[2]),
    float(sys.argv[3]),
    sys.argv[4],
    int(sys.argv[5]),
)
ANSWER = orjson.dumps(
    {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}],
     "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}
)  # fmt: skip
running: dict[str, int] = defaultdict(int)
waiting: dict[str, deque[Callable[[], None]]] = defaultdict(deque)


def models(address: str) -> bytes:
    """The base model, and adapters whose names no other address has."""
    _, high, middle, low = (int(part) for part in address.split("."))
    first = ((high << 16) + (middle << 8) + low) * ADAPTERS
    rows = [{"id": MODEL, "object": "model", "max_model_len": 32768, "parent": None}]
    rows += [{"id": f"lora-{first + n}", "object": "model", "parent": MODEL} for n in range(ADAPTERS)]
    return orjson.dumps({"object": "list", "data": rows})


class Stub(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.buffer = transport, b""
        self.address = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            self.buffer = self.buffer[end + 4 + length :]
            self.answer(head.split(b" ")[:2])

    def answer(self, line: list[bytes]) -> None:
        if line[0] == b"post":
            waiting[self.address].append(self.serve)
            begin(self.address)
        elif line[1] == b"/v1/models":
            self.send(models(self.address))
        else:
            self.send(b"")

    def serve(self) -> None:
        """Take a slot; the answer comes when the time is over."""
        running[self.address] += 1
        asyncio.get_running_loop().call_later(SERVICE_S, self.served)

    def served(self) -> None:
        running[self.address] -= 1
        self.send(ANSWER)
        begin(self.address)

    def send(self, body: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(  # type: ignore[attr-defined]
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )


def begin(address: str) -> None:
    """Start what a free slot allows."""
    while waiting[address] and running[address] < SLOTS:
        waiting[address].popleft()()


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "0.0.0.0", PORT, backlog=4096)
    await server.serve_forever()


uvloop.run(main())
