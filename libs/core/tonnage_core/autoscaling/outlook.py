"""From demand and forecast to the replicas a pool should have and the fewest that would do.

Up: the load forecast for when a start would be over, with its learned margin, and at least the number of replicas that
carries it with the room each must leave for chance, which few replicas need more of than many. Down: the same load on
fewer replicas, each of which then finds less of its prompts cached (a replica that goes takes its share of the prefix
cache along), with the scale-down margin: N-1 is worked out before it is tried. SLO burn asks for one more when nothing
is on its way, and lets nothing go, up to replicas so empty that only the requests themselves can be late.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tonnage_core.autoscaling.capacity import LEAST_FILL, RequestMix, wait_slack
from tonnage_core.autoscaling.demand import Demand, DemandState, measure
from tonnage_core.autoscaling.forecast import Forecast, History, chance, forecast, record
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ReplicaCapacity, ScalingPolicy
from tonnage_core.autoscaling.signals import Driver, Need

STARTS_KEPT = 20
BURN_S = 60.0
"""Time constant of the share of late requests."""
DOWN_MARGIN = 0.95
"""Share of the fill that fewer replicas may reach. The forecast has a margin of its own, so this gap is small."""
DOWN_CHANCE = 2.0
"""Deviations by which chance moves a minute's load that fewer replicas must carry too: what chance alone raised a small
pool to, it does not give up while the load is where it was."""
WIDEST_GAP = 1.5
"""Most that the load may be multiplied by for that: with more chance turning costs less than what is kept."""
LEAST_BEGUN = 20.0
"""Requests a share of late ones needs to mean something."""
TOLERATED_WAIT = 0.5
"""Share of the TTFT limit that the queue may stand for before it asks for replicas of its own."""


@dataclass(frozen=True, slots=True)
class Burn:
    """Decaying counts of requests that began, and of those that began late."""

    begun: float = 0.0
    late: float = 0.0
    at_s: float | None = None

    @property
    def share(self) -> float | None:
        """Share of late requests; None when too few began."""
        return self.late / self.begun if self.begun >= LEAST_BEGUN else None


@dataclass(frozen=True, slots=True)
class OutlookState:
    """What the next look must remember."""

    demand: DemandState = field(default_factory=DemandState)
    history: History = field(default_factory=History)
    burn: Burn = field(default_factory=Burn)
    starts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the last starts seen, by endpoint, oldest first."""
    needs: tuple[Need, ...] = ()
    """What was asked for when it was last known."""
    known_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What was worked out now; None where it is not known."""

    needs: tuple[Need, ...]
    demand: Demand | None
    forecast: Forecast | None
    horizon_s: float
    fill: float | None
    """Share of a replica that may be used."""
    late_share: float | None
    unfit: str = ""
    """Why even an idle replica misses a limit; empty when it keeps them."""


def look(
    state: OutlookState,
    seen: Sequence[Observation],
    router_waiting: float | None,
    target: int,
    now_s: float,
    policy: ScalingPolicy,
) -> tuple[OutlookState, Outlook | None]:
    """The outlook of a pool whose policy knows a replica's capacity; None when it does not.

    While the demand cannot be measured what was asked for last stands for `unknown_hold_s`, then nothing is asked for.
    """
    capacity = policy.capacity
    if capacity is None:
        return state, None
    starts = _starts(state.starts, seen)
    horizon = horizon_of(starts, policy.start_s)
    demand_state, demand = measure(state.demand, seen, router_waiting, now_s, capacity.cost)
    burn = _burnt(state.burn, seen, capacity.slo_ttft_s, now_s)
    state = replace(state, demand=demand_state, burn=burn, starts=starts)
    if demand is not None:
        slack = wait_slack(capacity.cost, RequestMix(demand.prompt, demand.output), capacity.slo_ttft_s)
        state = replace(state, history=record(state.history, demand.load, now_s, horizon, slack))
    said = forecast(state.history, horizon, policy.forecast_quantile, demand.request_s if demand else 0.0)
    if demand is None or said is None:
        return state, Outlook(_held(state, now_s, policy), None, said, horizon, None, burn.share)
    mix = RequestMix(demand.prompt, demand.output)
    need = _demand_need(demand, said, state.demand, target, seen, horizon, policy, capacity)
    needs = (need, _slo_need(burn.share, seen, need.value or 0.0, policy))
    outlook = Outlook(needs, demand, said, horizon, capacity.fill(mix, target), burn.share, capacity.unfit(mix))
    return replace(state, needs=needs, known_at_s=now_s), outlook


def _held(state: OutlookState, now_s: float, policy: ScalingPolicy) -> tuple[Need, ...]:
    known = state.known_at_s is not None and now_s - state.known_at_s < policy.unknown_hold_s
    return state.needs if known else ()


def _starts(known: Mapping[str, float], seen: Sequence[Observation]) -> Mapping[str, float]:
    new = {one.url: one.start_took_s for one in seen if one.start_took_s is not None and one.url not in known}
    if not new:
        return known
    return dict(list({**known, **new}.items())[-STARTS_KEPT:])


def horizon_of(starts: Mapping[str, float], default_s: float) -> float:
    """The time to look ahead: nine of ten starts seen were over by then; the default counts as one of them."""
    ordered = sorted((*starts.values(), default_s))
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def _burnt(burn: Burn, seen: Sequence[Observation], limit_s: float, now_s: float) -> Burn:
    elapsed = now_s - burn.at_s if burn.at_s is not None else 0.0
    if elapsed <= 0:
        return replace(burn, at_s=now_s)
    keep, begun, late = math.exp(-elapsed / BURN_S), 0.0, 0.0
    for one in seen:
        if one.knowledge is Knowledge.FRESH:
            total, within = _ttft_rates(one.ttft_rates, limit_s)
            begun, late = begun + total * elapsed, late + max(0.0, total - within) * elapsed
    return Burn(burn.begun * keep + begun, burn.late * keep + late, now_s)


def _ttft_rates(rates: Mapping[float, float | None], limit_s: float) -> tuple[float, float]:
    """First tokens a second, and of those the ones within the limit; between two edges the count is interpolated."""
    edges = sorted((edge, rate) for edge, rate in rates.items() if rate is not None)
    if not edges or not math.isinf(edges[-1][0]):
        return 0.0, 0.0
    total = edges[-1][1]
    below = (0.0, 0.0)
    for edge, rate in edges:
        if edge >= limit_s:
            if math.isinf(edge):
                return total, below[1]
            share = (limit_s - below[0]) / (edge - below[0])
            return total, below[1] + share * (rate - below[1])
        below = (edge, rate)
    return total, below[1]


def _demand_need(
    demand: Demand,
    said: Forecast,
    state: DemandState,
    target: int,
    seen: Sequence[Observation],
    horizon_s: float,
    policy: ScalingPolicy,
    capacity: ReplicaCapacity,
) -> Need:
    serving = max(1.0, sum(one.speed for one in seen if one.knowledge is Knowledge.FRESH))
    wait_s = demand.backlog_s / serving
    extra = demand.backlog_s / horizon_s if wait_s > TOLERATED_WAIT * capacity.slo_ttft_s else 0.0
    found = state.mix.found / max(1.0, state.mix.found + state.mix.computed)
    lost = found / max(1, target) * min(1.0, demand.prefill_s / demand.request_s)
    mix = RequestMix(demand.prompt, demand.output)

    def wanted(grown: float) -> tuple[int, float, float]:
        # Surges and bursts are in the margin, chance within seconds is in the fill: both at once would count it twice.
        surge, calm = grown * (said.upper + extra), grown * (said.point + extra)
        carriers = capacity.replicas_for(calm, mix)
        if carriers > _ceil(surge):
            return carriers, calm, capacity.fill(mix, carriers)
        return _ceil(surge), surge, 1.0

    chances = 1 + DOWN_CHANCE * chance(said.point, demand.request_s) / max(said.point, 1e-9)
    gap = max(1 / DOWN_MARGIN, min(WIDEST_GAP, chances))
    (up, load, fill), (fewest, _, _) = wanted(1.0), wanted((1 + lost) * gap)
    return Need(Driver.DEMAND, up + policy.warm_replicas, fewest + policy.warm_replicas, load, fill)


def _slo_need(share: float | None, seen: Sequence[Observation], load: float, policy: ScalingPolicy) -> Need:
    """One more than there is while too many are late. At `LEAST_FILL` hardly anybody waits for another: who is late
    there is late on any number of replicas, and without that bound a limit nobody can keep would take them all."""
    limit = policy.slo_miss_share
    if share is None:
        return Need(Driver.SLO, None, None, None, limit)
    serving = sum(one.speed for one in seen if one.knowledge is Knowledge.FRESH)
    pending = sum(one.speed for one in seen if one.knowledge is Knowledge.PENDING)
    if share <= limit:
        return Need(Driver.SLO, 0, 0, share, limit)
    wanted = min(_ceil(serving + max(1, pending)), max(1, _ceil(load / LEAST_FILL)) + policy.warm_replicas)
    return Need(Driver.SLO, wanted, wanted, share, limit)


def _ceil(value: float) -> int:
    return max(0, math.ceil(value - 1e-9))
