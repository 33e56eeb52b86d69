"""Requests in an open loop, counted by how they end; each on a connection of its own."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

PATIENCE_S = 60.0


@dataclass
class Tally:
    """Ends by name, and times of answers as (when it began, seconds) for a sample of them."""

    ends: Counter[str] = field(default_factory=Counter)
    times: list[tuple[float, float]] = field(default_factory=list)
    without_hint: int = 0
    """429 answers without Retry-After."""

    def p99_ms(self, since: float = 0.0, until: float = float("inf")) -> float | None:
        """Of answers that began in the span."""
        values = sorted(took for began, took in self.times if since <= began < until)
        return round(values[min(len(values) - 1, int(0.99 * len(values)))] * 1e3, 1) if values else None


@dataclass(frozen=True)
class Ask:
    """One request. `leave` clients go away in the middle; what is malformed is expected to be refused."""

    body: bytes
    key: str | None = None
    path: str = "/v1/completions"
    leave: bool = False
    refused: bool = False


async def open_loop(port: int, rate_rps: float, seconds: float, make: Callable[[int], Ask], tally: Tally) -> None:
    """Send `rate_rps` requests a second for `seconds`, and wait for all ends."""
    begun, number, tasks = time.monotonic(), 0, set()
    while (due := number / rate_rps) < seconds:
        await asyncio.sleep(max(0.0, begun + due - time.monotonic()))
        task = asyncio.create_task(one(port, make(number), tally))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
    await asyncio.gather(*tasks)


async def one(port: int, ask: Ask, tally: Tally) -> None:
    """Send one request and count its end."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_S):
            end = await _one(port, ask, tally)
    except TimeoutError:
        end = "silent"
    except (OSError, asyncio.IncompleteReadError) as error:
        end = f"lost: {type(error).__name__}"
    tally.ends[end] += 1
    if end == "ok" and len(tally.times) < 200_000:
        tally.times.append((began, time.monotonic() - began))


async def _one(port: int, ask: Ask, tally: Tally) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = f"authorization: Bearer {ask.key}\r\n" if ask.key else ""
    head = (
        f"POST {ask.path} HTTP/1.1\r\nhost: r\r\n{key}content-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(ask.body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + ask.body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(b" ")[1])
        if ask.leave:
            return "left"
        body = await reader.read(-1)
    finally:
        writer.transport.abort()
    if status == 200:
        return "ok" if body.rstrip().endswith((b"}", b"[DONE]\n\n\r\n0", b"0")) else "cut"
    if status == 429 and b"retry-after" not in answer.lower():
        tally.without_hint += 1
    return "refused as it should be" if ask.refused and 400 <= status < 500 else f"status {status}"


def mixed(model: str, seed: int, odd_share: float) -> Callable[[int], Ask]:
    """Ordinary requests, streamed and whole, with a share of odd ones: unknown models and paths, broken bodies, clients
    that leave. Names are new every time, as whoever wants to grow a table would send them."""
    rng = Random(seed)

    def make(number: int) -> Ask:
        prompt = f"{rng.randrange(50)} " * rng.randrange(20, 200)
        document: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": rng.randrange(1, 16)}
        document["stream"] = number % 2 == 0
        if rng.random() >= odd_share:
            return Ask(json.dumps(document).encode())
        odd = rng.randrange(5)
        if odd == 0:
            return Ask(json.dumps(document | {"model": f"m-{number}"}).encode(), refused=True)
        if odd == 1:
            return Ask(json.dumps(document).encode(), path=f"/v1/x-{number}", refused=True)
        if odd == 2:
            return Ask(json.dumps(document).encode()[:-3], refused=True)
        if odd == 3:
            return Ask(json.dumps(document | {"user": f"u-{number}", "cache_salt": f"s-{number}"}).encode())
        return Ask(json.dumps(document | {"stream": True, "max_tokens": 400}).encode(), leave=True)

    return make
