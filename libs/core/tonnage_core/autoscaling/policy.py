"""The numbers a pool is scaled by, each with its unit and the reason for its default."""

from dataclasses import dataclass

from tonnage_core.autoscaling.capacity import ReplicaCost, RequestMix, fill_limit, replicas_for
from tonnage_core.errors import BadInputError


@dataclass(frozen=True)
class ReplicaCapacity:
    """What one replica can do, from the planner's step model, and the limits it is to keep."""

    cost: ReplicaCost
    slo_ttft_s: float = 2.0
    slo_tpot_s: float | None = None
    """Limit of the mean time a token after the first; None: not looked at."""

    def fill(self, mix: RequestMix, replicas: int) -> float:
        """How full each of `replicas` may run, 0 to 1."""
        return fill_limit(self.cost, mix, replicas, self.slo_ttft_s, self.slo_tpot_s)

    def replicas_for(self, load: float, mix: RequestMix) -> int:
        """The fewest replicas that carry `load`."""
        return replicas_for(load, self.cost, mix, self.slo_ttft_s, self.slo_tpot_s)

    def unfit(self, mix: RequestMix) -> str:
        """Why an idle replica misses a limit with the mean request already; empty when it keeps both."""
        prompt_s = self.cost.prefill_s(mix.prompt)
        if prompt_s > self.slo_ttft_s:
            return (
                f"a prompt of {mix.prompt:.0f} tokens takes {prompt_s:.2g} s there, {self.slo_ttft_s:g} s are allowed"
            )
        if self.slo_tpot_s is not None and self.cost.step_s > self.slo_tpot_s:
            return f"a token takes {self.cost.step_s * 1e3:.3g} ms there, {self.slo_tpot_s * 1e3:g} ms are allowed"
        return ""


@dataclass(frozen=True)
class ScalingPolicy:
    """One pool's limits and targets; raises `BadInputError` for values that contradict each other."""

    min_replicas: int = 1
    max_replicas: int = 16
    target_kv_usage: float = 0.8
    """KV blocks in use a replica, 0 to 1. Above it preemptions begin: growing sequences need the rest."""
    target_waiting_per_replica: float = 3.0
    """Queued requests a replica. A few only wait for the next step; more is a queue that grows."""
    target_running_per_replica: float | None = None
    """Requests in flight a replica at the SLO; None when nobody has measured it, and then it is not used."""
    max_growth: float = 2.0
    """Most replicas a queue may ask for, as a multiple of those that serve: pending ones never multiply."""
    scale_down_after_s: float = 300.0
    """The load must have fitted fewer replicas for this long: longer than a cold start and a burst's echo."""
    scale_down_margin: float = 0.9
    """Share of each target that fewer replicas may reach: without the gap a pool goes 2, 1, 2, 1."""
    unknown_hold_s: float = 120.0
    """An endpoint whose load is unknown stops every scale-down for this long."""
    safe_replicas: int = 0
    """Fewest replicas once nothing has been known for `unknown_hold_s`; the last target stays if it is larger."""
    capacity: ReplicaCapacity | None = None
    """What a replica can carry; None when the model or the GPU is not known: then nothing is forecast."""
    start_s: float = 180.0
    """Time a start takes until starts have been seen; the forecast's horizon."""
    forecast_quantile: float = 0.94
    """Share of past forecasts, with margin, that were enough."""
    slo_miss_share: float = 0.01
    """Share of requests that may miss the TTFT limit."""
    max_up_per_minute: int | None = None
    max_down_per_minute: int | None = None
    """Most replicas added or given up within a minute; None: no limit."""
    warm_replicas: int = 0
    """Started replicas kept beyond what the load needs, for what no forecast sees."""
    usd_per_replica_hour: float | None = None
    budget_usd_per_hour: float | None = None
    """With the price of a replica, the most replicas that may run."""
    idle_to_zero_s: float = 900.0
    """With min_replicas 0: the last replica goes after so long without a request anywhere."""
    retry_stuck_s: float = 900.0
    """After replicas that could not start were given up, no more are asked for during this time."""

    def __post_init__(self) -> None:
        """Refuse what cannot be followed."""
        _check(0 <= self.min_replicas <= self.max_replicas, "min_replicas must be from 0 to max_replicas")
        _check(self.max_replicas >= 1, "max_replicas must be at least 1")
        _check(0 < self.target_kv_usage <= 1, "target_kv_usage must be above 0 and at most 1")
        _check(self.target_waiting_per_replica > 0, "target_waiting_per_replica must be above 0")
        running = self.target_running_per_replica
        _check(running is None or running > 0, "target_running_per_replica must be above 0")
        _check(self.max_growth > 1, "max_growth must be above 1")
        _check(0 < self.scale_down_margin <= 1, "scale_down_margin must be above 0 and at most 1")
        _check(self.scale_down_after_s >= 0, "scale_down_after_s must be at least 0")
        _check(self.unknown_hold_s >= 0, "unknown_hold_s must be at least 0")
        _check(0 <= self.safe_replicas <= self.max_replicas, "safe_replicas must be from 0 to max_replicas")
        _check(self.start_s > 0, "start_s must be above 0")
        _check(0 < self.forecast_quantile < 1, "forecast_quantile must be above 0 and below 1")
        _check(0 < self.slo_miss_share < 1, "slo_miss_share must be above 0 and below 1")
        _check(self.warm_replicas >= 0, "warm_replicas must be at least 0")
        for name in ("max_up_per_minute", "max_down_per_minute"):
            limit = getattr(self, name)
            _check(limit is None or limit >= 1, f"{name} must be at least 1")
        price, budget = self.usd_per_replica_hour, self.budget_usd_per_hour
        _check(price is None or price > 0, "usd_per_replica_hour must be above 0")
        _check(budget is None or price is not None, "budget_usd_per_hour needs usd_per_replica_hour")
        _check(budget is None or budget > 0, "budget_usd_per_hour must be above 0")
        _check(self.idle_to_zero_s >= 0, "idle_to_zero_s must be at least 0")
        _check(self.retry_stuck_s >= 0, "retry_stuck_s must be at least 0")

    @property
    def affordable(self) -> int:
        """Most replicas, the budget counted."""
        if self.budget_usd_per_hour is None or self.usd_per_replica_hour is None:
            return self.max_replicas
        return min(self.max_replicas, int(self.budget_usd_per_hour / self.usd_per_replica_hour + 1e-9))

    def clamp(self, replicas: int) -> int:
        """`replicas` within the limits; a budget below `min_replicas` wins, since it is money."""
        return min(self.affordable, max(self.min_replicas, replicas))


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise BadInputError(f"scaling policy: {message}")
