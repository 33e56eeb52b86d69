"""Metrics of the GPU agent: telemetry collected at scrape time, verdicts and ceilings, and its own counters.

Everything is named `tonnage_gpu_*`, so that NVIDIA's DCGM exporter may run beside.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tonnage_gpu_agent.fields import FIELDS
from tonnage_gpu_agent.telemetry import DeviceState, DeviceView

GPU = ("gpu", "uuid")
SUITES = ("quick", "full")
STATUSES = ("OK", "WARN", "FAIL", "UNKNOWN")
RATES = {"gbps": ("bytes_per_second", 1e9), "tflops": ("flops", 1e12), "tops": ("flops", 1e12), "us": ("seconds", 1e-6)}
"""Suffix of a ceiling's key -> the metric's unit and its factor."""


@dataclass(frozen=True, slots=True)
class PodUse:
    """A GPU that the kubelet gave to a container."""

    uuid: str
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Published:
    """What a GPU's profile says, for metrics. `evidence_at` is wall-clock seconds; None before any."""

    status: str
    evidence_at: float | None = None
    ceilings: Mapping[str, float] = field(default_factory=dict)
    spec_shares: Mapping[str, float] = field(default_factory=dict)
    """Ceilings over the data sheet's figures."""


@dataclass
class Sources:
    """Where the collector looks at scrape time; `main` fills them in."""

    views: Callable[[], Iterable[DeviceView]] = lambda: ()
    mode: Callable[[], tuple[str, str]] = lambda: ("starting", "")
    published: Callable[[str], Published | None] = lambda uuid: None
    pods: Callable[[], Iterable[PodUse]] = lambda: ()


