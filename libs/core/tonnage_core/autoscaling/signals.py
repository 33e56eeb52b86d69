"""From observations to the replicas each signal asks for.

Each need is absolute (load over what one replica should carry), so replicas that are still starting do not multiply it.

- kv_usage: `ceil(sum of KV usage / target)`.
- running: `ceil((running + waiting) / target running)`, when a target was measured.
- waiting: while more than the target waits a replica, `ceil((running + waiting) / running of one with a queue)`: an
  endpoint that queues runs all it can, so the demand over that says how many are wanted: at least those that serve, at
  most `max_growth` times those, one more when a queue stands and nothing runs. Running requests of all endpoints would
  not do: a replica that has just joined runs few while older ones still hold their queues, and the target would climb
  with each that joins.

An unknown endpoint is never zero. While its silence is short its load is left out going up (what is known is a lower
bound) and blocks going down. After `unknown_hold_s` it is taken to carry as much as the busiest known endpoint.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tonnage_core.autoscaling.engine_metrics import Signal
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ScalingPolicy

_EPSILON = 1e-9
_MOST = 1e9
"""More replicas than anyone has: keeps a quotient by almost nothing an integer."""


@dataclass(frozen=True)
class RouterQueue:
    """Requests of the pool that wait in the router, outside every engine."""

    waiting: float | None
    """None when the router's number is unknown."""
    unknown_for_s: float = 0.0


@dataclass(frozen=True)
class Total:
    """One signal over a pool."""

    known: float
    """Sum over the endpoints that sent it."""
    known_endpoints: int
    imputed: float
    """Load taken for endpoints that are long unknown or do not send it."""
    imputed_endpoints: int
    holding: tuple[str, ...]
    """Endpoints unknown for less than the hold time."""
    unjudged: bool
    """Some endpoint should send it and no endpoint does: there is nothing to impute from."""
    busiest: float | None
    """The largest value of one endpoint."""

    @property
    def value(self) -> float | None:
        """Known and imputed load; None when no endpoint sent the signal."""
        return None if self.known_endpoints == 0 else self.known + self.imputed

    @property
    def serving(self) -> int:
        """Replicas that carry `value`."""
        return self.known_endpoints + self.imputed_endpoints


class Driver(StrEnum):
    """What asks for replicas beside the gauges."""

    DEMAND = "demand"
    """The load forecast for when a replica asked for now would serve."""
    SLO = "slo"
    """Requests that miss the TTFT limit."""


@dataclass(frozen=True)
class Need:
    """What one signal asks for. `replicas` is None when the signal is unknown or not used."""

    signal: Signal | Driver
    replicas: int | None
    fits: int | None
    """Fewest replicas on which the same load stays under the target with the scale-down margin."""
    value: float | None
    target: float | None
    """Per replica."""


@dataclass(frozen=True)
class Load:
    """A pool's totals and the router's queue."""

    totals: dict[Signal, Total]
    router: RouterQueue | None
    running_when_full: float | None
    """Mean running requests of the endpoints that have a queue, of all when none has one; None when unknown."""

    @property
    def holding(self) -> tuple[str, ...]:
        """Endpoints whose short silence blocks every scale-down."""
        return tuple(sorted({url for total in self.totals.values() for url in total.holding}))

    @property
    def known_endpoints(self) -> int:
        """Endpoints that sent at least one signal."""
        return max((total.known_endpoints for total in self.totals.values()), default=0)


def load_of(observations: Sequence[Observation], router: RouterQueue | None, policy: ScalingPolicy) -> Load:
    """The pool's totals per signal."""
    totals = {signal: total_of(signal, observations, policy.unknown_hold_s) for signal in Signal}
    return Load(totals, router, _running_when_full(observations))


def _running_when_full(observations: Iterable[Observation]) -> float | None:
    known = [(seen.value(Signal.RUNNING), seen.value(Signal.WAITING)) for seen in observations]
    running = [(run, wait) for run, wait in known if run is not None]
    full = [run for run, wait in running if wait] or [run for run, _ in running]
    return sum(full) / len(full) if full else None


def total_of(signal: Signal, observations: Iterable[Observation], hold_s: float) -> Total:
    """One signal over the endpoints; pending and stuck endpoints carry nothing and are left out."""
    known: list[float] = []
    holding: list[str] = []
    imputed = 0
    for seen in observations:
        value = seen.value(signal)
        if value is not None:
            known.append(value)
        elif seen.knowledge in (Knowledge.PENDING, Knowledge.STUCK) or seen.never_sends(signal):
            continue
        elif seen.knowledge is Knowledge.FRESH or seen.unknown_for_s >= hold_s:
            imputed += 1
        else:
            holding.append(seen.url)
    busiest = max(known, default=None)
    return Total(
        known=sum(known),
        known_endpoints=len(known),
        imputed=imputed * (busiest or 0.0),
        imputed_endpoints=imputed if known else 0,
        holding=tuple(holding),
        unjudged=imputed > 0 and not known,
        busiest=busiest,
    )


def needs_of(load: Load, policy: ScalingPolicy) -> tuple[Need, ...]:
    """The replicas each signal asks for, in the order kv_usage, running, waiting."""
    return (_kv_need(load, policy), _running_need(load, policy), _waiting_need(load, policy))


def _kv_need(load: Load, policy: ScalingPolicy) -> Need:
    value = load.totals[Signal.KV_USAGE].value
    return _proportional(Signal.KV_USAGE, value, policy.target_kv_usage, policy.scale_down_margin)


def _running_need(load: Load, policy: ScalingPolicy) -> Need:
    in_flight = _added(load.totals[Signal.RUNNING].value, _waiting(load))
    return _proportional(Signal.RUNNING, in_flight, policy.target_running_per_replica, policy.scale_down_margin)


def _proportional(signal: Signal, value: float | None, target: float | None, margin: float) -> Need:
    if value is None or target is None:
        return Need(signal, None, None, None, target)
    return Need(signal, _ceil(value / target), _ceil(value / (target * margin)), value, target)


def _waiting_need(load: Load, policy: ScalingPolicy) -> Need:
    target = policy.target_waiting_per_replica
    waiting, serving = _waiting(load), load.totals[Signal.WAITING].serving
    if waiting is None:
        return Need(Signal.WAITING, None, None, None, target)
    fits = _ceil(waiting / (target * policy.scale_down_margin))
    if waiting <= target * serving:
        return Need(Signal.WAITING, min(fits, serving), fits, waiting, target)
    running, full = load.totals[Signal.RUNNING].value, load.running_when_full
    limit = max(serving + 1, math.floor(serving * policy.max_growth))
    wanted = _ceil((running + waiting) / full) if running and full else serving + 1
    wanted = max(serving, min(wanted, limit))
    return Need(Signal.WAITING, wanted, max(wanted, fits), waiting, target)


def _waiting(load: Load) -> float | None:
    """Queued in the engines and in the router; None only when neither is known."""
    engines = load.totals[Signal.WAITING].value
    router = load.router.waiting if load.router else None
    return _added(engines, router)


def _added(left: float | None, right: float | None) -> float | None:
    if left is None:
        return right
    return left if right is None else left + right


def _ceil(value: float) -> int:
    return max(0, math.ceil(min(value, _MOST) - _EPSILON))
