"""What else could be done with the winner, each with its numbers: formats, layouts, batch limits, drafts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tonnage_core.planning.candidate import Refused, Sized, size
from tonnage_core.planning.drafting import draft_choice
from tonnage_core.planning.evaluate import Checked, Ranked, load_of, rank, steady
from tonnage_core.planning.search import Found
from tonnage_core.planning.spec import Draft, PlanSpec
from tonnage_core.planning.steady import Point, Steady

TYPICAL = (Draft("ngram", 0.35), Draft("medusa", 0.6), Draft("eagle", 0.75))
"""Drafters with an acceptance typical of general chat, where the spec names none."""


@dataclass(frozen=True)
class Advice:
    """One topic: what would change, in words and numbers. `worth` is the share of cost saved; None: not a saving."""

    topic: str
    text: str
    numbers: dict[str, Any]
    worth: float | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        saved = None if self.worth is None else round(self.worth, 4)
        return {"topic": self.topic, "text": self.text, "saves": saved, "numbers": self.numbers}


def engine_advice(found: Found) -> Iterator[Advice]:
    """What could be set otherwise on the winner's replicas."""
    best = found.best
    if best is None or best.replicas is None:
        return
    spec, formulas = found.spec, steady(found.spec, best.ranked)
    point = formulas.carrying(load_of(spec, best.replicas))
    yield from _formats(found, best)
    yield from _parallelism(found, best)
    yield _budget(found, best)
    yield from _drafts(spec, best, formulas, point)


def _formats(found: Found, best: Checked) -> Iterator[Advice]:
    """The same GPU and layout in other formats, by formula on both sides."""
    spec, config = found.spec, best.config
    base = best.ranked.bound.point
    plain = not spec.shape.quantization.rules
    for precision in ("auto", "fp8", "w4a16") if plain else ("auto",):
        for kv_dtype in ("auto", "fp8"):
            if (precision, kv_dtype) == (config.precision, config.kv_dtype) or (
                "fp8" in (precision, kv_dtype) and (config.offer.gpu.fp8_tflops is None)
            ):
                continue
            other = ranked(spec, size(spec, replace(config, precision=precision, kv_dtype=kv_dtype)))
            if base is None:
                continue
            topic = "quantisation" if precision != config.precision else "kv_dtype"
            label = f"weights {precision}, KV {kv_dtype}"
            if isinstance(other, Refused) or other.bound.point is None:
                reason = other.reason if isinstance(other, Refused) else other.bound.reason
                yield Advice(topic, f"{label}: {reason}", {"precision": precision, "kv_dtype": kv_dtype})
                continue
            gain = other.bound.point.rate_rps / base.rate_rps
            yield Advice(
                topic,
                f"{label}: a replica carries {gain - 1:+.0%} by formula; certify accuracy on the task before using it",
                {
                    "precision": precision,
                    "kv_dtype": kv_dtype,
                    "capacity_ratio": round(gain, 4),
                    "pool_tokens": other.sized.pool_tokens,
                    "step_ms": round(other.bound.point.step_s * 1e3, 3),
                },
                1 - 1 / gain,
            )


def ranked(spec: PlanSpec, sized: Sized | Refused) -> Ranked | Refused:
    """The bound by formula of a configuration that fits."""
    return rank(spec, sized) if isinstance(sized, Sized) else sized


def _parallelism(found: Found, best: Checked) -> Iterator[Advice]:
    """The cheapest by formula of each other layout on the same GPU."""
    gpu, seen = best.config.offer.gpu.name, {best.config.layout}
    reference = next((each for each in found.ranked if each.config == best.config), None) or best.ranked
    base = _usd_per_rps(reference)
    for each in found.ranked:
        if each.config.offer.gpu.name != gpu or each.config.layout in seen or each.bound.point is None:
            continue
        seen.add(each.config.layout)
        layout, ratio = each.config.layout, _usd_per_rps(each) / base
        yield Advice(
            "parallelism",
            f"{each.config.name}: {ratio:.2f} of the winner's cost a request by formula, "
            f"TPOT {each.bound.point.step_s * 1e3:.1f} ms at its limit",
            {"tp": layout.tp, "pp": layout.pp, "ep": layout.ep, "dp": layout.dp, "cost_ratio": round(ratio, 4)},
            1 - ratio,
        )


def _usd_per_rps(ranked: Ranked) -> float:
    point = ranked.bound.point
    return math.inf if point is None else ranked.config.usd_per_hour / point.rate_rps


def _budget(found: Found, best: Checked) -> Advice:
    """Step budgets in the engine model."""
    targets = found.spec.call_targets
    rows = [
        {
            "max_num_batched_tokens": tuning.sized.budget,
            "max_num_seqs": tuning.sized.rows,
            "replicas": tuning.replicas,
            "meets_slo": tuning.meets,
            "measured": tuning.trial.measured,
            **{target.name: round(tuning.trial.value_ms(target), 1) for target in targets},
        }
        for tuning in found.tunings
    ]
    used = best.ranked.sized.budget
    beside = max(1, round(best.ranked.bound.point.rows)) if best.ranked.bound.point else 1
    chunk = best.ranked.sized.model.mixed_step_s(beside, beside * 1000, max(1, used - beside), 0) * 1e3
    text = (
        f"a step with a full chunk of {used:,} tokens takes {chunk:.0f} ms, a gap that every running request sees; "
        f"{len(rows)} other limits were tried in the engine model"
    )
    return Advice(
        "chunk_budget", text, {"max_num_batched_tokens": used, "full_step_ms": round(chunk, 2), "tried": rows}
    )


def _drafts(spec: PlanSpec, best: Checked, formulas: Steady, point: Point) -> Iterator[Advice]:
    """Speed-up of each drafter at one request and at the planned batch."""
    for draft in spec.space.speculation or TYPICAL:
        gains = {}
        for label, rows in (("alone", 1.0), ("planned", max(1.0, point.rows))):
            choice = draft_choice(best.ranked.sized, draft, rows, formulas.context)
            gains[label] = {"rows": round(rows, 1), "drafted": choice.drafted, "speedup": round(choice.speedup, 3)}
        text = (
            f"{draft.name} at acceptance {draft.acceptance:g}: {gains['alone']['speedup']:.2f}x for one request, "
            f"{gains['planned']['speedup']:.2f}x at {point.rows:.0f} requests; measure the acceptance on your traffic"
        )
        drafts = {"method": draft.method, "model": draft.model or None, "acceptance": draft.acceptance}
        yield Advice("speculation", text, {**drafts, **gains})
