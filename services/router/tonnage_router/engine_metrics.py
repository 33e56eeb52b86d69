"""The few engine gauges that routing reads, out of a Prometheus page (vLLM and SGLang names)."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """None is unknown: the series is absent, or one of its values is not a number from 0 to `MAX_VALUE`."""

    waiting: int | None
    running: int | None
    kv_utilisation: float | None
    kv_tokens: int | None
    """Capacity of the KV cache in tokens."""
    started_at: float | None
    """Start of the engine's process, Unix seconds."""
    max_loras: int | None
    running_loras: frozenset[str] | None


_WAITING = (b"vllm:num_requests_waiting", b"sglang:num_queue_reqs")
_RUNNING = (b"vllm:num_requests_running", b"sglang:num_running_reqs")
_KV = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", b"sglang:token_usage")
_START = (b"process_start_time_seconds",)
_CONFIG = (b"vllm:cache_config_info",)
_LORA = (b"vllm:lora_requests_info",)
_REST = re.compile(rb"(?:\{([^}\n]*)\})?[ \t]+(\S+)")
"""Of a series' line, after its name: labels, value."""
_LABEL = re.compile(rb'(\w+)="([^"]*)"')
MAX_VALUE = 1e18
"""Nothing here comes near; sums of smaller values stay finite."""
_MAX_DIGITS = 18
"""More digits are no count of anything here, and Python refuses to read thousands of them."""


def _series(names: tuple[bytes, ...], page: bytes) -> list[tuple[bytes, bytes]]:
    """Labels and value of each series of these names. An engine's page has hundreds of lines and is read each second: a
    pattern tried at every line takes twelve times as long as to search for the names."""
    found = []
    for name in names:
        line = b"\n" + name
        at = page.find(line)
        while at >= 0:
            if (match := _REST.match(page, at + len(line))) is not None:
                found.append((match[1] or b"", match[2]))
            at = page.find(line, at + 1)
    return found


def _values(names: tuple[bytes, ...], page: bytes) -> list[float]:
    """Every series' value; nothing when one is not a finite number from 0, since a sum without it would be wrong."""
    values = [_number(value) for _, value in _series(names, page)]
    return [] if None in values else [value for value in values if value is not None]


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < MAX_VALUE else None


def _count(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None


def parse(page: bytes) -> EngineGauges:
    """Gauges of a metrics page; queues summed and KV use averaged over data-parallel ranks."""
    page = b"\n" + page  # every line has its end before it
    waiting, running, kv, started = (_values(p, page) for p in (_WAITING, _RUNNING, _KV, _START))
    max_loras, running_loras = _loras(page)
    return EngineGauges(
        int(sum(waiting)) if waiting else None,
        int(sum(running)) if running else None,
        min(1.0, sum(kv) / len(kv)) if kv else None,
        _capacity(page),
        started[0] if started else None,
        max_loras,
        running_loras,
    )


def _capacity(page: bytes) -> int | None:
    total = 0
    for labels, _ in _series(_CONFIG, page):
        if not labels:
            continue
        found = dict(_LABEL.findall(labels))
        size, blocks = (_count(found.get(name, b"")) for name in (b"block_size", b"num_gpu_blocks"))
        if size is None or blocks is None:
            return None
        total += size * blocks
    return total or None


def _loras(page: bytes) -> tuple[int | None, frozenset[str] | None]:
    """The newest `lora_requests_info` series (its value is a time): running and waiting adapters are in use."""
    newest: dict[bytes, bytes] | None = None
    newest_at = -1.0
    for labels, value in _series(_LORA, page):
        at = _number(value)
        if labels and at is not None and at > newest_at:
            newest_at, newest = at, dict(_LABEL.findall(labels))
    if newest is None:
        return None, None
    names = newest.get(b"running_lora_adapters", b"") + b"," + newest.get(b"waiting_lora_adapters", b"")
    limit = _count(newest.get(b"max_lora", b""))
    used = frozenset(name.strip().decode("utf-8", "replace") for name in names.split(b",") if name.strip())
    return limit, used
