"""The planner's metrics: counters of what it did, and gauges read from the fleet at scrape time."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tonnage_core.autoscaling.engine_metrics import Signal
from tonnage_core.autoscaling.observation import Knowledge, Observation, Outcome
from tonnage_core.autoscaling.signals import Driver
from tonnage_core.autoscaling.state_machine import Decision
from tonnage_planner.fleet import Fleet
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.clock import Clock
from tonnage_runtime.metrics import LATENCY_BUCKETS_S


class PlanMetrics:
    """Plans asked for over HTTP."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.plans = Counter("tonnage_planner_plans_total", "Plans by how they ended.", ["outcome"], registry=registry)
        self.duration = Histogram(
            "tonnage_planner_plan_duration_seconds",
            "Computing time of the plans that were done.",
            buckets=(0.5, 1, 2, 3, 5, 8, 13, 21, 34, 60, 120, 300),
            registry=registry,
        )
        self.waiting = Gauge("tonnage_planner_plans_waiting", "Plans that wait for their turn.", registry=registry)
        self.drift = Histogram(
            "tonnage_planner_bench_drift_ratio",
            "Predicted over measured, of each bench point as it came.",
            ["metric"],
            buckets=(0.5, 0.67, 0.8, 0.87, 0.92, 0.96, 1.0, 1.04, 1.08, 1.15, 1.25, 1.5, 2.0),
            registry=registry,
        )
        self.points = Counter(
            "tonnage_planner_bench_points_total", "Bench points that came, by use.", ["outcome"], registry=registry
        )
        for metric in ("ttft_ms", "tpot_ms", "output_tok_s"):
            self.drift.labels(metric)
        for outcome in ("compared", "unknown"):
            self.points.labels(outcome)


