"""The metrics of vLLM 0.32: families, labels and buckets as a scrape of that engine shows them.

Times are engine time, seconds: wall time times the time scale.
"""

from collections.abc import Mapping

from tonnage_sim.metric_types import Cell, Families, Family, HistogramCell

ENGINE = "0"

TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
GAP_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SAMPLES_BOUNDS = (1, 2, 5, 10, 20)
PREEMPTION_BOUNDS = (1, 2, 3, 4, 5, 10, 20)
HTTP_FINE_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0),
    *(30.0, 60.0),
)
HTTP_COARSE_BOUNDS_S = (0.1, 0.5, 1.0)

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
TOKEN_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
_LORA_SERIES = 64


def token_bounds(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … up to `limit`."""
    bounds: list[float] = []
    decade = 1
    while decade <= limit:
        bounds += [float(m * decade) for m in (1, 2, 5) if m * decade <= limit]
        decade *= 10
    return tuple(bounds)


class SimMetrics:
    """Every series of the engine, declared once against a registry of families."""

    def __init__(
        self, families: Families, *, model: str, max_model_len: int, max_loras: int, cache: Mapping[str, str]
    ) -> None:
        self._families = families
        self._labels = (("engine", ENGINE), ("model_name", model))
        self._model = model
        self._max_loras = max_loras
        self._declare_usage()
        self._declare_tokens()
        self._declare_requests(token_bounds(max_model_len))
        self._declare_times()
        self._declare_per_request(token_bounds(max_model_len))
        if max_loras > 0:
            self._lora = self._families.gauge(
                "vllm:lora_requests_info", "When this set of running and waiting adapters was last seen, Unix time"
            )
        self._lora_seen: dict[tuple[str, str], None] = {}
        info = self._families.gauge("vllm:cache_config_info", "The cache configuration, as labels")
        info.cell((*cache.items(), ("engine", ENGINE))).value = 1.0
        self._declare_http()

    def http(
        self, handler: str, method: str, status: int, request_bytes: int, response_bytes: int, took_s: float
    ) -> None:
        """One HTTP request, by handler path ("none": no such path)."""
        named = (("handler", handler),)
        self._http_requests.cell((*named, ("method", method), ("status", f"{status // 100}xx"))).inc()
        self._http_request_bytes.cell(named).observe(request_bytes)
        self._http_response_bytes.cell(named).observe(response_bytes)
        self._http_fine.observe(took_s)
        self._http_coarse.cell((*named, ("method", method))).observe(took_s)

    def lora(self, running: Mapping[str, int], waiting: Mapping[str, int], wall_s: float) -> None:
        """Which adapters run and wait; the newest series of a bounded number carries the highest time."""
        if self._max_loras == 0:
            return
        names = (",".join(sorted(running)), ",".join(sorted(waiting)))
        self._lora_seen.pop(names, None)
        self._lora_seen[names] = None
        self._lora.cell(self._lora_labels(names)).value = wall_s
        if len(self._lora_seen) > _LORA_SERIES:
            oldest = next(iter(self._lora_seen))
            del self._lora_seen[oldest]
            self._lora.forget(self._lora_labels(oldest))

    def _lora_labels(self, names: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return (
            ("max_lora", str(self._max_loras)),
            ("running_lora_adapters", names[0]),
            ("waiting_lora_adapters", names[1]),
        )

    def _counter(self, name: str, documentation: str) -> Cell:
        return self._families.counter(name, documentation).cell(self._labels)

    def _gauge(self, name: str, documentation: str) -> Cell:
        return self._families.gauge(name, documentation).cell(self._labels)

    def _histogram(self, name: str, documentation: str, bounds: tuple[float, ...]) -> HistogramCell:
        return self._families.histogram(name, documentation, bounds).cell(self._labels)

    def _split(self, family: Family[Cell], label: str, values: tuple[str, ...]) -> dict[str, Cell]:
        return {value: family.cell((*self._labels, (label, value))) for value in values}

    def _declare_usage(self) -> None:
        families = self._families
        self._counter("vllm:estimated_flops_per_gpu_total", "Floating-point operations a GPU; not counted here")
        self._counter("vllm:estimated_read_bytes_per_gpu_total", "Bytes read from memory a GPU; not counted here")
        self._counter("vllm:estimated_write_bytes_per_gpu_total", "Bytes written to memory a GPU; not counted here")
        self.running = self._gauge("vllm:num_requests_running", "Requests in the running batch")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Requests not in the running batch yet")
        self.waiting_by_reason = self._split(
            families.gauge("vllm:num_requests_waiting_by_reason", "Waiting for capacity, or deferred (adapter slots)"),
            "reason",
            ("capacity", "deferred"),
        )
        self.sleep_state = self._split(
            families.gauge("vllm:engine_sleep_state", "1 for the state the engine is in"),
            "sleep_state",
            ("awake", "weights_offloaded", "discard_all"),
        )
        self.sleep_state["awake"].value = 1.0
        self.kv_usage = self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1")

    def _declare_tokens(self) -> None:
        families = self._families
        self.cache_queries = self._counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache")
        self.cache_hits = self._counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache")
        self._counter("vllm:external_prefix_cache_queries_total", "Tokens looked up in other engines' caches")
        self._counter("vllm:external_prefix_cache_hits_total", "Tokens found in other engines' caches")
        self._counter("vllm:mm_cache_queries_total", "Multi-modal items looked up")
        self._counter("vllm:mm_cache_hits_total", "Multi-modal items found")
        self.preemptions = self._counter("vllm:num_preemptions_total", "Preemptions")
        self.prompt_tokens = self._counter("vllm:prompt_tokens_total", "Prompt tokens whose KV is there")
        self.prompt_by_source = self._split(
            families.counter("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from"),
            "source",
            TOKEN_SOURCES,
        )
        self.cached_tokens = self._counter("vllm:prompt_tokens_cached_total", "Prompt tokens not computed again")
        self.cached_by_source = self._split(
            families.counter("vllm:prompt_tokens_cached_by_source_total", "Prompt tokens found, by cache tier"),
            "source",
            CACHE_TIERS,
        )
        self.generation_tokens = self._counter("vllm:generation_tokens_total", "Tokens generated")

    def _declare_requests(self, tokens: tuple[float, ...]) -> None:
        families = self._families
        self.success = self._split(
            families.counter("vllm:request_success_total", "Finished requests by reason"),
            "finished_reason",
            FINISH_REASONS,
        )
        rejections = families.counter("vllm:admission_rejections_total", "Requests refused at a queue limit")
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            rejections.cell((("model_name", self._model), ("reason", reason)))
        self.request_prompt_tokens = self._histogram("vllm:request_prompt_tokens", "Prompt tokens a request", tokens)
        self.request_generation_tokens = self._histogram(
            "vllm:request_generation_tokens", "Generated tokens a request", tokens
        )
        self.step_tokens = self._histogram("vllm:iteration_tokens_total", "Tokens an engine step", STEP_TOKENS_BOUNDS)
        self.max_generation_tokens = self._histogram(
            "vllm:request_max_num_generation_tokens", "Longest of a request's samples, tokens", tokens
        )
        self.params_n = self._histogram("vllm:request_params_n", "The n parameter", SAMPLES_BOUNDS)
        self.params_max_tokens = self._histogram("vllm:request_params_max_tokens", "The max_tokens parameter", tokens)

    def _declare_times(self) -> None:
        self.ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token", TTFT_BOUNDS_S)
        self.itl = self._histogram("vllm:inter_token_latency_seconds", "Between two tokens", GAP_BOUNDS_S)
        self.tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time between tokens of a request", GAP_BOUNDS_S
        )
        self.e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token", LATENCY_BOUNDS_S)
        self.queue_time = self._histogram("vllm:request_queue_time_seconds", "Time waiting", LATENCY_BOUNDS_S)
        self.inference_time = self._histogram("vllm:request_inference_time_seconds", "Time running", LATENCY_BOUNDS_S)
        self.prefill_time = self._histogram("vllm:request_prefill_time_seconds", "Time in prefill", LATENCY_BOUNDS_S)
        self.decode_time = self._histogram("vllm:request_decode_time_seconds", "Time in decode", LATENCY_BOUNDS_S)

    def _declare_per_request(self, tokens: tuple[float, ...]) -> None:
        self.request_preemptions = self._histogram(
            "vllm:request_num_preemptions", "Preemptions a request", PREEMPTION_BOUNDS
        )
        self.computed_tokens = self._histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed, cached ones left out", tokens
        )

    def _declare_http(self) -> None:
        families = self._families
        self._http_requests = families.counter("http_requests_total", "Requests by method, status and handler")
        self._http_request_bytes = families.summary("http_request_size_bytes", "Content-Length of requests")
        self._http_response_bytes = families.summary("http_response_size_bytes", "Content-Length of responses")
        self._http_fine = families.histogram(
            "http_request_duration_highr_seconds", "Duration, many buckets", HTTP_FINE_BOUNDS_S
        ).cell(())
        self._http_coarse = families.histogram(
            "http_request_duration_seconds", "Duration by handler, few buckets", HTTP_COARSE_BOUNDS_S
        )
