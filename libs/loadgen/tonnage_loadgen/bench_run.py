"""One measured run of the bench: warm-up dropped, steady state checked, percentiles with intervals, one document.

Warm-up and steady state are found on the end-to-end times in order of the intended instants. Requests of the warm-up
are sent and left out of every figure.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tonnage_core.benchmarking.statistics import (
    Interval,
    Steadiness,
    interval_of,
    more_needed,
    steadiness,
    warmup_end,
)
from tonnage_core.benchmarking.workload import Planned
from tonnage_core.slo import RequestRecord, Slo, distribution_ms, span_s
from tonnage_loadgen.exchange import Outcome
from tonnage_loadgen.report import document_of
from tonnage_loadgen.shard import Shard, ShardResult
from tonnage_loadgen.verdict import merged

FIGURES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Judging:
    """How a run is judged: the SLO (intervals are of its percentile), seconds of warm-up (None: found)."""

    slo: Slo
    warmup_s: float | None = None
    time_scale: float = 1.0
    seed: int = 0


def document(shard: Shard, results: Sequence[ShardResult], judging: Judging) -> dict[str, Any]:
    """The report of a run (`tonnage.bench/1`); `sufficient` says whether the percentile asked for can be bounded."""
    records = sorted((r for result in results for r in result.records), key=lambda r: (r.intended_s, r.index))
    planned = {each.request.index: each for each in shard.planned}
    dropped, how = _warmup(records, judging)
    kept = records[dropped:]
    cancelled = sum(r.outcome == Outcome.CANCELLED for r in kept)
    answered = [r for r in kept if r.outcome != Outcome.CANCELLED]
    span = span_s(kept)
    found = document_of(
        answered,
        [planned[r.index].request for r in answered],
        kind="bench",
        seed=judging.seed,
        slo=judging.slo,
        time_scale=judging.time_scale,
        duration_s=span,
    )
    failed = sum(not r.ok and r.outcome != Outcome.CANCELLED for r in records[:dropped])
    found["requests"] |= {"cancelled": cancelled, "warmup": dropped}
    found["uncounted_answers"] = sum(r.ok and r.output_tokens is None and len(r.gaps_s) > 0 for r in answered)
    found["client"] = merged([result.verdict for result in results], records).document()
    found["client"]["processes"] = len(results)
    found["warmup"] = {"requests": dropped, "errors": failed, "how": how}
    found["steady"] = _steady(answered)
    found["percentiles"], found["more_requests_needed"] = _percentiles(answered, judging)
    found["sufficient"] = found["more_requests_needed"] == 0
    found["by_class"] = _by_class(answered, planned, judging)
    found["concurrency"] = concurrency(kept)
    if shard.users is not None:
        found["all_busy"] = all_busy(records, answered, shard.users.count, judging.time_scale)
    found["offered_rps"] = None if not span else round(len(kept) / max(_arrival_span(kept), 1e-9), 4)
    found["prompts_sha256"] = prompts_sha256(shard.planned)
    found["error_samples"] = list(dict.fromkeys(text for result in results for text in result.error_samples))[:5]
    found["notes"] = list(_notes(found))
    stayed = sum(r.ok and planned[r.index].cancel_after_s is not None for r in answered)
    if stayed and cancelled:
        found["notes"].append(
            f"{stayed} clients that would have gone away had their whole answer before: only quick ones have, which "
            "flatters the latencies"
        )
    return found


def meets_slo(found: dict[str, Any]) -> bool | None:
    """Did the run's percentile of TTFT and of TPOT meet the SLO with a queue that does not grow? None: void.

    A request that failed has missed: failures and those over a limit together may be no more than the percentile
    leaves. Where the server did not count its tokens, the share that met both limits decides.
    """
    if found["client"]["bound"] or not found["requests"]["sent"]:
        return None
    slo, attained = found["slo"], found["slo_attainment"]
    left = 1 - slo["percentile"] / 100 + 1e-9
    sent, errors = found["requests"]["sent"], found["requests"]["errors"]
    if errors / sent > left or (found.get("uncounted_answers") and 1 - (attained or 0.0) > left):
        return False
    for name in ("ttft", "tpot"):
        value = found["percentiles"][name]
        if value is None:
            continue
        if value["value_ms"] > slo[f"{name}_ms"] or (errors and (errors + value.get("over_limit", 0)) / sent > left):
            return False
    growing = found["steady"]["steady"] is False and (found["steady"]["change_share"] or 0.0) > 0.5
    return attained is not None and not growing


def concurrency(records: Sequence[RequestRecord]) -> dict[str, float | int | None]:
    """Requests in flight, from the instants each began and ended: the mean over the span, and the true peak."""
    spans = [(r.dispatched_s, r.last_s) for r in records if r.dispatched_s is not None and r.last_s is not None]
    if not spans:
        return {"mean": None, "peak": None}
    flying = peak = 0
    for _, step in sorted([(a, 1) for a, _ in spans] + [(b, -1) for _, b in spans]):
        flying += step
        peak = max(peak, flying)
    length = max(b for _, b in spans) - min(a for a, _ in spans)
    mean = sum(b - a for a, b in spans) / length if length > 0 else None
    return {"mean": None if mean is None else round(mean, 3), "peak": peak}


def all_busy(
    records: Sequence[RequestRecord], judged: Sequence[RequestRecord], users: int, time_scale: float
) -> dict[str, float | int | None] | None:
    """Means over the `judged` requests of a closed loop that ran whole while all its users had one under way: from the
    first instant at which they did to the last request's start, after which one user after another has nothing to send.

    Times are ms of engine time, lengths tokens. None when there are fewer than one a user: the run was nearly all start
    and end, and chance would make the means.
    """
    begun, ended = _filled_s(records, users), max((r.intended_s for r in records), default=0.0)
    inside = [r for r in judged if r.ok and r.last_s is not None and r.last_s <= ended]
    inside = [] if begun is None else [r for r in inside if r.intended_s >= begun]
    if len(inside) < users:
        return None
    output = [r.output_tokens for r in inside if r.output_tokens is not None]
    return {
        "requests": len(inside),
        "ttft_ms": distribution_ms((r.ttft_s for r in inside), time_scale)["mean"],
        "tpot_ms": distribution_ms((r.tpot_s for r in inside), time_scale)["mean"],
        "prompt_tokens": round(fmean(r.prompt_tokens for r in inside), 4),
        "output_tokens": round(fmean(output), 4) if len(output) == len(inside) else None,
        "cached_tokens": round(fmean(r.cached_tokens or 0 for r in inside), 4),
    }


def _filled_s(records: Sequence[RequestRecord], users: int) -> float | None:
    """When so many requests were first under way at once."""
    spans = [(r.intended_s, r.last_s) for r in records if r.last_s is not None]
    flying = 0
    for at, step in sorted([(a, 1) for a, _ in spans] + [(b, -1) for _, b in spans]):
        flying += step
        if flying == users:
            return at
    return None


def prompts_sha256(planned: Sequence[Planned]) -> str:
    """Names what was asked: equal for equal prompts, lengths and order."""
    digest = hashlib.sha256()
    for each in planned:
        r = each.request
        digest.update(repr((r.input_length, r.output_length, r.hash_ids, r.block_tokens, each.adapter)).encode())
    return digest.hexdigest()


def _warmup(records: Sequence[RequestRecord], judging: Judging) -> tuple[int, str]:
    if judging.warmup_s is not None:
        return sum(r.intended_s < judging.warmup_s for r in records), f"the first {judging.warmup_s:g} s, as asked"
    good = [(n, r.e2e_s) for n, r in enumerate(records) if r.ok and r.e2e_s is not None]
    cut = warmup_end([value for _, value in good])
    if cut is None:
        return 0, "no end of the warm-up found in the first half of the run: nothing dropped"
    return (good[cut][0] if cut else 0), "found (MSER-5)"


def _steady(records: Sequence[RequestRecord]) -> dict[str, Any]:
    found: Steadiness = steadiness([r.e2e_s for r in records if r.ok and r.e2e_s is not None])
    change = None if found.change_share is None else round(found.change_share, 4)
    return {"steady": found.steady, "change_share": change, "reason": found.reason}


def _percentiles(records: Sequence[RequestRecord], judging: Judging) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    more = 0
    percent = judging.slo.percentile
    for name in FIGURES:
        values = [v for r in records if r.ok and (v := getattr(r, f"{name}_s")) is not None]
        if not 0 < percent < 100:
            found[name] = None
            continue
        interval = interval_of(values, percent)
        found[name] = None if interval is None else _interval(interval, percent, judging.time_scale * 1e3)
        if found[name] is not None and name != "e2e":
            limit_s = getattr(judging.slo, f"{name}_ms") / judging.time_scale / 1e3
            found[name]["over_limit"] = sum(value > limit_s for value in values)
        if values or name != "tpot":
            more = max(more, more_needed(interval, len(values), percent))
    return found, more


def _interval(found: Interval, percent: float, factor: float) -> dict[str, float | None]:
    return {
        "percentile": percent,
        "value_ms": round(found.value * factor, 4),
        "low_ms": round(found.low * factor, 4),
        "high_ms": None if found.high is None else round(found.high * factor, 4),
        "independent_requests": round(found.effective, 1),
    }


def _by_class(
    records: Sequence[RequestRecord], planned: dict[int, Planned], judging: Judging
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[RequestRecord]] = {}
    for record in records:
        one = planned[record.index]
        names = [
            one.kind,
            f"tenant:{one.tenant}" if one.tenant else "",
            f"adapter:{one.adapter}" if one.adapter else "",
        ]
        for name in filter(None, names):
            groups.setdefault(name, []).append(record)
    return {name: _group(group, judging) for name, group in sorted(groups.items())}


def _group(records: Sequence[RequestRecord], judging: Judging) -> dict[str, Any]:
    good = [r for r in records if r.ok]
    met = sum(r.meets(judging.slo, judging.time_scale) for r in records)
    return {
        "requests": len(records),
        "errors": len(records) - len(good),
        "ttft_ms": distribution_ms((r.ttft_s for r in good), judging.time_scale),
        "tpot_ms": distribution_ms((r.tpot_s for r in good), judging.time_scale),
        "e2e_ms": distribution_ms((r.e2e_s for r in good), judging.time_scale),
        "slo_attainment": round(met / len(records), 6),
    }


def _arrival_span(records: Sequence[RequestRecord]) -> float:
    return max(r.intended_s for r in records) - min(r.intended_s for r in records)


def _notes(found: dict[str, Any]) -> list[str]:
    client, notes = found["client"], []
    if client["bound"]:
        notes.append(f"VOID: {client['reason']}")
    elif client["reason"]:
        notes.append(f"{client['reason']}; the latencies include it")
    if not found["requests"]["ok"]:
        notes.append("nothing was measured: no request ended well after the warm-up and without going away")
    if found["warmup"]["errors"]:
        notes.append(f"{found['warmup']['errors']} requests failed in the warm-up that was dropped")
    if found["uncounted_answers"]:
        notes.append(
            f"the server did not count the tokens of {found['uncounted_answers']} answers (or counted more than asked "
            "for): their TPOT is unknown, and the SLO takes the time between their events for it"
        )
    if found["requests"]["ok"] and found.get("all_busy", found) is None:
        notes.append(
            "fewer requests than users ran while all users were busy: a bench point of this run is of its start and "
            "end too; give more requests for each user"
        )
    if not found["steady"]["steady"]:
        notes.append(f"not steady: {found['steady']['reason']}")
    if not found["sufficient"]:
        percent, more = found["slo"]["percentile"], found["more_requests_needed"]
        notes.append(f"p{percent:g} is not bounded: about {more} more requests are needed")
    return notes
