"""The operator's metrics, declared once against a registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tonnage_core.autoscaling.writers import Writer
from tonnage_operator.kinds import CUSTOM
from tonnage_runtime.metrics import LATENCY_BUCKETS_S


class OperatorMetrics:
    """What is counted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconciles = Counter(
            "tonnage_operator_reconciles_total",
            "Looks at a resource by how they ended.",
            ["kind", "outcome"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "tonnage_operator_reconcile_seconds",
            "Time of a look with its actions.",
            ["kind"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.actions = Counter(
            "tonnage_operator_actions_total",
            "What was done, to what, why, and how it ended.",
            ["action", "resource", "why", "outcome"],
            registry=registry,
        )
        self.queue = Gauge("tonnage_operator_queue_resources", "Resources that wait for a look.", registry=registry)
        self.leading = Gauge("tonnage_operator_leading", "1 while this process acts.", registry=registry)
        self.watches = Counter(
            "tonnage_operator_watch_calls_total",
            "Lists and watches by how they ended.",
            ["call", "outcome"],
            registry=registry,
        )
        self.conflicts = Gauge(
            "tonnage_operator_scale_conflict_servers",
            "ModelServers whose replicas another writer sets, by its kind.",
            ["writer"],
            registry=registry,
        )
        self.failed_nodes = Gauge(
            "tonnage_operator_failed_nodes", "Nodes with a GPU whose verdict is FAIL.", registry=registry
        )
        self.marked_nodes = Gauge(
            "tonnage_operator_marked_nodes", "Nodes that the operator has tainted or cordoned.", registry=registry
        )
        self.refused_nodes = Gauge(
            "tonnage_operator_refused_nodes",
            "Failed nodes that are left alone since the share of marked ones is at its limit.",
            registry=registry,
        )
        self.would = Gauge(
            "tonnage_operator_intended_nodes",
            "Nodes that would be changed, by what would be done.",
            ["action"],
            registry=registry,
        )
        self.given_up = Counter(
            "tonnage_operator_releases_given_up_total",
            "Deletions that ended before their effects outside the cluster were undone.",
            ["kind"],
            registry=registry,
        )
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """A rate misses the first event of a series that begins with it."""
        for kind in CUSTOM:
            self.reconciles.labels(kind.plural, "ok")
            self.given_up.labels(kind.kind)
        for writer in Writer:
            self.conflicts.labels(writer.value).set(0)
