"""What a pool's live traffic shows of the time per output token, and the closed loop that a prediction is asked of.

Engines count the gaps between tokens and their seconds; the ratio of the two increases is the mean gap, whatever clock
the engine keeps. Requests in flight are weighted by the tokens they made, so that a pool that idles between bursts is
compared with what a replica does while it works. Old traffic fades with `FADE_S`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tonnage_core.autoscaling.engine_metrics import Signal
from tonnage_core.autoscaling.observation import Knowledge, Observation

FADE_S = 120.0
"""Time constant, in seconds: drift is looked for over minutes."""
LEAST_TOKENS = 200.0
LEAST_REQUESTS = 3.0
"""Fewer than these say nothing of a mean."""


@dataclass(frozen=True, slots=True)
class LiveTokens:
    """Fading sums over a pool's replicas since `at_s` was first set."""

    gap_s: float = 0.0
    """Seconds between output tokens."""
    gaps: float = 0.0
    busy: float = 0.0
    """Gaps times the requests that ran in their replica."""
    begun: float = 0.0
    prompt: float = 0.0
    found: float = 0.0
    """Prompt tokens, and those of them in a cache, of the requests begun."""
    ended: float = 0.0
    generated: float = 0.0
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """Means of the traffic lately: what a prediction of the same load is compared with."""

    token_s: float
    """Seconds per output token after the first."""
    isl: float
    prefix: float
    osl: float
    """Tokens a request: prompt, its cached part, output."""
    concurrency: int
    """Requests that ran at once in one replica."""


def follow(live: LiveTokens, seen: Sequence[Observation], now_s: float) -> LiveTokens:
    """The sums after one more look; replicas that are not fresh, or do not count gaps, add nothing."""
    elapsed = now_s - live.at_s if live.at_s is not None else 0.0
    if elapsed <= 0:
        return LiveTokens(**{**_sums(live), "at_s": now_s})
    keep = math.exp(-elapsed / FADE_S)
    sums = {name: value * keep for name, value in _sums(live).items()}
    for one in seen:
        for name, rate in _rates(one).items():
            sums[name] += rate * elapsed
    return LiveTokens(**sums, at_s=now_s)


def seen_tokens(live: LiveTokens) -> SeenTokens | None:
    """The means, or None while too little was seen."""
    if live.gaps < LEAST_TOKENS or live.begun < LEAST_REQUESTS or live.ended < LEAST_REQUESTS:
        return None
    prompt = live.prompt / live.begun
    return SeenTokens(
        token_s=live.gap_s / live.gaps,
        isl=max(1.0, prompt),
        prefix=min(live.found / live.begun, max(0.0, prompt - 1)),
        osl=max(2.0, live.generated / live.ended),
        concurrency=max(1, round(live.busy / live.gaps)),
    )


def _sums(live: LiveTokens) -> dict[str, float]:
    return {field.name: getattr(live, field.name) for field in fields(live) if field.name != "at_s"}


def _rates(one: Observation) -> dict[str, float]:
    rate = one.rates_per_s.get
    gap_s, gaps, running = rate("token_gap_seconds"), rate("token_gaps"), one.value(Signal.RUNNING)
    if one.knowledge is not Knowledge.FRESH or gap_s is None or gaps is None or running is None:
        return {}
    return {
        "gap_s": gap_s,
        "gaps": gaps,
        "busy": gaps * running,
        "begun": rate("first_tokens") or 0.0,
        "prompt": rate("prompt_tokens") or 0.0,
        "found": rate("prefix_hits") or 0.0,
        "ended": rate("finished_requests") or 0.0,
        "generated": rate("generation_tokens") or 0.0,
    }
