"""One replica in the engine model at one rate: the percentiles that decide, with queueing, batching and preemption."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tonnage_core.engine.engine import Engine
from tonnage_core.engine.errors import RequestTooLongError
from tonnage_core.engine.types import RequestTimeline
from tonnage_core.planning.candidate import Sized
from tonnage_core.planning.drafting import clock_of
from tonnage_core.planning.sampling import MEASURED, affordable, sample_for
from tonnage_core.planning.spec import Target
from tonnage_core.planning.traffic import Traffic
from tonnage_core.slo import percentile

if TYPE_CHECKING:
    from random import Random

TAIL_FROM = 90.0
"""Beyond what the sample shows, a percentile follows an exponential tail from here."""


@dataclass(frozen=True)
class Trial:
    """What came of it. Latencies are sorted, in ms; a request the engine refused misses every target."""

    rate_rps: float
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    e2e_ms: tuple[float, ...]
    refused: int
    measured: int
    met: int
    """Requests within every limit."""
    output_tok_s: float
    hit_rate: float
    busy_share: float
    preemptions: int
    tokens: float
    """Work of following it, in generated tokens."""

    @property
    def attainment(self) -> float:
        """Share of requests within every limit."""
        return self.met / self.measured if self.measured else 0.0

    @property
    def goodput_rps(self) -> float:
        """Requests a second within every limit."""
        return self.rate_rps * self.attainment

    def value_ms(self, target: Target) -> float:
        """The target's percentile, ms; infinite when refused requests alone exceed the share."""
        values: Sequence[float] = getattr(self, target.metric)
        if self.refused > (1 - target.percent / 100) * self.measured or not values:
            return math.inf
        return tail_percentile(values, target.percent)

    def broken(self, targets: Sequence[Target]) -> tuple[Target, float] | None:
        """The target missed by most, with its value; None when all are met."""
        values = [(target, self.value_ms(target)) for target in targets]
        worst = max(values, key=lambda pair: pair[1] / pair[0].limit_ms)
        return worst if worst[1] > worst[0].limit_ms else None


def tail_percentile(ordered: Sequence[float], percent: float) -> float:
    """A percentile of sorted values; where fewer than two lie beyond it, an exponential tail fitted from p90 to p99."""
    found = percentile(ordered, percent) or 0.0
    if len(ordered) * (1 - percent / 100) >= 2 or percent <= TAIL_FROM:
        return found
    known = 100 * (1 - 2 / max(4, len(ordered)))
    low, high = percentile(ordered, TAIL_FROM) or 0.0, percentile(ordered, max(known, TAIL_FROM + 1)) or 0.0
    decades = math.log((100 - TAIL_FROM) / (100 - max(known, TAIL_FROM + 1)))
    return low + (high - low) * math.log((100 - TAIL_FROM) / (100 - percent)) / decades


def run_trial(
    sized: Sized,
    traffic: Traffic,
    targets: Sequence[Target],
    *,
    rng: "Random",
    in_flight: float = 0.0,
    measured: int = MEASURED,
) -> Trial:
    """Serve requests drawn with `rng` at `traffic.rate_rps` on one replica; `in_flight` is how many the formulas expect
    at once. Raises `PlanSpecError` for more work than `sampling.MOST_TOKENS`."""
    sample = affordable(sample_for(traffic, in_flight, measured), traffic)
    # Where no two requests share a token, a prefix cache finds nothing: without it the same steps cost less to follow.
    config = replace(sized.engine_config(), enable_prefix_caching=traffic.mean_cached > 0)
    engine = Engine(config, clock_of(sized))
    ended: list[RequestTimeline] = []
    refused: set[str] = set()
    names: list[str] = []
    for at, request in traffic.draw(sample.count, rng):
        ended += engine.run_until(at)
        names.append(request.request_id)
        try:
            engine.submit(request, at)
        except RequestTooLongError:
            refused.add(request.request_id)
    ended += engine.run_until(math.inf)
    window = set(names[sample.filling : sample.filling + sample.measured])
    seen = [each for each in ended if each.request_id in window]
    return _measured(engine, traffic, targets, seen, window & refused, sample.tokens)


def _measured(
    engine: Engine,
    traffic: Traffic,
    targets: Sequence[Target],
    ended: Sequence[RequestTimeline],
    refused: set[str],
    tokens: float,
) -> Trial:
    rows = [_latencies(each) for each in ended]
    limits = {target.metric: target.limit_ms for target in sorted(targets, key=lambda each: each.percent)}
    met = sum(all(row[metric] is None or row[metric] <= limit for metric, limit in limits.items()) for row in rows)  # type: ignore[operator]
    counters = engine.counters
    first = min((each.submitted_s for each in ended), default=0.0)
    last = max((each.finished_s for each in ended), default=0.0)
    out = sum(each.output_tokens for each in ended)
    return Trial(
        rate_rps=traffic.rate_rps,
        refused=len(refused),
        measured=len(rows) + len(refused),
        met=met,
        output_tok_s=out / (last - first) if last > first else 0.0,
        hit_rate=counters.hit_tokens / counters.query_tokens if counters.query_tokens else 0.0,
        busy_share=min(1.0, counters.busy_s / engine.clock) if engine.clock else 0.0,
        preemptions=counters.preemptions,
        tokens=tokens,
        **{name: tuple(sorted(v for row in rows if (v := row[name]) is not None)) for name in _METRICS},
    )


_METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")


def _latencies(timeline: RequestTimeline) -> dict[str, float | None]:
    first, last = timeline.first_token_s, timeline.last_token_s
    if first is None or last is None:
        return dict.fromkeys(_METRICS)
    tokens = timeline.output_tokens
    return {
        "ttft_ms": (first - timeline.submitted_s) * 1e3,
        "tpot_ms": (last - first) / (tokens - 1) * 1e3 if tokens > 1 else None,
        "e2e_ms": (last - timeline.submitted_s) * 1e3,
    }
