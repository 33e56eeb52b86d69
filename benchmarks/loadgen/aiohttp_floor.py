"""The floor a plain aiohttp client sets: a task a request, JSON parsed per token, collector frozen as ours is."""

import asyncio
import gc
import json
from time import perf_counter, process_time
from typing import Any

import aiohttp

from tonnage_core.slo import percentile


async def floor(case: dict[str, Any], window: float, port: int, prompt_tokens: int) -> dict[str, Any]:
    """The figures `run.py` gives for our own client, as far as they have a meaning here."""
    count = int(case["rate_rps"] * window)
    late: list[float] = []
    ttft: list[float] = []
    gaps: list[float] = []
    body = {"model": "mock", "prompt": " tobak" * prompt_tokens, "max_tokens": case["tokens"], "stream": True}
    url = f"http://127.0.0.1:{port}/v1/completions"

    async def one(session: aiohttp.ClientSession, intended: float) -> None:
        late.append(perf_counter() - intended)
        last = 0.0
        async with session.post(url, json=body) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                if json.loads(line[6:])["choices"]:
                    now = perf_counter()
                    (gaps if last else ttft).append(now - (last or intended))
                    last = now

    gc.collect()
    gc.freeze()
    gc.disable()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        start, cpu = perf_counter() + 0.1, process_time()
        tasks = []
        for n in range(count):
            intended = start + n / case["rate_rps"]
            delay = intended - perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(asyncio.create_task(one(session, intended)))
        await asyncio.gather(*tasks)
        used, wall = process_time() - cpu, perf_counter() - start
    return _figures(count, case["tokens"], used, wall, sorted(late), sorted(ttft), sorted(gaps))


def _figures(
    count: int, tokens: int, used: float, wall: float, late: list[float], ttft: list[float], gaps: list[float]
) -> dict[str, Any]:
    return {
        "ok": len(ttft) / count,
        "cpu_us_per_request": used / count * 1e6,
        "cpu_us_per_token": used / count / tokens * 1e6,
        "core_share": used / wall,
        "lateness_ms_p50": _ms(late, 50),
        "lateness_ms_p99": _ms(late, 99),
        "ttft_ms_p50": _ms(ttft, 50),
        "ttft_ms_p99": _ms(ttft, 99),
        "itl_ms_p99": _ms(gaps, 99),
    }


def _ms(ordered: list[float], percent: float) -> float:
    return (percentile(ordered, percent) or 0.0) * 1e3
