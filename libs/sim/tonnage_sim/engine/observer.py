"""From what a step did to vLLM's series."""

from collections import Counter

from tonnage_core.engine.types import EngineStats, RowResult
from tonnage_sim.engine.sample import Sample
from tonnage_sim.metrics import SimMetrics


class Observer:
    """Counts steps, tokens and finished requests the way vLLM does: each of a request's n samples is one request."""

    def __init__(self, metrics: SimMetrics) -> None:
        self._metrics = metrics
        self._last_end_s = 0.0
        self._usual_gaps = 0
        """Tokens of this step whose sample had one in the last step too."""
        self._gaps: Counter[float] = Counter()
        """The other gaps."""
        self._generated = 0
        self._prefilled = 0

    def scheduled(self, sample: Sample, row: RowResult, start_s: float) -> None:
        """A sample runs for the first time: its prompt has been looked up in the cache."""
        sample.scheduled_s = start_s
        sample.cached_tokens = row.hit_tokens or 0
        self._metrics.cache_queries.inc(sample.prompt_tokens)
        self._metrics.cache_hits.inc(sample.cached_tokens)
        self._metrics.cached_by_source["device"].inc(sample.cached_tokens)

    def preempted(self, sample: Sample) -> None:
        """A sample lost its place in the batch."""
        sample.preemptions += 1
        self._metrics.preemptions.inc()

    def tokens(self, sample: Sample, count: int, end_s: float) -> None:
        """`count` tokens of `sample` came out at `end_s`."""
        self._generated += count
        if sample.produced == count:
            self._first_token(sample, end_s)
        elif sample.last_token_s == self._last_end_s:
            self._usual_gaps += 1
        else:
            self._gaps[end_s - sample.last_token_s] += 1
        sample.last_token_s = end_s

    def step(self, end_s: float) -> None:
        """All rows of the step that ended at `end_s` have been told."""
        metrics = self._metrics
        if self._usual_gaps:
            metrics.itl.observe(end_s - self._last_end_s, self._usual_gaps)
        for gap, times in self._gaps.items():
            metrics.itl.observe(gap, times)
        self._gaps.clear()
        metrics.generation_tokens.inc(self._generated)
        metrics.step_tokens.observe(self._generated + self._prefilled)
        self._generated = self._prefilled = self._usual_gaps = 0
        self._last_end_s = end_s

    def finished(self, sample: Sample, reason: str) -> None:
        """A sample ended; one that its client gave up is not told, as in vLLM."""
        metrics = self._metrics
        scheduled_s = sample.arrived_s if sample.scheduled_s is None else sample.scheduled_s
        metrics.success[reason].inc()
        metrics.e2e.observe(sample.last_token_s - sample.arrived_s)
        metrics.queue_time.observe(max(0.0, scheduled_s - sample.arrived_s))
        metrics.prefill_time.observe(sample.first_token_s - scheduled_s)
        metrics.inference_time.observe(sample.last_token_s - scheduled_s)
        decode_s = sample.last_token_s - sample.first_token_s
        metrics.decode_time.observe(decode_s)
        metrics.tpot.observe(decode_s / (sample.produced - 1) if sample.produced > 1 else 0.0)
        metrics.request_prompt_tokens.observe(sample.prompt_tokens)
        metrics.computed_tokens.observe(sample.prompt_tokens - (sample.cached_tokens or 0))
        metrics.request_generation_tokens.observe(sample.produced)
        metrics.request_preemptions.observe(sample.preemptions)
        metrics.params_max_tokens.observe(sample.max_tokens)
        self._family_finished(sample)

    def gauges(self, stats: EngineStats, wall_s: float) -> None:
        """What a scrape shows of the engine's state."""
        metrics = self._metrics
        metrics.running.value = stats.running
        metrics.waiting.value = stats.waiting
        metrics.waiting_by_reason["deferred"].value = stats.deferred
        metrics.waiting_by_reason["capacity"].value = stats.waiting - stats.deferred
        metrics.kv_usage.value = stats.kv_usage
        metrics.lora(stats.running_adapters, stats.waiting_adapters, wall_s)

    def _first_token(self, sample: Sample, end_s: float) -> None:
        metrics = self._metrics
        sample.first_token_s = end_s
        cached = sample.cached_tokens or 0
        metrics.ttft.observe(end_s - sample.arrived_s)
        metrics.prompt_tokens.inc(sample.prompt_tokens)
        metrics.cached_tokens.inc(cached)
        metrics.prompt_by_source["local_cache_hit"].inc(cached)
        metrics.prompt_by_source["local_compute"].inc(sample.prompt_tokens - cached)
        self._prefilled += sample.prompt_tokens - cached

    def _family_finished(self, sample: Sample) -> None:
        parent = sample.parent
        parent.unfinished -= 1
        parent.longest = max(parent.longest, sample.produced)
        if parent.unfinished == 0:
            self._metrics.max_generation_tokens.observe(parent.longest)
            self._metrics.params_n.observe(parent.n)
