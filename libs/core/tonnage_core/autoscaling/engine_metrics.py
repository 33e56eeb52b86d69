"""What each engine calls its numbers, across versions.

vLLM 0.9 to 0.32: `gpu_cache_usage_perc` became `kv_cache_usage_perc` and `gpu_prefix_cache_*` became `prefix_cache_*`;
0.9 to 0.11 send both, so the newest name present wins and two names are never added up. SGLang has its own names (with
a colon, or an underscore behind some collectors) and, when every scheduler reports, one series a tensor- and
pipeline-parallel rank of the same requests. TensorRT-LLM sends running and waiting requests only in newer versions:
without them those signals are absent, which is stated and is not zero.

Sources: vLLM `vllm/v1/metrics/loggers.py` and pull requests 18354, 24110, 29330; SGLang
`python/sglang/srt/observability/metrics_collector.py`; TensorRT-LLM `tensorrt_llm/metrics/collector.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tonnage_core.autoscaling.exposition import Exposition, Sample
from tonnage_core.errors import TonnageError


class Signal(StrEnum):
    """What a replica count can be derived from."""

    WAITING = "waiting"
    """Requests queued in the engine."""
    RUNNING = "running"
    """Requests in the running batch."""
    KV_USAGE = "kv_usage"
    """Share of the KV blocks in use, 0 to 1."""


class NoEngineMetricsError(TonnageError):
    """The body is well formed but holds no known engine's metrics."""

    def __init__(self, families: int) -> None:
        super().__init__(
            f"{families} metric families, none of a known engine (vllm:, sglang:, trtllm_): "
            "check the URL, and for SGLang that it was started with --enable-metrics"
        )


@dataclass(frozen=True)
class EngineNames:
    """One engine's names; in each tuple the newest comes first and the first one present is read."""

    engine: str
    prefixes: tuple[str, ...]
    gauges: Mapping[Signal, tuple[str, ...]]
    counters: Mapping[str, tuple[str, ...]]
    ttft: tuple[str, ...] = ()
    """The histogram of times to the first token."""
    optional: frozenset[Signal] = frozenset()
    """Gauges that some versions of the engine do not have: absent is then no fault."""


