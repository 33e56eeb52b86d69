"""The decision: `(state, observations, now) -> (state, target, reasons)`.

Up at once, as far as the known load asks. Down only when every endpoint is known (or unknown for long enough to be
imputed) and the load, with the margin, has fitted fewer replicas for the whole window. With nothing known the last
target holds; after `unknown_hold_s` it becomes the larger of itself and `safe_replicas`. Every hold says why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tonnage_core.autoscaling.engine_metrics import Signal
from tonnage_core.autoscaling.limits import Caps, allowed, give_up, stepped
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.outlook import Outlook, OutlookState, look
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.signals import Driver, Load, Need, RouterQueue, load_of, needs_of


class Code(StrEnum):
    """Why a target moved or stayed; a label value in metrics."""

    INITIAL = "initial"
    SCALE_UP = "scale_up"
    SCALE_DOWN = "scale_down"
    STEADY = "steady"
    AT_MIN = "at_min"
    AT_MAX = "at_max"
    STABILISING = "stabilising"
    ENDPOINTS_UNKNOWN = "endpoints_unknown"
    ENDPOINTS_IMPUTED = "endpoints_imputed"
    ALL_UNKNOWN_HOLD = "all_unknown_hold"
    ALL_UNKNOWN_SAFE = "all_unknown_safe"
    SIGNAL_MISSING = "signal_missing"
    SIGNAL_NEVER_SENT = "signal_never_sent"
    ROUTER_QUEUE_UNKNOWN = "router_queue_unknown"
    PENDING_CAPACITY = "pending_capacity"
    NO_ENDPOINTS = "no_endpoints"
    UNSCHEDULABLE = "unschedulable"
    RATE_LIMITED = "rate_limited"
    IDLE = "idle"
    GPU_CLASS = "gpu_class"
    OTHER_POOL = "other_pool"
    LIMIT_OUT_OF_REACH = "limit_out_of_reach"


@dataclass(frozen=True)
class Reason:
    """One sentence of the explanation; `signal` names what moved or blocked the target, when one did."""

    code: Code
    text: str
    signal: Signal | Driver | None = None


@dataclass(frozen=True)
class PoolState:
    """What the next decision must remember."""

    target: int | None = None
    changed_at_s: float | None = None
    window: tuple[tuple[float, int], ...] = ()
    """Replicas the load fitted on, by time, falling: the first entry is the largest of the window."""
    blind_since_s: float | None = None
    """Since when no endpoint is known."""
    busy_at_s: float | None = None
    """When a request was last seen anywhere in the pool."""
    outlook: OutlookState = field(default_factory=OutlookState)
    caps: Caps = field(default_factory=Caps)


@dataclass(frozen=True)
class Decision:
    """The target with its explanation."""

    target: int
    moved_by: Signal | Driver | None
    """The signal that moved the target in this decision, else None."""
    asked_by: Signal | Driver | None
    """The signal that asks for the most replicas now, else None."""
    reasons: tuple[Reason, ...]
    needs: tuple[Need, ...]
    load: Load
    outlook: Outlook | None = None


def decide(
    state: PoolState,
    observations: Sequence[Observation],
    now_s: float,
    policy: ScalingPolicy,
    router: RouterQueue | None = None,
) -> tuple[PoolState, Decision]:
    """One decision for one pool. `observations` are the endpoints listed now: one that left the list is forgotten."""
    load = load_of(observations, router, policy)
    started = _start(state, observations, now_s, policy)
    waiting = router.waiting if router else None
    outlook_state, outlook = look(started.outlook, observations, waiting, started.target or 0, now_s, policy)
    needs = _needs(load, outlook, policy)
    caps = give_up(started.caps, observations, now_s, policy)
    started = replace(started, outlook=outlook_state, caps=caps, busy_at_s=_busy_at(started, load, now_s))
    reasons = _initial(state, started, observations) + remarks(observations, load, policy) + _out_of_reach(outlook)
    move = _blind if load.known_endpoints == 0 or _strongest(needs) is None else _seeing
    after, why = move(started, observations, needs, load, now_s, policy)
    after, why = _within(started, after, why, now_s, policy)
    change = (after.target or 0) - (started.target or 0)
    after = replace(after, caps=stepped(caps, change, now_s))
    if change:
        after = replace(after, changed_at_s=now_s)
    asked = _strongest(needs)
    return after, Decision(
        target=after.target or 0,
        moved_by=why.signal if change else None,
        asked_by=asked.signal if asked and asked.replicas else None,
        reasons=(*reasons, why),
        needs=needs,
        load=load,
        outlook=outlook,
    )


def _needs(load: Load, outlook: Outlook | None, policy: ScalingPolicy) -> tuple[Need, ...]:
    """The gauges' needs and the forecast's; where the queue is known as work, its length asks for nothing more."""
    gauges = needs_of(load, policy)
    if outlook is None or not outlook.needs:
        return gauges
    counted = [replace(need, replicas=None, fits=None) if need.signal is Signal.WAITING else need for need in gauges]
    return (*counted, *outlook.needs)


def _busy_at(state: PoolState, load: Load, now_s: float) -> float | None:
    """When the pool last held a request, as far as is known; unknown load counts as a request."""
    totals = [load.totals[Signal.RUNNING].value, load.totals[Signal.WAITING].value]
    router = load.router.waiting if load.router else 0.0
    idle = all(value == 0 for value in totals) and router == 0 and not load.holding
    return state.busy_at_s if idle and state.busy_at_s is not None else now_s


def _within(
    before: PoolState, after: PoolState, why: Reason, now_s: float, policy: ScalingPolicy
) -> tuple[PoolState, Reason]:
    """The move as far as replicas that cannot start, idleness and the pace of change let it go."""
    target, wanted = before.target or 0, after.target or 0
    most = before.caps.most
    if most is not None and wanted > max(most, policy.min_replicas):
        to = max(most, policy.min_replicas)
        text = (
            f"given up on replicas that do not start: {to} stay, the next try is in {before.caps.until_s - now_s:.0f} s"
        )
        return replace(after, target=to), Reason(Code.UNSCHEDULABLE, text, why.signal)
    if wanted == 0 and target > 0 and now_s - (before.busy_at_s or now_s) < policy.idle_to_zero_s:
        text = f"the last replica stays until nothing has been asked for {policy.idle_to_zero_s:g} s"
        return replace(after, target=1), Reason(Code.IDLE, text, why.signal)
    to = allowed(before.caps, target, wanted, now_s, policy)
    if to != wanted:
        text = f"{to} for now, {wanted} are wanted: the limit of changes a minute is reached"
        return replace(after, target=to), Reason(Code.RATE_LIMITED, text, why.signal)
    return after, why


def _start(state: PoolState, observations: Sequence[Observation], now_s: float, policy: ScalingPolicy) -> PoolState:
    """The state with a target: the endpoints there are, kept for one window before the first scale-down."""
    if state.target is not None:
        return replace(state, target=policy.clamp(state.target))
    target = policy.clamp(math.ceil(sum(one.speed for one in observations) - 1e-9))
    return replace(state, target=target, changed_at_s=now_s, window=((now_s, target),))


def _initial(before: PoolState, after: PoolState, observations: Sequence[Observation]) -> tuple[Reason, ...]:
    if before.target is not None:
        return ()
    return (Reason(Code.INITIAL, f"starts at {after.target}: {len(observations)} endpoints are listed"),)


def _out_of_reach(outlook: Outlook | None) -> tuple[Reason, ...]:
    if outlook is None or not outlook.unfit:
        return ()
    text = f"no number of replicas keeps the limits for the mean request: {outlook.unfit}"
    return (Reason(Code.LIMIT_OUT_OF_REACH, text, Driver.SLO),)


def _strongest(needs: Sequence[Need]) -> Need | None:
    """The known need that asks for the most replicas; the first of equals."""
    known = [need for need in needs if need.replicas is not None]
    return max(known, key=lambda need: need.replicas or 0, default=None)


def _seeing(
    state: PoolState,
    observations: Sequence[Observation],
    needs: Sequence[Need],
    load: Load,
    now_s: float,
    policy: ScalingPolicy,
) -> tuple[PoolState, Reason]:
    """At least one endpoint is known: follow the strongest need up, or the window's largest down."""
    target = state.target or 0
    binding = max((need for need in needs if need.fits is not None), key=lambda need: need.fits or 0)
    state = replace(state, blind_since_s=None, window=_window(state.window, binding.fits or 0, now_s, policy))
    asked = _strongest(needs) or binding
    wanted = asked.replicas or 0
    if wanted > target:
        return _up(state, asked, policy)
    down_to = policy.clamp(state.window[0][1])
    if down_to >= target:
        return state, _stay(target, asked, binding, policy)
    blocked = _blocked(load, policy)
    if blocked is not None:
        return state, blocked
    text = f"the load fitted {down_to} for {policy.scale_down_after_s:g} s: {_told(binding)}"
    return replace(state, target=down_to), Reason(Code.SCALE_DOWN, text, binding.signal)


