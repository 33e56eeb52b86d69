"""An open-loop client that shares nothing with the bench: its own arrivals, HTTP, clock and percentile.

It is the second opinion of `real_engine.py` and knows one kind of request: a streamed completion of token ids.
"""

import asyncio
import json
import math
import random
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

LOWEST_ID, HIGHEST_ID = 32, 255
"""Ids that the tiny model's tokenizer has."""


@dataclass(frozen=True)
class Seen:
    """One answer: seconds from the planned instant to the first token, and between the others."""

    ttft_s: float
    tpot_s: float


async def _ask(url: str, body: bytes, due: float) -> Seen:
    place = urlsplit(url)
    await asyncio.sleep(max(0.0, due - time.monotonic()))
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise SystemExit(f"{url} answers {status!r}")
    times = []
    while not (line := await reader.readline()).startswith(b"data: [DONE]"):
        if not line:
            raise SystemExit(f"{url} cut an answer off after {len(times)} tokens")
        if line.startswith(b'data: {"') and b'"choices":[{' in line:
            times.append(time.monotonic())
    writer.close()
    return Seen(times[0] - due, (times[-1] - times[0]) / (len(times) - 1))


async def open_loop(url: str, rate: float, duration_s: float, tokens: tuple[int, int], seed: int) -> list[Seen]:
    """Poisson arrivals at `rate` requests/s; every answer is waited for, none is left out."""
    draw, due, plan = random.Random(seed), 0.0, []
    while (due := due + draw.expovariate(rate)) < duration_s:
        prompt = [draw.randint(LOWEST_ID, HIGHEST_ID) for _ in range(tokens[0])]
        asked = {"prompt": prompt, "max_tokens": tokens[1], "ignore_eos": True, "stream": True, "temperature": 0}
        plan.append((due, json.dumps({"model": "tiny", **asked}).encode()))
    start = time.monotonic() + 0.2
    return list(await asyncio.gather(*(_ask(url, body, start + at) for at, body in plan)))


def nearest_rank(values: list[float], percent: float) -> float:
    """The smallest value that `percent` % of the values do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]
