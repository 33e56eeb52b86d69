"""The cold-start service's metrics: counters of what it did, gauges read from the cache at scrape time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tonnage_core.coldstart.phases import COLD_START_PHASES
from tonnage_runtime.metrics import LATENCY_BUCKETS_S

STAGE_BUCKETS_S = (*LATENCY_BUCKETS_S[5:], 600.0, 1200.0, 3600.0)
OUTCOMES = (
    *("staged", "hit", "source_error", "source_unavailable", "source_changed", "corrupt", "quota", "disk_full"),
    *("no_memory", "cache_error", "cache_read_only", "cancelled", "bad_input", "error"),
)
SOURCES = ("local", "http", "s3", "peer")
SCRUBBED = ("good", "damaged")
PHASES = ("plan", "fetch", "verify")
"""Every value of a label starts at 0: a rate misses the first event of a series that begins with it."""


class ColdstartMetrics:
    """Every metric, declared once against the registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.cache = CacheCollector()
        registry.register(self.cache)
        self.starts = StartMetrics(registry)
        self.stages = Counter(
            "tonnage_coldstart_stages_total",
            "Staging jobs that ended, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.source_bytes = Counter(
            "tonnage_coldstart_source_bytes_total",
            "Bytes read from sources, repeated ranges too.",
            ["source"],
            registry=registry,
        )
        self.retries = Counter(
            "tonnage_coldstart_range_retries_total", "Ranges that were asked for again.", registry=registry
        )
        self.phase_duration = Histogram(
            "tonnage_coldstart_phase_duration_seconds",
            "Duration of the phases of transfers that were not cache hits.",
            ["phase"],
            buckets=STAGE_BUCKETS_S,
            registry=registry,
        )
        self.evictions = Counter(
            "tonnage_coldstart_cache_evictions_total", "Snapshots that left the cache to make room.", registry=registry
        )
        self.peer_bytes = Counter(
            "tonnage_coldstart_peer_served_bytes_total", "Bytes served to other nodes.", registry=registry
        )
        self.alone = Counter(
            "tonnage_coldstart_fleet_store_failures_total",
            "Transfers that went without the fleet because its store did not answer.",
            registry=registry,
        )
        self.scrubs = Counter(
            "tonnage_coldstart_scrubbed_snapshots_total",
            "Snapshots read again byte by byte, by result.",
            ["result"],
            registry=registry,
        )
        self.scrubbed_bytes = Counter(
            "tonnage_coldstart_scrubbed_bytes_total", "Bytes read again by scrubs.", registry=registry
        )
        for counter, values in ((self.stages, OUTCOMES), (self.source_bytes, SOURCES), (self.scrubs, SCRUBBED)):
            for value in values:
                counter.labels(value)
        for phase in PHASES:
            self.phase_duration.labels(phase)


class StartMetrics:
    """Of the cold starts that are reported."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.duration = Histogram(
            "tonnage_coldstart_start_duration_seconds",
            "Cold starts that were reported, from the first phase known to the last.",
            buckets=STAGE_BUCKETS_S,
            registry=registry,
        )
        self.phase = Histogram(
            "tonnage_coldstart_start_phase_duration_seconds",
            "Phases of cold starts that were reported; unknown ones are left out.",
            ["phase"],
            buckets=STAGE_BUCKETS_S,
            registry=registry,
        )
        for phase in COLD_START_PHASES:
            self.phase.labels(phase)


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """What the gauges show; None where it cannot be read."""

    size_bytes: int | None
    entries: int | None
    pinned: int | None
    quota_bytes: int | None
    free_bytes: int | None
    jobs_running: int
    jobs_waiting: int


class CacheCollector(Collector):
    """Gauges from the cache as it is when scraped."""

    def __init__(self) -> None:
        self._figures: Callable[[], CacheFigures] = lambda: CacheFigures(None, None, None, None, None, 0, 0)

    def attach(self, figures: Callable[[], CacheFigures]) -> None:
        """Read from `figures`; until then the cache is unknown."""
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """Every gauge; NaN is unknown."""
        figures = self._figures()
        yield _gauge("tonnage_coldstart_cache_bytes", "Bytes of published snapshots.", figures.size_bytes)
        yield _gauge("tonnage_coldstart_cache_entries", "Published snapshots.", figures.entries)
        yield _gauge("tonnage_coldstart_cache_pinned_entries", "Pinned snapshots.", figures.pinned)
        yield _gauge("tonnage_coldstart_cache_quota_bytes", "The quota; NaN without one.", figures.quota_bytes)
        yield _gauge("tonnage_coldstart_cache_free_bytes", "Free bytes of the cache's disk.", figures.free_bytes)
        jobs = GaugeMetricFamily("tonnage_coldstart_jobs", "Staging jobs by state.", labels=["state"])
        jobs.add_metric(["running"], figures.jobs_running)
        jobs.add_metric(["waiting"], figures.jobs_waiting)
        yield jobs


def _gauge(name: str, text: str, value: int | None) -> Metric:
    return GaugeMetricFamily(name, text, value=float("nan") if value is None else value)