def _up(state: PoolState, asked: Need, policy: ScalingPolicy) -> tuple[PoolState, Reason]:
    target, to = state.target or 0, policy.clamp(asked.replicas or 0)
    if to == target:
        bound = "max_replicas" if policy.affordable == policy.max_replicas else "what the budget allows"
        text = f"{bound} is {policy.affordable} and {asked.replicas} are wanted: {_told(asked)}"
        return state, Reason(Code.AT_MAX, text, asked.signal)
    return replace(state, target=to), Reason(Code.SCALE_UP, f"{target} to {to}: {_told(asked)}", asked.signal)


def _stay(target: int, asked: Need, binding: Need, policy: ScalingPolicy) -> Reason:
    fits = policy.clamp(binding.fits or 0)
    if fits < target:
        text = f"the load fits {fits}, not yet for {policy.scale_down_after_s:g} s: {_told(binding)}"
        return Reason(Code.STABILISING, text, binding.signal)
    if target == policy.min_replicas and (asked.replicas or 0) < target:
        return Reason(Code.AT_MIN, f"min_replicas is {target}: {_told(asked)}", asked.signal)
    if (asked.replicas or 0) < target:
        text = f"{_told(asked)}, yet the load would not fit fewer than {target}"
        return Reason(Code.STEADY, text, binding.signal)
    return Reason(Code.STEADY, _told(asked), asked.signal)


