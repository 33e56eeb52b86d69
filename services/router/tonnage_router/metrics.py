"""What the router counts. Plain integers on the hot path; turned into Prometheus families at a scrape."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final, TypeVar, cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tonnage_core.prefix_index.exact_index import ExactIndex
from tonnage_core.prefix_index.index import PrefixIndex
from tonnage_core.slo import Verdict
from tonnage_runtime.metrics import LATENCY_BUCKETS_S, TTFT_BUCKETS_S

if TYPE_CHECKING:
    from tonnage_router.gateway import Gateway

OVERHEAD_BUCKETS_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1)
"""From ten microseconds to a stalled event loop."""


K = TypeVar("K", bound=tuple[str, ...])
VERDICTS = tuple(verdict.value for verdict in Verdict)
TOKEN_KINDS = ("prompt", "completion", "cached")
HANDOVERS = (
    "pays",
    "does_not_pay",
    "no_endpoint",
    "unsuitable",
    "done",
    "failed",
    "refused",
    "no_params",
    "no_adapter",
)
MAX_KEYS: Final = 4000
"""Label combinations of a family that is not told by tenant or pool: a thousand endpoints by a few values."""
MAX_POOLS = 100
"""Pools, and models, that have a name of their own in labels; the rest share `other`."""
MAX_TENANTS = 100
OTHER: Final = "other"
MAX_REQUEST_KEYS: Final = 10_000
"""Label combinations of requests: 100 models by 10 endpoints each by 10 statuses."""


class Names:
    """The first `most` names keep theirs in labels, the rest are `other`: what clients name does not grow a page."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        """The name's label value."""
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


class Histogram:
    """Cumulative-on-read buckets; `observe` is one bisection and two additions."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus buckets: upper bound and cumulative count."""
        rows: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            running += count
            rows.append((bound, running))
        return rows