class PlannerMetrics:
    """Every metric, declared once against the registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.plan = PlanMetrics(registry)
        self.fleet = FleetCollector()
        registry.register(self.fleet)
        self.scrapes = Counter(
            "tonnage_planner_scrapes_total", "Scrapes of engine endpoints by outcome.", ["outcome"], registry=registry
        )
        self.router_scrapes = Counter(
            "tonnage_planner_router_scrapes_total", "Scrapes of the router by outcome.", ["outcome"], registry=registry
        )
        self.start_scrapes = Counter(
            "tonnage_planner_start_scrapes_total",
            "Calls for the starts that cold-start services were told of, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.scrape_duration = Histogram(
            "tonnage_planner_scrape_duration_seconds",
            "Duration of the scrapes that gave a reading.",
            buckets=LATENCY_BUCKETS_S[:12],
            registry=registry,
        )
        self.decisions = Counter(
            "tonnage_planner_decisions_total",
            "Decisions by pool and by the code of the reason that settled them.",
            ["pool", "code"],
            registry=registry,
        )
        self.target_changes = Counter(
            "tonnage_planner_target_changes_total",
            "Changes of a pool's desired replicas by direction and by the signal that moved it.",
            ["pool", "direction", "signal"],
            registry=registry,
        )

        self.hook_calls = Counter(
            "tonnage_planner_hook_calls_total",
            "Calls of the scaling hooks by hook, call and outcome.",
            ["hook", "call", "outcome"],
            registry=registry,
        )

        for outcome in Outcome:
            self.scrapes.labels(outcome.value)
            self.router_scrapes.labels(outcome.value)
            self.start_scrapes.labels(outcome.value)
        for ended in ("done", "failed", "cancelled", "refused"):
            self.plan.plans.labels(ended)

    def expect_calls(self, hook: str, calls: Iterable[str]) -> None:
        """A hook is served: its calls count from 0."""
        for call in calls:
            self.hook_calls.labels(hook, call, "ok")

    def count_decision(self, pool: str, decision: Decision, before: int | None) -> None:
        """Count one decision, and the change when the target moved."""
        self.decisions.labels(pool, decision.reasons[-1].code.value).inc()
        if before is None:
            for direction, mover in product(("up", "down"), (*Signal, *Driver)):
                self.target_changes.labels(pool, direction, mover.value)
        if before is not None and decision.target != before:
            direction = "up" if decision.target > before else "down"
            signal = decision.moved_by.value if decision.moved_by else "none"
            self.target_changes.labels(pool, direction, signal).inc()


class FleetCollector(Collector):
    """Gauges from the fleet as it is when scraped; a pool or endpoint that left has no series."""

    def __init__(self) -> None:
        self._now_s: Callable[[], float] = lambda: 0.0
        self._fleet = Fleet(PlannerSettings())

    def attach(self, fleet: Fleet, clock: Clock) -> None:
        """Read from `fleet`; until then every family is empty."""
        self._fleet = fleet
        self._now_s = clock.monotonic

    def collect(self) -> Iterable[Metric]:
        """Every gauge family."""
        now = self._now_s()
        yield from _targets(self._fleet, now)
        yield _needs(self._fleet)
        yield from _loads(self._fleet)
        yield from _outlooks(self._fleet)
        yield from _drifts(self._fleet)
        yield _costs(self._fleet, now)
        yield from _endpoints(self._fleet.observations(now))
        yield GaugeMetricFamily(
            "tonnage_planner_endpoint_list_readable",
            "1 when the endpoint list could be read at the last tick.",
            value=0 if self._fleet.source_error else 1,
        )


def _targets(fleet: Fleet, now_s: float) -> Iterator[Metric]:
    desired = GaugeMetricFamily("tonnage_planner_desired_replicas", "Replicas the pool should have.", labels=["pool"])
    age = GaugeMetricFamily(
        "tonnage_planner_decision_age_seconds", "Time since the pool's last decision.", labels=["pool"]
    )
    for pool, decided in fleet.decided.items():
        desired.add_metric([pool], decided.decision.target)
        age.add_metric([pool], now_s - decided.at_s)
    yield desired
    yield age


def _needs(fleet: Fleet) -> Metric:
    needs = GaugeMetricFamily(
        "tonnage_planner_signal_replicas",
        "Replicas each signal asks for; NaN while the signal is unknown or not used.",
        labels=["pool", "signal"],
    )
    for pool, decided in fleet.decided.items():
        for need in decided.decision.needs:
            needs.add_metric([pool, need.signal.value], math.nan if need.replicas is None else need.replicas)
    return needs


def _loads(fleet: Fleet) -> Iterator[Metric]:
    requests = GaugeMetricFamily(
        "tonnage_planner_pool_requests",
        "Requests in the pool's known engines; NaN while unknown.",
        labels=["pool", "state"],
    )
    kv = GaugeMetricFamily(
        "tonnage_planner_pool_kv_full_endpoints",
        "KV usage summed over the pool's known endpoints: 2 is two full caches; NaN while unknown.",
        labels=["pool"],
    )
    for pool, decided in fleet.decided.items():
        totals = decided.decision.load.totals
        for signal in (Signal.RUNNING, Signal.WAITING):
            total = totals[signal]
            requests.add_metric([pool, signal.value], total.known if total.known_endpoints else math.nan)
        total = totals[Signal.KV_USAGE]
        kv.add_metric([pool], total.known if total.known_endpoints else math.nan)
    yield requests
    yield kv


def _outlooks(fleet: Fleet) -> Iterator[Metric]:
    families = (
        ("tonnage_planner_demand_replicas", "Replicas that arriving requests keep full; NaN while unknown."),
        ("tonnage_planner_forecast_replicas", "The same at the horizon, with margin; NaN while unknown."),
        ("tonnage_planner_late_requests_ratio", "Share of requests past the TTFT limit lately; NaN while unknown."),
    )
    horizon = GaugeMetricFamily(
        "tonnage_planner_start_horizon_seconds",
        "How far ahead the forecast looks: nine of ten starts seen were over by then.",
        labels=["pool"],
    )
    demand, forecast, late = (GaugeMetricFamily(name, text, labels=["pool"]) for name, text in families)
    for pool, decided in fleet.decided.items():
        outlook = decided.decision.outlook
        if outlook is None:
            continue
        horizon.add_metric([pool], outlook.horizon_s)
        demand.add_metric([pool], outlook.demand.load if outlook.demand else math.nan)
        forecast.add_metric([pool], outlook.forecast.upper if outlook.forecast else math.nan)
        late.add_metric([pool], math.nan if outlook.late_share is None else outlook.late_share)
    yield demand
    yield forecast
    yield late
    yield horizon


def _drifts(fleet: Fleet) -> Iterator[Metric]:
    families = (
        (
            "tonnage_planner_seen_token_seconds",
            "Time per output token of the pool's traffic; NaN with too little of it.",
        ),
        ("tonnage_planner_predicted_token_seconds", "What the time model says of the same load; NaN while unknown."),
        ("tonnage_planner_prediction_drift_ratio", "Seen over predicted; NaN while either is unknown."),
    )
    seen, predicted, ratio = (GaugeMetricFamily(name, text, labels=["pool"]) for name, text in families)
    for pool, drift in fleet.drift.by_pool.items():
        for family, value in ((seen, drift.seen_s), (predicted, drift.predicted_s), (ratio, drift.ratio)):
            family.add_metric([pool], math.nan if value is None else value)
    yield seen
    yield predicted
    yield ratio


def _costs(fleet: Fleet, now_s: float) -> Metric:
    cost = GaugeMetricFamily(
        "tonnage_planner_cost_usd_per_hour",
        "What the pool's replicas cost an hour; no series without a price in its policy.",
        labels=["pool"],
    )
    for pool in fleet.decided:
        usd = fleet.usd_per_hour(pool, now_s)
        if usd is not None:
            cost.add_metric([pool], usd)
    return cost


def _endpoints(seen: Iterable[Observation]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "tonnage_planner_endpoint_state",
        "1 for the endpoint's present state: fresh, stale, pending, stuck or unknown.",
        labels=["pool", "endpoint", "state"],
    )
    age = GaugeMetricFamily(
        "tonnage_planner_endpoint_reading_age_seconds",
        "Time since the endpoint's last good reading; no series when there was none.",
        labels=["pool", "endpoint"],
    )
    for one in seen:
        for knowledge in Knowledge:
            state.add_metric([one.pool, one.url, knowledge.value], one.knowledge is knowledge)
        if one.age_s is not None:
            age.add_metric([one.pool, one.url], one.age_s)
    yield state
    yield age
