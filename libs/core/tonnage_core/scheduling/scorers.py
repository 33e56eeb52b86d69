"""Scorers: how good each candidate is for a request. Higher is better; a name in `SCORERS` makes one usable.

A scorer of unit `tokens` returns negative token counts, and all such scorers share one scale, so that a cached token
and a token of load weigh the same. A scorer of unit `share` returns values in [0, 1]; unknown is `NEUTRAL`. None says
that the scorer has no opinion on this request: all candidates would get the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from tonnage_core.scheduling.answers import PATIENCE, prompt_work
from tonnage_core.scheduling.types import DECODE_WEIGHT, Candidate, SchedulingRequest

NEUTRAL: Final = 0.5
KV_MARGIN: Final = 0.2
"""Share of KV blocks, the last ones, over which a candidate loses its score."""
HELD_UP_WEIGHT: Final = 0.125
"""What a request in flight loses by a prompt token computed before its next token, against one waiting for its first.

The wait of a first token is held against seconds (2 s in the usual SLO), a decoding request's against its whole answer:
343 tokens, as Mooncake's have in the mean, at 50 ms each are 17 s.
"""
SPOILT_TOKENS: Final = 30_000.0
"""What one more answer beyond its TPOT limit weighs, in tokens of load: it wastes what could be served instead.

A Mooncake request takes 0.64 s of an H200 with Llama-3.1-8B, in which it computes 27,000 prompt tokens. In simulation
(benchmarks/results/2026-11-30-router-spoilt-answers.json) attainment at 0.85 of capacity rises from 0.930 to 0.966 by
it; 60,000 does the same there and costs hits, and so attainment, in an overloaded fleet.
"""
Scores = list[float] | None


@dataclass(frozen=True, slots=True)
class Scorer:
    """`score(request, candidates)` gives one value a candidate, in `unit`."""

    name: str
    unit: Literal["tokens", "share"]
    score: Callable[[SchedulingRequest, list[Candidate]], Scores]
    in_tokens: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_tokens", self.unit == "tokens")


def uncached_prefix(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """Minus the prompt tokens the candidate would have to compute."""
    matched, prompt = request.matched, request.prompt_tokens
    if not matched:
        return None
    return [float(min(matched.get(c.slot, 0), prompt) - prompt) for c in candidates]


def token_load(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """Minus the work in flight on the candidate, stretched by its known slowness: time to wait, in fast tokens."""
    return [
        -(c.prefill_tokens + DECODE_WEIGHT * c.decode_tokens) / (c.gpu_speed or 1.0)  # unknown speed: full speed
        for c in candidates
    ]


def prefill_interference(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """Minus the prompt tokens to compute for each request in flight there, which all wait while they are computed.

    Prefill stretches every decoding step it rides in (the LLM inference guide's prefill-decode interference). So a long
    uncached prompt goes where few are decoding, and the many short ones keep away from it.
    """
    matched, prompt = request.matched, request.prompt_tokens
    return [
        (min(matched.get(c.slot, 0), prompt) - prompt) * HELD_UP_WEIGHT * c.requests / (c.gpu_speed or 1.0)
        for c in candidates
    ]


def spoilt_answers(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """Minus `SPOILT_TOKENS` for each answer in flight that the prompt would make too slow.

    Short answers stand little: 40,000 tokens of prompt, computed in five steps, break every answer of 6 to 27 tokens. A
    prompt shorter than what one token can wait for is left to the other scorers.
    """
    if request.prompt_tokens <= PATIENCE:
        return None
    return [-SPOILT_TOKENS * answers_spoilt(request, c) for c in candidates]


def answers_spoilt(request: SchedulingRequest, candidate: Candidate) -> int:
    """How many answers in flight on `candidate` the prompt would make too slow."""
    cached = min(request.matched.get(candidate.slot, 0), request.prompt_tokens)
    work = prompt_work(request.prompt_tokens - cached, cached) / (candidate.gpu_speed or 1.0)
    return candidate.answers.spoilt_by(int(work))


def requests_in_flight(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """1 for an idle candidate, falling with its own count of requests."""
    return [1.0 / (1 + c.requests) for c in candidates]


def kv_utilisation(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """1 while KV blocks are free, falling to 0 over the last `KV_MARGIN` of them.

    A cache half full costs nothing, and a gauge is as old as its poll; only preemption, near the end, is to be avoided.
    """
    values = [c.kv_utilisation for c in candidates]
    known = [value for value in values if value is not None]
    if not known or (len(known) == len(values) and max(known) <= 1.0 - KV_MARGIN):
        return None
    return [NEUTRAL if value is None else min(1.0, (1.0 - value) / KV_MARGIN) for value in values]


def queue(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """1 for an empty engine queue, falling with its length."""
    return [NEUTRAL if c.waiting is None else 1.0 / (1 + c.waiting) for c in candidates]


def adapter(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """1 where the adapter is resident, 0.6 where there is a free slot, 0 where one must be evicted."""
    name = request.adapter
    if name is None:
        return None
    return [_adapter_score(c, name) for c in candidates]


def _adapter_score(candidate: Candidate, name: str) -> float:
    if name in candidate.adapters:
        return 1.0
    if candidate.adapter_slots is None:
        return NEUTRAL
    return 0.6 if len(candidate.adapters) < candidate.adapter_slots else 0.0


def gpu_speed(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """Measured speed relative to the fleet's best."""
    for c in candidates:
        if c.gpu_speed is not None:
            return [NEUTRAL if c.gpu_speed is None else c.gpu_speed for c in candidates]
    return None


def cost(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """1 for free, 0.5 at price 1, falling with the price."""
    return [NEUTRAL if c.cost is None else 1.0 / (1.0 + c.cost) for c in candidates]


def pressure(request: SchedulingRequest, candidates: list[Candidate]) -> Scores:
    """1 where nothing was refused lately."""
    return [1.0 - c.pressure for c in candidates]


SCORERS: dict[str, Scorer] = {
    s.name: s
    for s in (
        Scorer("uncached_prefix", "tokens", uncached_prefix),
        Scorer("token_load", "tokens", token_load),
        Scorer("prefill_interference", "tokens", prefill_interference),
        Scorer("spoilt_answers", "tokens", spoilt_answers),
        Scorer("requests_in_flight", "share", requests_in_flight),
        Scorer("kv_utilisation", "share", kv_utilisation),
        Scorer("queue", "share", queue),
        Scorer("adapter", "share", adapter),
        Scorer("gpu_speed", "share", gpu_speed),
        Scorer("cost", "share", cost),
        Scorer("pressure", "share", pressure),
    )
}
