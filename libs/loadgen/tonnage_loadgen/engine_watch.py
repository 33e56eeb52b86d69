"""What engines say of themselves while they are measured: /metrics once a second, in time with the client's figures.

A sample that is missing is left out, never zero; an engine that never answers is reported as unknown.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tonnage_loadgen.discover import Headers
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.plain_http import ask
from tonnage_loadgen.target import parse_target

GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "power_w": "tonnage_gpu_power_watts",
    "sm_clock_hz": "tonnage_gpu_clock_hertz",
}
COUNTERS = {
    "preemptions": "vllm:num_preemptions_total",
    "prefix_query_tokens": "vllm:prefix_cache_queries_total",
    "prefix_hit_tokens": "vllm:prefix_cache_hits_total",
    "generation_tokens": "vllm:generation_tokens_total",
}
FLAGS = "vllm:cache_config_info"
"""The series whose labels are the engine's cache settings: block size, blocks, memory share, prefix caching."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LARGEST = ("kv_usage", "sm_clock_hz")


@dataclass(slots=True)
class EngineLog:
    """Samples by URL: seconds from the watch's start and the values found."""

    samples: dict[str, list[tuple[float, dict[str, float]]]] = field(default_factory=dict)
    flags: dict[str, dict[str, str]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Per URL: mean and peak of each gauge, growth of each counter, its flags; null where it never said."""
        return {
            url: _summary(found) | {"flags": self.flags.get(url)} if found else None
            for url, found in self.samples.items()
        }


@asynccontextmanager
async def watched(urls: Sequence[str], headers: Headers = (), every_s: float = 1.0) -> AsyncIterator[EngineLog]:
    """Sample `urls` (engines, or agents with GPU telemetry) while the block runs, once before it and once after."""
    log = EngineLog({url: [] for url in urls})
    start = perf_counter()
    await _sample(log, headers, start)
    task = asyncio.create_task(_repeat(log, headers, start, every_s))
    try:
        yield log
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await _sample(log, headers, start)


def read_metrics(text: str) -> dict[str, float]:
    """The known metrics of an exposition, summed over their labels (ratios and clocks: the largest)."""
    found: dict[str, float] = {}
    wanted = {name: key for key, name in (GAUGES | COUNTERS).items()}
    for line in text.splitlines():
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        key = wanted.get(name)
        if key is None or (key == "sm_clock_hz" and 'domain="sm"' not in line):
            continue
        with contextlib.suppress(ValueError):
            value = float(rest.rpartition("}")[2].split()[0] if "}" in rest else rest.split()[0])
            if key in _LARGEST:
                found[key] = max(value, found.get(key, value))
            else:
                found[key] = found.get(key, 0.0) + value
    return found


def read_flags(text: str) -> dict[str, str]:
    """The engine's settings as its metrics tell them, those that are None left out; empty when they do not."""
    for line in text.splitlines():
        if line.startswith(FLAGS + "{"):
            return {name: value for name, value in _LABEL.findall(line) if value != "None" and name != "engine"}
    return {}


async def _repeat(log: EngineLog, headers: Headers, start: float, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await _sample(log, headers, start)


async def _sample(log: EngineLog, headers: Headers, start: float) -> None:
    for url, samples in log.samples.items():
        with contextlib.suppress(TargetError):
            answer = await ask(parse_target(url), "/metrics", headers=headers, timeout_s=5.0)
            text = answer.body.decode("utf-8", "replace") if answer.status == 200 else ""
            values = read_metrics(text)
            if url not in log.flags and (flags := read_flags(text)):
                log.flags[url] = flags
            if values:
                samples.append((round(perf_counter() - start, 3), values))


def _summary(samples: Sequence[tuple[float, dict[str, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {"samples": len(samples)}
    for key in GAUGES:
        values = [taken[key] for _, taken in samples if key in taken]
        found[key] = {"mean": round(sum(values) / len(values), 4), "peak": max(values)} if values else None
    for key in COUNTERS:
        values = [taken[key] for _, taken in samples if key in taken]
        found[key] = values[-1] - values[0] if len(values) > 1 and values[-1] >= values[0] else None
    return found
