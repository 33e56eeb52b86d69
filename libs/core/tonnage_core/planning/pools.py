"""Pools of one kind of work: prefill apart from decode, long prompts apart from short ones, with their numbers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tonnage_core.disaggregation import Handover, handover, kv_bytes, shortest_paying_prompt, transfer_s
from tonnage_core.planning.advice import Advice, ranked
from tonnage_core.planning.candidate import Refused, size
from tonnage_core.planning.evaluate import Checked, fewest, load_of, steady
from tonnage_core.planning.search import Found
from tonnage_core.planning.spec import PlanSpec
from tonnage_core.planning.steady import Point, Steady
from tonnage_core.queueing import gg1_wait, wait_percentile

LONG_PROMPT = 8192
"""Prompts from here on are long, as the router's length classes have it."""
MOST_PREFILL_SHARE = 0.8


def pool_advice(found: Found) -> Iterator[Advice]:
    """Whether separate pools would be cheaper than the winner."""
    best = found.best
    if best is None or best.replicas is None:
        return
    formulas = steady(found.spec, best.ranked)
    point = formulas.carrying(load_of(found.spec, best.replicas))
    yield _disaggregation(found.spec, best, formulas, point)
    yield from _pools(found, best)


def _disaggregation(spec: PlanSpec, best: Checked, formulas: Steady, point: Point) -> Advice:
    """Separate prefill and decode pools of the same replicas, by formula, and the rule for a single request."""
    token_s = point.prompt_s / max(1.0, spec.traffic.mean_input - spec.traffic.mean_cached)
    held = best.ranked.sized.model.operators.cache_bytes_per_token * best.config.layout.tp
    shortest = shortest_paying_prompt(point.rows, token_s, held, spec.link_gbps)
    mean = round(spec.traffic.mean_input - spec.traffic.mean_cached)
    verdict = handover(
        Handover(round(spec.traffic.mean_input), mean, mean, round(point.rows, 1), token_s, held, spec.link_gbps)
    )
    prefill, decode = _split(spec, formulas, held)
    aggregated = best.replicas or 1
    numbers: dict[str, Any] = {
        "prefill_replicas": prefill,
        "decode_replicas": decode,
        "aggregated_replicas": aggregated,
        "link_gbps": spec.link_gbps,
        "kv_bytes_per_token": held,
        "shortest_paying_prompt": shortest,
        "handover": {"pays": verdict.pays, "transfer_ms": round(verdict.transfer_s * 1e3, 3), "reason": verdict.reason},
    }
    if prefill is None or decode is None:
        return Advice("disaggregation", "separate pools do not meet the SLO by formula at any size", numbers)
    ratio = (prefill + decode) / aggregated
    word = "pays" if ratio < 1 else "does not pay"
    text = (
        f"{word}: {prefill} prefill and {decode} decode replicas by formula, which is hopeful, against {aggregated} "
        "that do both in the engine model; a single "
        + (
            f"prompt is worth moving from {shortest:,} uncached tokens on"
            if shortest
            else "prompt is never worth moving"
        )
    )
    return Advice("disaggregation", text, numbers, 1 - ratio)


def _split(spec: PlanSpec, formulas: Steady, held: float) -> tuple[int | None, int | None]:
    """Fewest prefill and decode replicas that meet the TTFT and TPOT targets each on their own."""
    traffic, rate = spec.traffic, spec.traffic.rate_rps / (1 - spec.headroom)
    prompt = formulas.prompt_s(traffic.mean_input, traffic.mean_cached, 0)
    move = transfer_s(kv_bytes(round(traffic.mean_input - traffic.mean_cached), held), spec.link_gbps, 0.001)
    prefill = next((n for n in _counts(rate * prompt) if _prefill_meets(spec, formulas, prompt, rate / n, move)), None)
    pure = replace(formulas, traffic=replace(traffic, requests=(), hit_share=0.0))
    low, high = 1e-3, min(float(formulas.sized.rows), formulas.sized.pool_tokens / formulas.context)
    targets = [target for target in spec.call_targets if target.metric == "tpot_ms"]
    out = max(1.0, traffic.outputs.mean)

    def decodes(rows: float) -> Point:
        step = pure.decode_s(rows)
        return Point(rows, rows / (out * step), step, 0.0, 0.0)

    if any(pure.tpot_s(decodes(low), target.percent) * 1e3 > target.limit_ms for target in targets):
        return prefill, None
    for _ in range(20):
        middle = math.sqrt(low * high)
        over = any(pure.tpot_s(decodes(middle), target.percent) * 1e3 > target.limit_ms for target in targets)
        low, high = (low, middle) if over else (middle, high)
    return prefill, fewest(spec, decodes(low).rate_rps)


def _counts(least: float) -> Sequence[int]:
    first = max(1, math.ceil(least))
    return range(first, first * 4 + 4)


def _prefill_meets(spec: PlanSpec, formulas: Steady, prompt: float, rate: float, move: float) -> bool:
    busy = rate * prompt
    if busy >= MOST_PREFILL_SHARE:
        return False
    wait = gg1_wait(prompt, spec.traffic.inputs.cv, spec.traffic.arrival_cv, busy)
    for target in spec.call_targets:
        if target.metric != "ttft_ms":
            continue
        long = formulas.prompt_s(spec.traffic.inputs.percentile(target.percent), 0, 0)
        value = move + max(long + wait, prompt + wait_percentile(wait, busy, target.percent))
        if value * 1e3 > target.limit_ms:
            return False
    return True


def _pools(found: Found, best: Checked) -> Iterator[Advice]:
    """Short and long prompts on replicas of their own, by formula, on the winner's GPU."""
    spec = found.spec
    short, share = spec.traffic.inputs.between(0, LONG_PROMPT)
    long, _ = spec.traffic.inputs.between(LONG_PROMPT, 1 << 62)
    if short is None or long is None or spec.traffic.requests:
        return
    parts = []
    for lengths, part in ((short, share), (long, 1 - share)):
        traffic = replace(spec.traffic, inputs=lengths, rate_rps=spec.traffic.rate_rps * part)
        result = ranked(replace(spec, traffic=traffic), size(replace(spec, traffic=traffic), best.config))
        if isinstance(result, Refused):
            yield Advice(
                "length_classes", f"a pool for itself does not meet the SLO: {result.reason}", {"boundary": LONG_PROMPT}
            )
            return
        parts.append(result)
    both, one = sum(part.usd_per_hour for part in parts), best.ranked.usd_per_hour
    counts = [part.replicas for part in parts]
    word = "saves" if both < one else "costs"
    text = (
        f"{counts[0]} replicas for prompts under {LONG_PROMPT:,} tokens and {counts[1]} for the rest {word} "
        f"{abs(both / one - 1):.0%} against {best.ranked.replicas} for all, by formula"
    )
    numbers = {
        "boundary": LONG_PROMPT,
        "short_replicas": counts[0],
        "long_replicas": counts[1],
        "short_share": round(share, 4),
    }
    yield Advice("length_classes", text, numbers, 1 - both / one)