def _told(need: Need) -> str:
    value, target = need.value or 0.0, need.target or 0.0
    if need.signal is Driver.SLO:
        return f"{100 * value:.3g} % of first tokens are late, {100 * target:g} % may be: asks for {need.replicas}"
    return f"{need.signal.value} {value:.4g} in all, {target:g} a replica, asks for {need.replicas}"


def _blocked(load: Load, policy: ScalingPolicy) -> Reason | None:
    """Why fewer replicas cannot be justified, or None."""
    if load.holding:
        text = f"no scale-down for {policy.unknown_hold_s:g} s while the load of {_some(load.holding)} is unknown"
        return Reason(Code.ENDPOINTS_UNKNOWN, text)
    for signal, total in load.totals.items():
        if total.unjudged:
            text = f"no scale-down: no endpoint sends {signal.value}, which its engine should"
            return Reason(Code.SIGNAL_MISSING, text, signal)
    router = load.router
    if router is not None and router.waiting is None and router.unknown_for_s < policy.unknown_hold_s:
        text = f"no scale-down for {policy.unknown_hold_s:g} s while the router's queue is unknown"
        return Reason(Code.ROUTER_QUEUE_UNKNOWN, text, Signal.WAITING)
    return None


def _window(
    window: tuple[tuple[float, int], ...], fits: int, now_s: float, policy: ScalingPolicy
) -> tuple[tuple[float, int], ...]:
    """The largest recommendation of the window stands first; entries later and not smaller replace earlier ones."""
    kept = [entry for entry in window if now_s - entry[0] < policy.scale_down_after_s and entry[1] > fits]
    return (*kept, (now_s, fits))


