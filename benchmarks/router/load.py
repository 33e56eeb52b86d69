"""Closed-loop load: python load.py PORT CONCURRENCY SECONDS MODE BODY_KIB PROMPTS TOKENS; prints one JSON line.

MODE is `json`, `stream`, `json-ids` (JSON whose every request has an `x-request-id` of its own) or `paced` (streams, a
token each 9 to 11 ms, begun one after another)."""

import asyncio
import json
import random
import sys
import time

import httptools
import uvloop

PORT, CONCURRENCY, SECONDS, MODE = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
KIB, PROMPTS, TOKENS = map(int, sys.argv[5:8])
NO_ID = b"0" * 32
STAGGER_S = 0.0213
"""Between the first streams of `paced`: no multiple of a pace, so that few first tokens come together."""


def request(seed: int) -> bytes:
    rng, words, size = random.Random(seed), [], 0
    while size < KIB * 1024 - 220:
        words.append(f"w{rng.randint(1, 50000)}")
        size += len(words[-1]) + 1
    messages = [
        {"role": "system", "content": f"You are helper {seed}."},
        {"role": "user", "content": " ".join(words)},
    ]
    document = {"model": "mock", "messages": messages, "max_tokens": TOKENS, "stream": MODE in ("stream", "paced")}
    document |= {"user": "paced"} if MODE == "paced" else {}
    body = json.dumps(document, separators=(",", ":")).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer bench-key\r\n%bcontent-length: %d\r\n\r\n%b"
        % (b"x-request-id: %b\r\n" % NO_ID if MODE == "json-ids" else b"", len(body), body)
    )


class Client(asyncio.Protocol):
    def __init__(self, state: "State") -> None:
        self.state = state
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.go()

    def go(self) -> None:
        self.sent, self.answered = time.perf_counter(), False
        self.transport.write(self.state.next())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if not self.answered:
            self.answered = True
            self.state.ttft.append(time.perf_counter() - self.sent)

    def on_message_complete(self) -> None:
        state = self.state
        state.bad += self.parser.get_status_code() != 200
        state.latencies.append(time.perf_counter() - self.sent)
        if time.perf_counter() < state.end:
            self.parser = httptools.HttpResponseParser(self)
            asyncio.get_running_loop().call_soon(self.go)
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.state.open -= 1
        if not self.state.open:
            self.state.done.set()


class State:
    def __init__(self) -> None:
        self.requests = [request(seed) for seed in range(PROMPTS)]
        self.count = self.bad = 0
        self.latencies: list[float] = []
        self.ttft: list[float] = []
        self.open = CONCURRENCY
        self.done = asyncio.Event()
        self.end = time.perf_counter() + SECONDS

    def next(self) -> bytes:
        self.count += 1
        chosen = self.requests[self.count % PROMPTS]
        return chosen.replace(NO_ID, b"%032x" % self.count, 1) if MODE == "json-ids" else chosen


async def main() -> None:
    state = State()
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    for _ in range(CONCURRENCY):
        await loop.create_connection(lambda: Client(state), "127.0.0.1", PORT)
        await asyncio.sleep(STAGGER_S if MODE == "paced" else 0)
    await state.done.wait()
    seconds = time.perf_counter() - started
    ordered = sorted(state.latencies)
    row = {"requests": len(ordered), "bad": state.bad, "rps": round(len(ordered) / seconds, 1)}
    for name, values in (("p", ordered), ("ttft_p", sorted(state.ttft))):
        row |= {f"{name}{p}_ms": round(1e3 * values[min(len(values) - 1, len(values) * p // 100)], 3) for p in (50, 99)}
    print(json.dumps(row))


uvloop.run(main())
