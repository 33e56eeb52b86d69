"""What a run of requests amounts to: percentiles, SLO attainment, goodput, prefix hits; the report's shared part.

Latencies count from the *intended* instant of a request, the one its schedule named, so that a client or server that
falls behind cannot hide it (coordinated omission). Times enter in wall seconds and leave as engine milliseconds: wall
time x `time_scale`, the factor a simulated engine's clock runs faster by (1 for a real engine).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

OK = "ok"
SHORT_BELOW, MEDIUM_BELOW = 1024, 8192
"""Prompt tokens: a short prompt has fewer than 1k, a medium one fewer than 8k, a long one the rest."""
CLASSES = ("short", "medium", "long")


class Verdict(StrEnum):
    """How one answered request stands to its SLO."""

    MET = "met"
    LATE = "late"
    """The first token came after its limit."""
    SLOW = "slow"
    """The tokens after it took longer than theirs."""
    FAILED = "failed"
    """There was no whole answer, by no fault of the client."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits a request meets or not, in engine ms; `percentile` is the share of requests, in %, that should.

    `ttft_ms_per_prompt_token` widens the TTFT limit with the prompt: a long one takes longer to compute on any engine.
    """

    ttft_ms: float = 2000.0
    tpot_ms: float = 50.0
    percentile: float = 99.0
    ttft_ms_per_prompt_token: float = 0.0

    def ttft_limit_ms(self, prompt_tokens: int) -> float:
        """The TTFT limit of a prompt of this many tokens."""
        return self.ttft_ms + self.ttft_ms_per_prompt_token * prompt_tokens

    def judge(self, ttft_s: float | None, e2e_s: float, output_tokens: int | None, prompt_tokens: int = 0) -> Verdict:
        """The verdict on a whole answer that took `e2e_s` seconds.

        `ttft_s` is None for an answer that came in one piece: it then has the time that both limits together give its
        tokens, and is `slow` beyond it. Unknown output tokens leave the time after the first token unjudged.
        """
        limit_s = self.ttft_limit_ms(prompt_tokens) / 1e3
        later = max(0, (output_tokens or 0) - 1)
        if ttft_s is not None and ttft_s > limit_s:
            return Verdict.LATE
        if ttft_s is None:
            return Verdict.MET if e2e_s <= limit_s + later * self.tpot_ms / 1e3 else Verdict.SLOW
        return Verdict.SLOW if later and (e2e_s - ttft_s) / later > self.tpot_ms / 1e3 else Verdict.MET

    def document(self) -> dict[str, float]:
        """The report's `slo`."""
        limits = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "percentile": self.percentile}
        if self.ttft_ms_per_prompt_token:
            limits["ttft_ms_per_prompt_token"] = self.ttft_ms_per_prompt_token
        return limits


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as measured, in wall seconds from the run's start. None is unknown, never zero.

    `dispatched_s` is when the generator took it up, `sent_s` when its bytes were written, `first_s` and `last_s` when
    its first and last token came, `gaps_s` the times between successive token events. `outcome` is "ok" or the kind of
    error. `cached_tokens` are the prompt tokens the engine says it took from its prefix cache.
    """

    index: int
    prompt_tokens: int
    intended_s: float
    dispatched_s: float | None = None
    sent_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    gaps_s: Sequence[float] = ()
    output_tokens: int | None = None
    cached_tokens: int | None = None
    outcome: str = OK

    @property
    def ok(self) -> bool:
        """The request ended as it should."""
        return self.outcome == OK

    @property
    def ttft_s(self) -> float | None:
        """From the intended instant to the first token."""
        return None if self.first_s is None else self.first_s - self.intended_s

    @property
    def e2e_s(self) -> float | None:
        """From the intended instant to the last token."""
        return None if self.last_s is None else self.last_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for fewer than two tokens."""
        if self.first_s is None or self.last_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    @property
    def lateness_s(self) -> float | None:
        """How long after the intended instant the generator took the request up: its own delay, not the server's."""
        return None if self.dispatched_s is None else self.dispatched_s - self.intended_s

    @property
    def length_class(self) -> str:
        """short, medium or long, by prompt tokens."""
        return CLASSES[(self.prompt_tokens >= SHORT_BELOW) + (self.prompt_tokens >= MEDIUM_BELOW)]

    def meets(self, slo: Slo, time_scale: float = 1.0) -> bool:
        """It ended well, with TTFT within the limit and TPOT, where it has one, as well.

        Of uncounted tokens the time between events is judged in TPOT's place.
        """
        limit = slo.ttft_limit_ms(self.prompt_tokens)
        if not self.ok or self.ttft_s is None or self.ttft_s * time_scale * 1e3 > limit:
            return False
        tpot_s = self.tpot_s if self.output_tokens is not None else self._tpot_at_most_s
        return tpot_s is None or tpot_s * time_scale * 1e3 <= slo.tpot_ms

    @property
    def _tpot_at_most_s(self) -> float | None:
        """Mean time between token events: where the server does not count its tokens, TPOT is no more than that."""
        return math.fsum(self.gaps_s) / len(self.gaps_s) if self.gaps_s else None


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The `percent`-th percentile (0..100) of sorted values, linear between neighbours; None when there is none."""
    if not ordered:
        return None
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def distribution_ms(values_s: Iterable[float | None], time_scale: float = 1.0) -> dict[str, float | None]:
    """p50, p90, p99 and mean in engine ms of wall seconds, unknown values left out; all None when nothing is left."""
    ordered = sorted(value for value in values_s if value is not None)
    factor = time_scale * 1e3
    found: dict[str, float | None] = {}
    for name, percent in (("p50", 50.0), ("p90", 90.0), ("p99", 99.0)):
        value = percentile(ordered, percent)
        found[name] = None if value is None else _rounded(value * factor)
    found["mean"] = _rounded(math.fsum(ordered) / len(ordered) * factor) if ordered else None
    return found


def summarise(
    records: Sequence[RequestRecord], slo: Slo, *, time_scale: float = 1.0, duration_s: float | None = None
) -> dict[str, Any]:
    """The part of the report that follows from the records alone.

    `duration_s` is the run's length in wall seconds, by default from the first intended instant to the last event.
    Latencies are of requests that ended well; attainment is of all requests, one that failed having missed.
    """
    good = [record for record in records if record.ok]
    wall_s = span_s(records) if duration_s is None else duration_s
    engine_s = None if wall_s is None else wall_s * time_scale
    met = sum(record.meets(slo, time_scale) for record in records)
    errors = Counter(record.outcome for record in records if not record.ok)
    return {
        "requests": {"sent": len(records), "ok": len(good), "errors": len(records) - len(good)},
        "errors_by_kind": dict(sorted(errors.items())),
        "ttft_ms": distribution_ms((r.ttft_s for r in good), time_scale),
        "tpot_ms": distribution_ms((r.tpot_s for r in good), time_scale),
        "itl_ms": distribution_ms(chain.from_iterable(r.gaps_s for r in good), time_scale),
        "e2e_ms": distribution_ms((r.e2e_s for r in good), time_scale),
        "classes": {name: _class(good, name, time_scale) for name in CLASSES},
        "slo": slo.document(),
        "slo_attainment": _rounded(met / len(records), 6) if records else None,
        "goodput_rps": _rounded(met / engine_s, 6) if engine_s else None,
        "prefix": prefix(good),
        "output_tokens": _sum_known(record.output_tokens for record in good),
        "duration_s": None if engine_s is None else _rounded(engine_s, 6),
    }


def prefix(records: Sequence[RequestRecord]) -> dict[str, int | float | None]:
    """Prompt tokens, those the engines' caches served, and their ratio.

    An engine that reports cached tokens leaves the field out for a request without any (vLLM does), so unknown counts
    as none once any request of the run has the field; if none has, the hits are unknown.
    """
    prompt = sum(record.prompt_tokens for record in records)
    hits = _sum_known(record.cached_tokens for record in records)
    rate = None if hits is None or prompt == 0 else _rounded(hits / prompt, 6)
    return {"prompt_tokens": prompt, "hit_tokens": hits, "hit_rate": rate, "ceiling_hit_rate": None}


def span_s(records: Sequence[RequestRecord]) -> float | None:
    """Wall seconds from the first intended instant to the last thing that happened; None without records."""
    if not records:
        return None
    start = min(record.intended_s for record in records)
    ends = (t for r in records for t in (r.last_s, r.first_s, r.sent_s, r.intended_s) if t is not None)
    return max(ends) - start


def _class(records: Sequence[RequestRecord], name: str, time_scale: float) -> dict[str, Any]:
    chosen = [record for record in records if record.length_class == name]
    return {
        "requests": len(chosen),
        "ttft_ms": distribution_ms((r.ttft_s for r in chosen), time_scale),
        "tpot_ms": distribution_ms((r.tpot_s for r in chosen), time_scale),
    }


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rounded(value: float, digits: int = 4) -> float:
    return round(value, digits)