def _blind(
    state: PoolState,
    observations: Sequence[Observation],
    needs: Sequence[Need],
    load: Load,
    now_s: float,
    policy: ScalingPolicy,
) -> tuple[PoolState, Reason]:
    """No endpoint is known: the router's queue may ask for more; nothing asks for less."""
    asked = _strongest(needs)
    if asked is not None and (asked.replicas or 0) > (state.target or 0):
        return _up(state, asked, policy)
    if not observations:
        text = f"no endpoint is listed yet: {state.target} stays"
        return replace(state, blind_since_s=None), Reason(Code.NO_ENDPOINTS, text)
    if all(seen.knowledge in (Knowledge.PENDING, Knowledge.STUCK) for seen in observations):
        text = f"every replica is starting: {state.target} stays"
        return replace(state, blind_since_s=None), Reason(Code.PENDING_CAPACITY, text)
    since = now_s if state.blind_since_s is None else state.blind_since_s
    state = replace(state, blind_since_s=since)
    if now_s - since < policy.unknown_hold_s:
        text = f"no endpoint is known: {state.target} holds for {policy.unknown_hold_s:g} s"
        return state, Reason(Code.ALL_UNKNOWN_HOLD, text)
    to = policy.clamp(max(state.target or 0, policy.safe_replicas))
    text = f"no endpoint is known for {now_s - since:.0f} s: {to}, the larger of the last target and safe_replicas"
    return replace(state, target=to), Reason(Code.ALL_UNKNOWN_SAFE, text)


def remarks(observations: Sequence[Observation], load: Load, policy: ScalingPolicy) -> tuple[Reason, ...]:
    """What an operator should know beside the move: pending replicas, imputed load, signals that are not sent."""
    found: list[Reason] = []
    pending = [seen.url for seen in observations if seen.knowledge is Knowledge.PENDING]
    if pending:
        found.append(Reason(Code.PENDING_CAPACITY, f"{_some(pending)} starting: capacity on its way"))
    stuck = [seen.url for seen in observations if seen.knowledge is Knowledge.STUCK]
    if stuck:
        text = f"{_some(stuck)} did not come up in the time a start may take: no capacity on its way"
        found.append(Reason(Code.UNSCHEDULABLE, text))
    long_unknown = _long_unknown(observations, policy)
    if long_unknown and load.known_endpoints:
        text = f"{_some(long_unknown)} unknown for {policy.unknown_hold_s:g} s: taken to be as busy as the busiest"
        found.append(Reason(Code.ENDPOINTS_IMPUTED, text))
    for signal in Signal:
        found.extend(_signal_remarks(signal, observations))
    if load.router is not None and load.router.waiting is None:
        found.append(Reason(Code.ROUTER_QUEUE_UNKNOWN, "the router's queue is unknown and not counted", Signal.WAITING))
    return tuple(found)


def _long_unknown(observations: Sequence[Observation], policy: ScalingPolicy) -> list[str]:
    silent = (Knowledge.STALE, Knowledge.UNKNOWN)
    return [o.url for o in observations if o.knowledge in silent and o.unknown_for_s >= policy.unknown_hold_s]


def _signal_remarks(signal: Signal, observations: Sequence[Observation]) -> list[Reason]:
    fresh = [o for o in observations if o.knowledge is Knowledge.FRESH and o.reading is not None]
    missing = [o.url for o in fresh if o.reading is not None and signal in o.reading.missing]
    never = [o.url for o in fresh if o.never_sends(signal)]
    found = []
    if missing:
        text = f"{_some(missing)} should send {signal.value} and does not: its value is unknown, not zero"
        found.append(Reason(Code.SIGNAL_MISSING, text, signal))
    if never:
        text = f"{_some(never)}: this engine has no {signal.value} metric; the other signals decide"
        found.append(Reason(Code.SIGNAL_NEVER_SENT, text, signal))
    return found


def _some(names: Sequence[str]) -> str:
    """At most three names, then a count."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
