"""The bench service's metrics."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

STATES = ("queued", "running", "done", "failed", "cancelled")


class BenchMetrics:
    """Every metric, declared once against the registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = JobsCollector()
        registry.register(self.jobs)
        self.ended = Counter("tonnage_bench_jobs_total", "Jobs by how they ended.", ["outcome"], registry=registry)
        self.runs = Counter(
            "tonnage_bench_runs_total", "What became of runs that workers asked for.", ["outcome"], registry=registry
        )
        self.ledger_errors = Counter(
            "tonnage_bench_ledger_errors_total", "Reads and writes of the database that failed.", ["kind"],
            registry=registry,
        )  # fmt: skip
        self.queue_up = Gauge(
            "tonnage_bench_queue_up", "1 when the last run could be put on the queue.", registry=registry
        )
        self.queue_up.set(1)
        self.points = Counter(
            "tonnage_bench_points_posts_total", "Bench points sent to the planner, by answer.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        for counter, values in (
            (self.ended, STATES[2:]),
            (self.runs, ("done", "refused", "repeated", "worker_lost")),
            (self.ledger_errors, ("locked", "full", "read_only", "damaged", "other")),
            (self.points, ("sent", "refused", "unreachable")),
        ):
            for value in values:
                counter.labels(value)


class JobsCollector(Collector):
    """Jobs by state, read from the ledger at scrape time; no series while it cannot be read."""

    def __init__(self) -> None:
        self._count: Callable[[], dict[str, int] | None] = lambda: None

    def attach(self, count: Callable[[], dict[str, int] | None]) -> None:
        """`count` gives jobs by state, None while unknown."""
        self._count = count

    def collect(self) -> Iterable[Metric]:
        """One gauge."""
        family = GaugeMetricFamily("tonnage_bench_jobs", "Jobs kept, by state.", labels=["state"])
        found = self._count()
        for state in STATES if found is not None else ():
            family.add_metric([state], (found or {}).get(state, 0))
        yield family