VLLM = EngineNames(
    "vllm",
    ("vllm:",),
    {
        Signal.RUNNING: ("vllm:num_requests_running",),
        Signal.WAITING: ("vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"),
        Signal.KV_USAGE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    },
    {
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "finished_requests": ("vllm:request_success_total",),
        "first_tokens": ("vllm:time_to_first_token_seconds_count",),
        "token_gap_seconds": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
        "token_gaps": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
        "preemptions": ("vllm:num_preemptions_total",),
        "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    },
    ttft=("vllm:time_to_first_token_seconds_bucket",),
)
SGLANG = EngineNames(
    "sglang",
    ("sglang:", "sglang_"),
    {
        Signal.RUNNING: ("sglang:num_running_reqs", "sglang_num_running_reqs"),
        Signal.WAITING: ("sglang:num_queue_reqs", "sglang_num_queue_reqs"),
        Signal.KV_USAGE: ("sglang:token_usage", "sglang_token_usage"),
    },
    {
        "prompt_tokens": ("sglang:prompt_tokens_total", "sglang_prompt_tokens_total"),
        "generation_tokens": ("sglang:generation_tokens_total", "sglang_generation_tokens_total"),
        "finished_requests": ("sglang:num_requests_total", "sglang_num_requests_total"),
        "first_tokens": ("sglang:time_to_first_token_seconds_count", "sglang_time_to_first_token_seconds_count"),
        "token_gap_seconds": ("sglang:inter_token_latency_seconds_sum", "sglang_inter_token_latency_seconds_sum"),
        "token_gaps": ("sglang:inter_token_latency_seconds_count", "sglang_inter_token_latency_seconds_count"),
    },
    ttft=("sglang:time_to_first_token_seconds_bucket", "sglang_time_to_first_token_seconds_bucket"),
)
TRTLLM = EngineNames(
    "trtllm",
    ("trtllm_", "trtllm:"),
    {
        Signal.RUNNING: ("trtllm_num_requests_running",),
        Signal.WAITING: ("trtllm_num_requests_waiting",),
        Signal.KV_USAGE: ("trtllm_kv_cache_utilization", "trtllm:kv_cache_utilization"),
    },
    {
        "prompt_tokens": ("trtllm_prompt_tokens_total",),
        "generation_tokens": ("trtllm_generation_tokens_total",),
        "finished_requests": ("trtllm_request_success_total", "trtllm:request_success_total"),
        "first_tokens": ("trtllm_time_to_first_token_seconds_count",),
    },
    ttft=("trtllm_time_to_first_token_seconds_bucket",),
    optional=frozenset({Signal.RUNNING, Signal.WAITING}),
)
ENGINES = (VLLM, SGLANG, TRTLLM)

WANTED = frozenset(
    name for names in ENGINES for table in (names.gauges, names.counters) for group in table.values() for name in group
) | frozenset(name for names in ENGINES for name in names.ttft)
"""Every name the planner reads."""

_SAME_REQUESTS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels whose series describe the same requests again."""


@dataclass(frozen=True)
class EngineReading:
    """One endpoint's numbers at one time. None is unknown, never zero."""

    engine: str
    gauges: Mapping[Signal, float | None]
    counters: Mapping[str, float | None]
    names: Mapping[Signal, str]
    """The name each gauge was read from: tells old engines by their old names."""
    missing: tuple[Signal, ...]
    """Gauges this engine should send and did not, or sent as NaN or out of range."""
    never_sent: tuple[Signal, ...]
    """Gauges this version of the engine does not have."""
    ttft_buckets: Mapping[float, float | None] = field(default_factory=dict)
    """Requests by upper bound of their TTFT in seconds, cumulative; empty when the engine does not send them."""


def read_engine(found: Exposition) -> EngineReading:
    """The reading of a scrape; raises `NoEngineMetricsError` when no known engine's metrics are in it."""
    names = _which_engine(found)
    gauges: dict[Signal, float | None] = {}
    read_from: dict[Signal, str] = {}
    for signal, candidates in names.gauges.items():
        name = _present(found, candidates)
        gauges[signal] = None if name is None else _gauge(signal, found.samples[name])
        if name is not None:
            read_from[signal] = name
    never = tuple(signal for signal in Signal if signal in names.optional and signal not in read_from)
    counters = {key: _counter(found, candidates) for key, candidates in names.counters.items()}
    return EngineReading(
        engine=names.engine,
        gauges=gauges,
        counters=counters,
        names=read_from,
        missing=tuple(signal for signal, value in gauges.items() if value is None and signal not in never),
        never_sent=never,
        ttft_buckets=_buckets(found, names.ttft),
    )


def _which_engine(found: Exposition) -> EngineNames:
    seen = found.families | set(found.samples)
    for names in ENGINES:
        if any(name.startswith(names.prefixes) for name in seen):
            return names
    raise NoEngineMetricsError(len(found.families))


def _present(found: Exposition, candidates: tuple[str, ...]) -> str | None:
    return next((name for name in candidates if found.samples.get(name)), None)


def _gauge(signal: Signal, samples: list[Sample]) -> float | None:
    """The whole endpoint's value: requests add up over data-parallel ranks, cache shares are averaged."""
    ranks = _ranks(samples)
    if any(not math.isfinite(value) or value < 0 for value in ranks):
        return None
    if signal is not Signal.KV_USAGE:
        return sum(ranks)
    mean = sum(ranks) / len(ranks)
    return mean if mean <= 1.0 else None


def _ranks(samples: list[Sample]) -> list[float]:
    """One value a data-parallel rank: the largest of the series that describe the same requests."""
    ranks: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        key = tuple(pair for pair in sample.labels if pair[0] not in _SAME_REQUESTS)
        before = ranks.get(key)
        # max() would hide a NaN by its order: an unknown rank must leave the sum unknown.
        keep = before is not None and (math.isnan(before) or before >= sample.value)
        ranks[key] = before if keep and before is not None else sample.value
    return list(ranks.values())


def _buckets(found: Exposition, candidates: tuple[str, ...]) -> dict[float, float | None]:
    """Cumulative counts by bound, added up over models and ranks; edges are the engine's own."""
    name = _present(found, candidates)
    counts: dict[float, float | None] = {}
    for sample in found.samples[name] if name is not None else ():
        bound = _bound(sample.label("le"))
        if bound is None or not math.isfinite(sample.value) or sample.value < 0:
            return {}
        counts[bound] = (counts.get(bound) or 0.0) + sample.value
    return counts


def _bound(label: str | None) -> float | None:
    try:
        return None if label is None else float(label)
    except ValueError:
        return None


def _counter(found: Exposition, candidates: tuple[str, ...]) -> float | None:
    name = _present(found, candidates)
    if name is None:
        return None
    total = sum(_ranks(found.samples[name]))
    return total if math.isfinite(total) and total >= 0 else None