class RouterMetrics(Collector):
    """The counters the hot path writes. Keys are label values in the order of the family's labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gateway: Gateway | None = None
        self.pools, self.models, self.tenants = Names(MAX_POOLS), Names(MAX_POOLS), Names(MAX_TENANTS)
        self.requests: dict[tuple[str, str, str], int] = {}
        self.outcomes: dict[str, int] = {}
        self.decisions: dict[tuple[str, str], int] = {}
        self.retries: dict[str, int] = {}
        self.refused: dict[int, int] = {}
        self.adapter_loads: dict[str, int] = {}
        self.endpoint_failures: dict[tuple[str, str], int] = {}
        self.handovers: dict[str, int] = {}
        self.share_rounds: dict[str, int] = {}
        self.share_blocks: dict[str, int] = {}
        self.share_peers = 0
        self.trace_spans: dict[str, int] = {}
        self.discovery_calls: dict[tuple[str, str, str], int] = {}
        self.kv_events: dict[tuple[str, str], int] = {}
        self.prompt_keys: dict[str, int] = {}
        self.tenant_requests: dict[tuple[str], int] = {}
        self.tenant_tokens: dict[tuple[str], int] = {}
        self.tenant_refusals: dict[tuple[str, str], int] = {}
        self.tokens: dict[str, list[int]] = {}
        """By pool, in the order of `TOKEN_KINDS`."""
        self.slo_requests: dict[tuple[str, str], int] = {}
        self.predicted_prompt_tokens = 0
        self.predicted_hit_tokens = 0
        self.held: dict[str, list[float]] = {}
        """By pool: requests that were held, and for how many seconds in all."""
        self.duration: dict[str, Histogram] = {}
        self.first_byte: dict[str, Histogram] = {}
        self.choice = Histogram(OVERHEAD_BUCKETS_S)
        self.encoding = Histogram(LATENCY_BUCKETS_S)
        registry.register(self)

    @staticmethod
    def count(counts: dict[K, int], key: K, amount: int = 1, most: int = MAX_KEYS) -> None:
        """Add to one of the counters; beyond `most` keys the rest count as `other`."""
        counted = counts.get(key)
        if counted is None:
            if len(counts) >= most:
                key = cast("K", (OTHER, *key[1:]))
            counted = counts.get(key, 0)
        counts[key] = counted + amount

    def count_tokens(self, pool: str, prompt: int, completion: int, cached: int) -> None:
        """An engine reported what a request of the pool used."""
        pool = self.pools.label(pool)
        counted = self.tokens.get(pool)
        if counted is None:
            counted = self.tokens[pool] = [0, 0, 0]
        counted[0] += prompt
        counted[1] += completion
        counted[2] += cached

    def prompt_held(self, pool: str, seconds: float) -> None:
        """A request of the pool has ended that was held for so long."""
        counted = self.held.setdefault(self.pools.label(pool), [0.0, 0.0])
        counted[0] += 1
        counted[1] += seconds

    def observe_request(self, pool: str, duration_s: float, first_byte_s: float | None) -> None:
        """A request of a pool ended; `first_byte_s` is None when nothing was answered."""
        pool = self.pools.label(pool)
        durations = self.duration.get(pool)
        if durations is None:
            durations = self.duration[pool] = Histogram(LATENCY_BUCKETS_S)
            self.first_byte[pool] = Histogram(TTFT_BUCKETS_S)
        durations.observe(duration_s)
        if first_byte_s is not None:
            self.first_byte[pool].observe(first_byte_s)

    def attach(self, gateway: "Gateway") -> None:
        """The gateway whose state the gauges show."""
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        """All families, read at a scrape."""
        queued = _queued(self, self._gateway)
        pools = list(queued)
        yield from _counters(self)
        yield from _by_pool(self, pools)
        yield from _histograms(self)
        yield from _endpoint_gauges(self._gateway)
        yield from _gauges(self._gateway)
        rows = (((pool,), float(count)) for pool, count in queued.items())
        yield _gauge("queue_requests", "Requests waiting for capacity, queued or held, by pool", ["pool"], rows)


def _queued(m: RouterMetrics, gateway: "Gateway | None") -> dict[str, int]:
    """Requests that wait, by the label of their pool."""
    found: dict[str, int] = {}
    for pool, count in gateway.admission.lengths().items() if gateway else ():
        label = m.pools.label(pool)
        found[label] = found.get(label, 0) + count
    return found


def _counter(name: str, text: str, labels: list[str], rows: Iterable[tuple[Iterable[object], float]]) -> Metric:
    family = CounterMetricFamily(f"tonnage_router_{name}", text, labels=labels)
    for values, count in rows:
        family.add_metric([str(value) for value in values], count)
    return family


def _gauge(name: str, text: str, labels: list[str], rows: Iterable[tuple[Iterable[object], float]]) -> Metric:
    family = GaugeMetricFamily(f"tonnage_router_{name}", text, labels=labels)
    for values, count in rows:
        family.add_metric([str(value) for value in values], count)
    return family


def _from_zero(counts: dict[str, int], known: Sequence[str]) -> Iterable[tuple[tuple[str], float]]:
    """The counts, those that are still 0 included: a rate misses the first event of a series that begins with it."""
    return (((name,), count) for name, count in (dict.fromkeys(known, 0) | counts).items())


def _counters(m: RouterMetrics) -> Iterable[Metric]:
    yield _counter(
        "requests",
        "Requests ended, by pool, endpoint and status; status 0 is a client that left before an answer",
        ["pool", "endpoint", "status"],
        m.requests.items(),
    )
    yield _counter("outcomes", "How requests ended", ["outcome"], (((k,), v) for k, v in m.outcomes.items()))
    yield _counter("decisions", "Decisions by policy and reason", ["policy", "reason"], m.decisions.items())
    yield _counter("retries", "Attempts after the first", ["kind"], _from_zero(m.retries, ("elsewhere",)))
    loads = _from_zero(m.adapter_loads, ("loaded", "failed", "unloaded"))
    yield _counter("adapter_loads", "Adapter loads and unloads sent, by outcome", ["outcome"], loads)
    yield _counter(
        "refused_requests", "Requests refused before routing", ["status"], (((k,), v) for k, v in m.refused.items())
    )
    yield _counter("endpoint_failures", "Failed attempts by kind", ["endpoint", "kind"], m.endpoint_failures.items())
    yield _counter("tenant_requests", "Requests admitted, by tenant", ["tenant"], m.tenant_requests.items())
    yield _counter("tenant_tokens", "Tokens charged, by tenant", ["tenant"], m.tenant_tokens.items())
    yield _counter("tenant_refused_requests", "Requests over a limit", ["tenant", "limit"], m.tenant_refusals.items())
    handovers = _from_zero(m.handovers, HANDOVERS)
    yield _counter(
        "handovers", "Prompts to decode endpoints, by what came of computing them apart", ["outcome"], handovers
    )
    rounds = _from_zero(m.share_rounds, ("ok", "unavailable", "unreadable"))
    yield _counter("share_rounds", "Rounds of telling and listening between replicas", ["outcome"], rounds)
    blocks = _from_zero(m.share_blocks, ("sent", "received", "untold", "missed"))
    yield _counter("share_blocks", "Prefix blocks between replicas", ["direction"], blocks)
    yield _gauge("share_peers", "Other replicas heard lately", [], [((), float(m.share_peers))])
    yield _counter(
        "discovery_calls",
        "Lists and broken watches of a cluster",
        ["resource", "call", "outcome"],
        list(m.discovery_calls.items()),
    )
    yield _counter(
        "kv_events", "Engines' KV events, by what came of them", ["endpoint", "outcome"], m.kv_events.items()
    )
    keys = _from_zero(m.prompt_keys, ("exact", "approximate", "busy", "mismatch"))
    yield _counter("prompt_keys", "Prompts by how they were matched where engines tell what they cache", ["how"], keys)
    spans = _from_zero(m.trace_spans, ("exported", "dropped", "rejected", "failed"))
    yield _counter("trace_spans", "Spans of traced requests, by what came of them", ["outcome"], spans)
    predicted = ((("prompt",), float(m.predicted_prompt_tokens)), (("hit",), float(m.predicted_hit_tokens)))
    yield _counter("predicted_tokens", "Prompt tokens estimated, and expected in a cache", ["kind"], predicted)


def _by_pool(m: RouterMetrics, pools: Sequence[str]) -> Iterable[Metric]:
    """What is told by pool; the counters start at 0 in every known one."""
    tokens = dict.fromkeys(product(pools, TOKEN_KINDS), 0)
    for pool, counted in m.tokens.items():
        tokens |= {(pool, kind): count for kind, count in zip(TOKEN_KINDS, counted, strict=True)}
    yield _counter("tokens", "Tokens that engines reported in usage", ["pool", "kind"], tokens.items())
    held = dict.fromkeys(pools, (0.0, 0.0)) | {pool: (count, s) for pool, (count, s) in m.held.items()}
    for at, name, text in (
        (0, "held_requests", "Requests that waited for answers that their prompt would have made too slow"),
        (1, "held_seconds", "For how long they did"),
    ):
        yield _counter(name, text, ["pool"], (((pool,), counted[at]) for pool, counted in held.items()))
    judged = dict.fromkeys(product(pools, VERDICTS), 0) | m.slo_requests
    yield _counter("slo_requests", "Requests by how they stand to the SLO", ["pool", "verdict"], judged.items())
    for name, text, histograms in (
        ("request_duration_seconds", "From a request's last byte read to its answer's end", m.duration),
        ("first_byte_seconds", "From a request's last byte read to its answer's first byte", m.first_byte),
    ):
        family = HistogramMetricFamily(f"tonnage_router_{name}", text, labels=["pool"])
        for pool, histogram in histograms.items():
            family.add_metric([pool], histogram.buckets(), histogram.total)
        yield family


def _histograms(m: RouterMetrics) -> Iterable[Metric]:
    for name, text, histogram in (
        ("decision_seconds", "Time to hash, choose and reserve", m.choice),
        ("encoding_seconds", "Time to encode a prompt's new text, waiting included", m.encoding),
    ):
        family = HistogramMetricFamily(f"tonnage_router_{name}", text)
        family.add_metric([], histogram.buckets(), histogram.total)
        yield family


def _endpoint_gauges(gateway: "Gateway | None") -> Iterable[Metric]:
    endpoints = [(e, e.candidate) for e in gateway.fleet] if gateway else []
    index = gateway.scheduler.index if gateway else PrefixIndex()
    told = gateway.scheduler.exact if gateway else ExactIndex()
    for name, text, rows in (
        ("endpoint_up", "1 when healthy, draining or not", [(e, float(c.healthy)) for e, c in endpoints]),
        ("endpoint_draining", "1 while draining", [(e, float(c.draining)) for e, c in endpoints]),
        ("endpoint_requests", "Requests in flight", [(e, float(c.requests)) for e, c in endpoints]),
        ("endpoint_load_tokens", "Work in flight, in prefill tokens", [(e, c.load_tokens) for e, c in endpoints]),
        (
            "endpoint_kv_utilisation_ratio",
            "Share of KV blocks in use as last polled; absent when unknown",
            [(e, c.kv_utilisation) for e, c in endpoints if c.kv_utilisation is not None],
        ),
        (
            "endpoint_kv_blocks",
            "KV blocks that the engine says it caches; absent while it does not tell",
            [(e, float(told.blocks(c.slot))) for e, c in endpoints if c.kv_block_size is not None],
        ),
        (
            "endpoint_index_blocks",
            "Prefix blocks believed cached",
            [(e, float(index.blocks(c.slot))) for e, c in endpoints],
        ),
    ):
        yield _gauge(name, text, ["pool", "endpoint"], (((e.pool_name, e.id), value) for e, value in rows))


def _gauges(gateway: "Gateway | None") -> Iterable[Metric]:
    def one(value: float | None) -> list[tuple[tuple[()], float]]:
        return [] if value is None else [((), value)]

    g = gateway
    yield _gauge("active_requests", "Requests being answered", [], one(float(len(g.active)) if g else None))
    yield _gauge("client_connections", "Open client connections", [], one(float(len(g.clients)) if g else None))
    yield _gauge("buffered_bytes", "Request bytes held", [], one(float(g.buffered) if g else None))
    memory = float(g.scheduler.index.memory_bytes) if g else None
    yield _gauge("index_bytes", "Estimated memory of the prefix index", [], one(memory))
