"""Admission by predicted TTFT: a request whose first token would come after its SLO on every endpoint is told when to
come back, rather than served too late.

A first token comes when the prompts ahead and the request's own uncached tokens are computed: tokens over the pace at
which an endpoint computes them. Work in flight drains at that pace, so a prediction that is late by some seconds is in
time again after as many: that is the Retry-After.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median


class Reach(StrEnum):
    """Whether the SLO can be met."""

    IN_TIME = "in_time"
    LATE = "ttft_over_slo"
    UNKNOWN = "pace_unknown"


@dataclass(frozen=True, slots=True)
class Forecast:
    """A request's first token on one endpoint. `tokens_per_s` None is unknown; `queued_s` is the wait that it still has
    before it is sent anywhere, `waited_s` what it has waited already."""

    endpoint: str
    ahead_tokens: int
    uncached_tokens: int
    tokens_per_s: float | None
    queued_s: float = 0.0
    waited_s: float = 0.0

    @property
    def compute_s(self) -> float | None:
        """Seconds of the request's own prefill."""
        return None if self.tokens_per_s is None else self.uncached_tokens / self.tokens_per_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request's arrival to its first token."""
        if self.tokens_per_s is None:
            return None
        return self.waited_s + self.queued_s + (self.ahead_tokens + self.uncached_tokens) / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class TtftVerdict:
    """What was predicted, and what follows. `best` is the earliest of `forecasts`, None where no pace is known."""

    reach: Reach
    limit_s: float
    forecasts: tuple[Forecast, ...]
    best: Forecast | None = None
    retry_after_s: int | None = None

    @property
    def admitted(self) -> bool:
        """Whether the request may go on: what is unknown refuses nobody."""
        return self.reach is not Reach.LATE


def judge(forecasts: Sequence[Forecast], limit_s: float) -> TtftVerdict:
    """Whether any of `forecasts` is within `limit_s`. The wait for others is held against a request, never the length
    of its own prompt nor the time it has spent here: one that takes longer than the limit by itself is in time where
    nothing is ahead of it. An endpoint whose pace is unknown may be in time, so it refuses nobody."""
    found = tuple(forecasts)
    known = [(f.ttft_s, f.compute_s, f) for f in found]
    sure = [
        (ttft, ttft - max(limit_s, f.waited_s + own), f)
        for ttft, own, f in known
        if ttft is not None and own is not None
    ]
    best = min(sure, key=lambda row: row[0])[2] if sure else None
    if any(late <= 0 for _, late, _ in sure):
        return TtftVerdict(Reach.IN_TIME, limit_s, found, best)
    if not sure or len(sure) < len(found):
        return TtftVerdict(Reach.UNKNOWN, limit_s, found, best)
    late_s = min(late for _, late, _ in sure)
    return TtftVerdict(Reach.LATE, limit_s, found, best, max(1, math.ceil(late_s)))


def paces(measured: Mapping[str, float], speeds: Mapping[str, float | None]) -> dict[str, float | None]:
    """Prompt tokens a second of every endpoint in `speeds` (relative GPU speed, None unknown): as `measured`, else the
    measured ones' carried over by the GPUs' relative speeds, else None."""
    rates = [rate / speed for name, rate in measured.items() if (speed := speeds.get(name))]
    full = median(rates) if rates else None
    return {
        name: measured.get(name) or (full * speed if full is not None and speed else None)
        for name, speed in speeds.items()
    }