class GpuCollector(Collector):
    """Families from the latest snapshots. A GPU without a fresh snapshot has no readings: unknown is never zero."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """The families without samples."""
        return [*_telemetry(()), *_states(()), *_published((), lambda uuid: None), *_fixed(("", ""), ())]

    def collect(self) -> Iterator[Metric]:
        """The families now."""
        views = list(self._sources.views())
        yield from _telemetry(views)
        yield from _states(views)
        yield from _published(views, self._sources.published)
        yield from _fixed(self._sources.mode(), self._sources.pods())


def _ids(view: DeviceView) -> list[str]:
    return [str(view.index), view.identity.uuid if view.identity else ""]


def _telemetry(views: Iterable[DeviceView]) -> list[Metric]:
    views = [view for view in views if view.snapshot is not None]
    families: list[Metric] = []
    for known in FIELDS:
        labels = [*GPU, *known.labels]
        family: CounterMetricFamily | GaugeMetricFamily
        family = (CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily)(
            known.metric, known.help, labels=labels
        )
        for view in views:
            for own, value in view.snapshot.readings.get(known.name, ()) if view.snapshot else ():
                family.add_metric([*_ids(view), *own], value)
        families.append(family)
    processes = GaugeMetricFamily("tonnage_gpu_processes", "Processes with memory on the GPU", labels=GPU)
    for view in views:
        if view.snapshot and view.snapshot.processes is not None:
            processes.add_metric(_ids(view), len(view.snapshot.processes))
    return [*families, processes]


def _states(views: Iterable[DeviceView]) -> list[Metric]:
    state = GaugeMetricFamily("tonnage_gpu_state", "1 for the GPU's present state", labels=[*GPU, "state"])
    dropped = CounterMetricFamily("tonnage_gpu_dropped_readings", "Readings dropped as driver sentinels", labels=GPU)
    device = GaugeMetricFamily(
        "tonnage_gpu_device_info", "1, with what the GPU is", labels=[*GPU, "product", "driver", "vbios", "pci", "mig"]
    )
    for view in views:
        for known in DeviceState:
            state.add_metric([*_ids(view), known.value], known is view.state)
        dropped.add_metric(_ids(view), view.dropped_total)
        if view.identity is not None:
            d = view.identity
            device.add_metric([*_ids(view), d.product, d.driver, d.vbios, d.pci, "on" if d.mig else "off"], 1)
    return [state, dropped, device]


def _published(views: Iterable[DeviceView], published: Callable[[str], Published | None]) -> list[Metric]:
    verdict = GaugeMetricFamily("tonnage_gpu_verdict", "1 for the held verdict", labels=[*GPU, "status"])
    stamp = GaugeMetricFamily(
        "tonnage_gpu_verdict_evidence_timestamp_seconds", "When the GPU was last probed under load", labels=GPU
    )
    shares = GaugeMetricFamily(
        "tonnage_gpu_ceiling_spec_ratio", "Measured ceilings over the data sheet's figures", labels=[*GPU, "what"]
    )
    units = sorted({unit for unit, _ in RATES.values()})
    rates = {
        unit: GaugeMetricFamily(f"tonnage_gpu_ceiling_{unit}", f"Measured ceilings in {unit}", labels=[*GPU, "what"])
        for unit in units
    }
    for view in views:
        found = published(view.identity.uuid) if view.identity else None
        if found is None:
            continue
        for status in STATUSES:
            verdict.add_metric([*_ids(view), status], status == found.status)
        if found.evidence_at is not None:
            stamp.add_metric(_ids(view), found.evidence_at)
        for key, value in found.ceilings.items():
            what, _, suffix = key.rpartition("_")
            if suffix in RATES:
                unit, factor = RATES[suffix]
                rates[unit].add_metric([*_ids(view), what], value * factor)
        for key, share in found.spec_shares.items():
            shares.add_metric([*_ids(view), key.rpartition("_")[0]], share)
    return [verdict, stamp, shares, *rates.values()]


def _fixed(mode: tuple[str, str], pods: Iterable[PodUse]) -> list[Metric]:
    info = InfoMetricFamily("tonnage_gpu_agent_mode", "Whether the agent watches GPUs, and why not")
    if mode[0]:
        info.add_metric([], {"mode": mode[0], "reason": mode[1]})
    used = GaugeMetricFamily(
        "tonnage_gpu_pod_info", "1 for each GPU given to a container", labels=["uuid", "namespace", "pod", "container"]
    )
    for use in pods:
        used.add_metric([use.uuid, use.namespace, use.pod, use.container], 1)
    return [info, used]


class AgentMetrics:
    """Every metric, declared once against `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sources = Sources()
        registry.register(GpuCollector(self.sources))
        self.xids = Counter(
            "tonnage_gpu_xids",
            "XIDs by code (unlisted codes: other) and class",
            [*GPU, "xid", "class"],
            registry=registry,
        )
        self.last_xid = Gauge(
            "tonnage_gpu_last_xid_timestamp_seconds", "When the XID was last seen", [*GPU, "xid"], registry=registry
        )
        self.runs = Counter(
            "tonnage_gpu_probe_runs", "Probe runs by suite and outcome", ["suite", "outcome"], registry=registry
        )
        self.skipped = Counter(
            "tonnage_gpu_probe_skipped", "Probe runs refused, by reason", ["reason"], registry=registry
        )
        self.run_seconds = Histogram(
            "tonnage_gpu_probe_run_seconds",
            "Length of a probe run",
            ["suite"],
            buckets=(1, 5, 10, 25, 60, 120, 300),
            registry=registry,
        )
        for suite, outcome in product(SUITES, ("ok", "busy", "timeout", "error")):
            self.runs.labels(suite, outcome)
        for reason in ("busy", "mig", "cooldown", "budget", "lease", "no_gpu"):
            self.skipped.labels(reason)
        self.attribution_errors = Counter(
            "tonnage_gpu_attribution_errors", "Failed looks at the kubelet's pod resources", registry=registry
        )
        self.health_errors = Counter(
            "tonnage_gpu_health_look_errors", "Looks at a GPU's health that failed", registry=registry
        )
        self.profile_calls = Counter(
            "tonnage_gpu_profile_calls", "Calls for GpuProfile resources", ["call", "outcome"], registry=registry
        )
        self.profile_applied = Gauge(
            "tonnage_gpu_profile_applied_timestamp_seconds",
            "When the GPU's GpuProfile resource was last written",
            GPU,
            registry=registry,
        )
        self.probe_requests = Counter(
            "tonnage_gpu_profile_probe_requests", "Probe annotations taken", ["outcome"], registry=registry
        )
        self.fleet_gpus = Gauge(
            "tonnage_gpu_profile_fleet_gpus",
            "Other nodes' GPUs of the product that are compared with",
            ["product"],
            registry=registry,
        )
