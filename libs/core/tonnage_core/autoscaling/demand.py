"""The load that arrives, in replicas, from what engines and the router count.

Requests do not vanish: what came in an interval is what finished plus how much the requests in flight grew. That holds
while a queue builds, when throughput alone would call the load constant. Each request costs what `capacity.ReplicaCost`
says of the mix seen lately, times a correction: a replica whose queue was worth most of the interval ran full, so its
own throughput, in the model's replica-seconds a second, should have been 1; and no replica can do more than that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tonnage_core.autoscaling.capacity import ReplicaCost
from tonnage_core.autoscaling.engine_metrics import Signal
from tonnage_core.autoscaling.observation import Knowledge, Observation

MIX_S = 180.0
"""Time constant of the request mix."""
CORRECTION_S = 300.0
WARM_UP_S = 60.0
"""A replica's first minute says nothing of its speed: graphs are captured, caches are cold."""
LEAST_CORRECTION, MOST_CORRECTION = 0.4, 2.5


@dataclass(frozen=True, slots=True)
class Mix:
    """Decaying sums of what finished: requests begun, prompt tokens computed and found, requests ended, tokens out."""

    begun: float = 0.0
    computed: float = 0.0
    found: float = 0.0
    ended: float = 0.0
    generated: float = 0.0

    @property
    def prompt(self) -> float | None:
        """Mean prompt tokens computed a request; None before the first request."""
        return self.computed / self.begun if self.begun > 0 else None

    @property
    def output(self) -> float | None:
        """Mean tokens generated a request; None before the first request ended."""
        return self.generated / self.ended if self.ended > 0 else None


@dataclass(frozen=True, slots=True)
class DemandState:
    """What the next measurement must remember."""

    at_s: float | None = None
    in_flight: float = 0.0
    mix: Mix = field(default_factory=Mix)
    correction: float = 1.0
    """Replica-seconds really taken over those the model gives."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of one interval."""

    arrivals_rps: float
    load: float
    """Replicas kept full by what arrives."""
    backlog_s: float
    """Replica-seconds of requests that wait."""
    request_s: float
    """Replica-seconds of one mean request, corrected."""
    prefill_s: float
    """Of its prompt alone: what a request that waits stands for to those behind it."""
    prompt: float
    output: float


def measure(
    state: DemandState,
    seen: Sequence[Observation],
    router_waiting: float | None,
    now_s: float,
    cost: ReplicaCost,
) -> tuple[DemandState, Demand | None]:
    """The demand since the last call; None when some replica is unknown, no request was seen yet, or time stood still.

    An interval with an unknown replica is skipped: its requests are neither counted as gone nor as come.
    """
    serving = [one for one in seen if one.knowledge not in (Knowledge.PENDING, Knowledge.STUCK)]
    if any(one.knowledge is not Knowledge.FRESH for one in serving):
        return replace(state, at_s=None), None
    in_flight = _in_flight(serving, router_waiting)
    if in_flight is None:
        return replace(state, at_s=None), None
    elapsed = now_s - state.at_s if state.at_s is not None else 0.0
    after = replace(state, at_s=now_s, in_flight=in_flight)
    if elapsed <= 0:
        return after, None
    mix = _mixed(state.mix, serving, elapsed)
    prompt, output = mix.prompt, mix.output
    after = replace(after, mix=mix)
    if prompt is None or output is None:
        return after, None
    correction = _corrected(state.correction, serving, cost, mix, elapsed)
    ended = sum(one.rates_per_s.get("finished_requests") or 0.0 for one in serving)
    arrivals = max(0.0, ended + (in_flight - state.in_flight) / elapsed)
    request_s = cost.request_s(prompt, output) * correction
    waiting = sum(one.value(Signal.WAITING) or 0.0 for one in serving) + (router_waiting or 0.0)
    demand = Demand(
        arrivals_rps=arrivals,
        load=arrivals * request_s,
        backlog_s=waiting * request_s,
        request_s=request_s,
        prefill_s=cost.prefill_s(prompt) * correction,
        prompt=prompt,
        output=output,
    )
    return replace(after, correction=correction), demand


def _in_flight(serving: Sequence[Observation], router_waiting: float | None) -> float | None:
    """Requests in the pool; None when an engine does not say."""
    total = router_waiting or 0.0
    for one in serving:
        running, waiting = one.value(Signal.RUNNING), one.value(Signal.WAITING)
        if running is None or waiting is None:
            return None
        total += running + waiting
    return total


def _mixed(mix: Mix, serving: Sequence[Observation], elapsed_s: float) -> Mix:
    keep = math.exp(-elapsed_s / MIX_S)
    prompt = _counted(serving, "prompt_tokens", elapsed_s)
    found = min(prompt, _counted(serving, "prefix_hits", elapsed_s))
    ended = _counted(serving, "finished_requests", elapsed_s)
    begun = sum(_begun_rate(one) for one in serving) * elapsed_s
    return Mix(
        begun=mix.begun * keep + begun,
        computed=mix.computed * keep + prompt - found,
        found=mix.found * keep + found,
        ended=mix.ended * keep + ended,
        generated=mix.generated * keep + _counted(serving, "generation_tokens", elapsed_s),
    )


def _begun_rate(one: Observation) -> float:
    """First tokens a second; an engine that does not count them is taken to begin what it ends."""
    first = one.rates_per_s.get("first_tokens")
    return first if first is not None else one.rates_per_s.get("finished_requests") or 0.0


def _counted(serving: Sequence[Observation], counter: str, elapsed_s: float) -> float:
    return sum(one.rates_per_s.get(counter) or 0.0 for one in serving) * elapsed_s


def _corrected(before: float, serving: Sequence[Observation], cost: ReplicaCost, mix: Mix, elapsed_s: float) -> float:
    """The correction after looking at the replicas that surely ran full, and at those that did more than a full one."""
    ratios = [ratio for one in serving if (ratio := _full_ratio(one, cost, mix, before, elapsed_s)) is not None]
    if not ratios:
        return before
    seen = sum(ratios) / len(ratios)
    share = 1 - math.exp(-elapsed_s / CORRECTION_S)
    return min(MOST_CORRECTION, max(LEAST_CORRECTION, before + share * (seen - before)))


SURELY_FULL = 0.5
"""Share of the interval that the queue at its start must have been worth."""


def _full_ratio(one: Observation, cost: ReplicaCost, mix: Mix, correction: float, elapsed_s: float) -> float | None:
    """Seconds really taken over the model's, of a warm replica that ran full or did more than that; else None."""
    if one.serving_for_s < WARM_UP_S:
        return None
    prompt, output = mix.prompt or 0.0, mix.output or 0.0
    tokens = (one.rates_per_s.get("prompt_tokens") or 0.0) - (one.rates_per_s.get("prefix_hits") or 0.0)
    out = one.rates_per_s.get("generation_tokens") or 0.0
    modelled = tokens * (cost.token_s + prompt / 2 * cost.pair_s)
    modelled += out * (cost.token_s + (prompt + output / 2) * cost.kv_s)
    modelled /= one.speed
    if modelled <= 0.05:
        return None
    queued_s = one.queued_before * cost.prefill_s(prompt) * correction
    full = queued_s >= SURELY_FULL * elapsed_s and bool(one.value(Signal.WAITING))
    return 1 / modelled if full or modelled * correction > 1 else None
