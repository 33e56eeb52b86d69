"""The open-loop steady state by formula: what rate a replica carries within the SLO, to rank before the engine model.

With B requests generating, B / out of them end and as many prompts come in every step, so a step takes, on average,
decode(B) + B / out x D(B), where D is what a prompt adds to the steps it is spread over, and the rate is
B / (out x step) by Little's law. Numbers in flight vary like a Poisson count, so a percentile of TPOT is the step at
B + z sqrt(B). TTFT is the prompt's own time after half a step and a wait for the prompts before it (two-moment queue).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from tonnage_core.engine.batch import Batch, StepClock
from tonnage_core.planning.candidate import Sized
from tonnage_core.planning.drafting import clock_of
from tonnage_core.planning.spec import Target
from tonnage_core.planning.traffic import Traffic
from tonnage_core.queueing import gg1_wait, wait_percentile

BUSIEST = 0.97
"""Share of time that prompts may take."""
FEWEST_ROWS = 1e-3
_HALVINGS = 14


@dataclass(frozen=True, slots=True)
class Point:
    """A replica at one load: seconds, requests a second, rows that generate at once."""

    rows: float
    rate_rps: float
    step_s: float
    prompt_s: float
    prompt_share: float


@dataclass(frozen=True, slots=True)
class Bound:
    """How far the formulas let a replica go: at `point`, `binding` is what ends it (a target's name, kv_cache, …)."""

    point: Point | None
    binding: str
    reason: str


@dataclass(frozen=True)
class Steady:
    """One replica under one traffic."""

    sized: Sized
    traffic: Traffic
    clock: StepClock

    @property
    def context(self) -> float:
        """Mean tokens a generating request holds."""
        return self.traffic.mean_input + self.traffic.outputs.mean / 2

    def decode_s(self, rows: float) -> float:
        """One token for each of `rows`: between whole numbers of rows, linear."""
        below = max(1, math.floor(rows))
        first = self._decode(below)
        return first if rows <= 1 else first + (rows - below) * (self._decode(below + 1) - first)

    def _decode(self, rows: int) -> float:
        return self.clock.seconds(Batch(decode_rows=rows, decode_context=round(rows * self.context), sampled_rows=rows))

    def prompt_s(self, tokens: float, cached: float, rows: float) -> float:
        """What a prompt adds to the steps it is spread over, beside `rows` that generate."""
        beside = max(0, round(rows))
        room, left, before, total = max(1, self.sized.budget - beside), round(tokens - cached), round(cached), 0.0
        idle = self._decode(beside) if beside else 0.0
        while left > 0:
            chunk = min(room, left)
            batch = Batch(decode_rows=beside, decode_context=round(beside * self.context), sampled_rows=beside + 1)
            batch.add_prefill(chunk, before, 0)
            total += self.clock.seconds(batch) - idle
            before, left = before + chunk, left - chunk
        return total

    def at(self, rows: float) -> Point:
        """The load at which `rows` requests generate at once on average."""
        traffic = self.traffic
        out = max(1.0, traffic.outputs.mean)
        prompt = self.prompt_s(traffic.mean_input, traffic.mean_cached, rows)
        step = self.decode_s(rows) + rows / out * prompt
        rate = rows / (out * step)
        return Point(rows, rate, step, prompt, rate * prompt)

    def carrying(self, rate: float) -> Point:
        """The load at which the replica gets `rate` requests a second, at most that of a full batch."""
        low, high = FEWEST_ROWS, float(self.sized.rows)
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.at(middle).rate_rps < rate else (low, middle)
        return self.at(low)

    def value_ms(self, target: Target, point: Point) -> float:
        """The target's percentile at a load, ms; infinite beyond saturation."""
        if target.metric == "tpot_ms":
            return self.tpot_s(point, target.percent) * 1e3
        ttft = self.ttft_s(point, target.percent)
        if target.metric == "ttft_ms":
            return ttft * 1e3
        return (ttft + self.traffic.outputs.percentile(target.percent) * point.step_s) * 1e3

    def tpot_s(self, point: Point, percent: float) -> float:
        """Percentile of the mean time between a request's tokens."""
        spread = NormalDist().inv_cdf(percent / 100) * math.sqrt(point.rows)
        rows = max(FEWEST_ROWS, point.rows + spread)
        return self.decode_s(rows) + rows / max(1.0, self.traffic.outputs.mean) * point.prompt_s

    def ttft_s(self, point: Point, percent: float) -> float:
        """Percentile of TTFT: either a long prompt after a mean wait or a mean prompt after a long wait."""
        if point.prompt_share >= BUSIEST:
            return math.inf
        traffic, rows = self.traffic, point.rows
        wait = gg1_wait(point.prompt_s, traffic.inputs.cv, traffic.arrival_cv, point.prompt_share)
        ahead = wait_percentile(wait, point.prompt_share, percent)
        prefix = traffic.prefix.tokens if traffic.prefix else 0
        long = self.prompt_s(traffic.inputs.percentile(percent) + prefix, min(prefix, traffic.mean_cached), rows)
        steps = self.decode_s(rows) * 1.5
        return steps + max(long + wait, point.prompt_s + ahead)

    def most(self, targets: Sequence[Target]) -> Bound:
        """The largest load within every target, the pool and the batch."""
        held = self.sized.pool_tokens / self.context
        top = min(float(self.sized.rows), held)
        if top < 1:
            return Bound(None, "kv_cache", f"the pool of {self.sized.pool_tokens:,} tokens holds no request")
        if (broken := self._broken(targets, self.at(FEWEST_ROWS))) is not None:
            target, value = broken
            return Bound(
                None,
                target.name,
                f"{target.name} is {value:,.0f} ms on an idle replica, above the limit of {target.limit_ms:g} ms",
            )
        if self._broken(targets, point := self.at(top)) is None:
            name = "kv_cache" if held < self.sized.rows else "max_num_seqs"
            return Bound(
                point, name, f"{top:,.0f} requests at once fill the {'pool' if name == 'kv_cache' else 'batch'}"
            )
        low, high = FEWEST_ROWS, top
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._broken(targets, self.at(middle)) else (middle, high)
        broken = self._broken(targets, self.at(high))
        name = broken[0].name if broken else targets[0].name
        return Bound(self.at(low), name, f"{name} reaches its limit at {low:.1f} requests at once")

    def _broken(self, targets: Sequence[Target], point: Point) -> tuple[Target, float] | None:
        """The target that the load breaks by most, with its value."""
        values = [(target, self.value_ms(target, point)) for target in targets]
        worst = max(values, key=lambda pair: pair[1] / pair[0].limit_ms)
        return worst if worst[1] > worst[0].limit_ms else None


def steady_of(sized: Sized, traffic: Traffic) -> Steady:
    """The formulas for one configuration."""
    return Steady(sized, traffic, clock_of(sized))
