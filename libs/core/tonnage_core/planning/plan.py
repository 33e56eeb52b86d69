"""`make_plan`: the one function that the command line and the planner service call."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tonnage_core.memory import report_of
from tonnage_core.planning import relaxations
from tonnage_core.planning import spec as specification
from tonnage_core.planning.advice import engine_advice
from tonnage_core.planning.calibrated import calibration_document, step_times
from tonnage_core.planning.candidate import Config, Refused
from tonnage_core.planning.curve import curve_document, curve_of, percentiles
from tonnage_core.planning.emit import check_manifest, command_line, engine_args, model_server, serve_command
from tonnage_core.planning.evaluate import Checked, Ranked, load_of, steady, usd_per_mtok
from tonnage_core.planning.mixes import Mix
from tonnage_core.planning.pools import pool_advice
from tonnage_core.planning.roofline_points import roofline_document
from tonnage_core.planning.sampling import LEAST_MEASURED, MOST_WORK, Work
from tonnage_core.planning.search import Found, Progress, search, settled
from tonnage_core.planning.spec import PlanSpec

SCHEMA = "tonnage.plan/1"
MOST_CANDIDATES = 40
METHOD = (
    "Each candidate is bounded by formula; the cheapest are run in the engine model at the load of one replica plus "
    "the headroom, arrivals split at random, until no other could be cheaper."
)


def make_plan(spec: PlanSpec, version: str = "", progress: Progress = lambda share, what: None) -> dict[str, Any]:
    """The `tonnage.plan/1` document. `progress` is told what is being done and may raise to stop.

    `candidates` come cheapest first: those the engine model confirmed (`class` simulated), those bounded by formula,
    then those that cannot work, each with what binds it and why, and where its `step_times` come from. `ttft_ms` and
    `tpot_ms` are 99th percentiles. Money is US dollars, a million tokens are output tokens of the asked traffic.
    """
    spec = replace(spec, work=Work())
    found = search(spec, progress)
    best = settled(found.best) if found.best is not None else None
    rows = _candidates(found, best)
    progress(0.85, "the curve, advice and manifest")
    document = {
        "schema": SCHEMA,
        "version": version,
        "seed": spec.seed,
        "spec": specification.document_of(spec),
        "method": METHOD,
        "feasible": best is not None or found.mix is not None,
        "candidates": rows[:MOST_CANDIDATES],
        "considered": len(found.ranked) + len(found.refused),
        "simulated": sum(len(each.trials) for each in found.checked),
        "pareto": pareto(rows),
        "mix": _mix(spec, found.mix),
        **_relaxations(found),
        "calibration": calibration_document(spec),
    }
    document |= _chosen(found, best) if best is not None else {"best": None, "curve": None, "advice": []}
    if spec.work.left_out or spec.work.shortened:
        document["method"] += (
            f" Following such long requests is much work: after {MOST_WORK / 1e6:g} million tokens of it "
            f"{spec.work.left_out} further looks were left out and {spec.work.shortened} measured {LEAST_MEASURED} "
            "requests, so something cheaper may have been missed."
        )
    progress(1.0, "done")
    return document


def _chosen(found: Found, best: Checked) -> dict[str, Any]:
    spec = found.spec
    manifest = model_server(spec, best)
    longest = min(spec.traffic.longest, best.ranked.sized.max_model_len)
    draft = best.config.draft
    problems = check_manifest(
        manifest, spec.shape, best.config.offer.gpu, longest, None if draft is None else draft.shape
    )
    return {
        "best": {
            "name": best.config.name,
            "replicas": best.replicas,
            "gpus": best.gpus,
            "usd_per_hour": round(best.usd_per_hour, 4),
            "usd_per_mtok": round(usd_per_mtok(spec, best.usd_per_hour), 4),
            "why": best.reason,
            "step_times": _step_times(spec, best.ranked),
            "command": serve_command(spec, best.ranked.sized),
            "model_server": manifest,
            "check": {"passes": not problems, "problems": problems},
            "memory": report_of(best.ranked.sized.memory),
        },
        "curve": curve_document(spec, best, curve_of(spec, best)),
        "advice": [each.document() for each in (*engine_advice(found), *pool_advice(found))],
        "roofline": roofline_document(spec, best),
    }


def _relaxations(found: Found) -> dict[str, Any]:
    why = relaxations.explain(found)
    if why is None:
        return {"binding": None, "reason": None, "relaxations": []}
    ways = [relaxations.document_of(found.spec, way) for way in why.relaxations]
    return {"binding": why.binding, "reason": why.reason, "relaxations": ways}


def _candidates(found: Found, best: Checked | None) -> list[dict[str, Any]]:
    """Every configuration once: the winner first, then by cost."""
    spec = found.spec
    checked = [best] if best is not None else []
    checked += [each for each in found.checked if best is None or each.config.offer.gpu != best.config.offer.gpu]
    names = {each.config.name for each in (*checked, *found.checked)}
    same = [
        each for each in found.checked if each not in checked and each.config != getattr(found.best, "config", None)
    ]
    rows = [_simulated(spec, each) for each in (*checked, *same)]
    rest = [each for each in found.ranked if each.config.name not in names]
    rows += [_by_formula(spec, each) for each in rest[:MOST_CANDIDATES]]
    rows.sort(key=lambda row: (not row["feasible"], row["usd_per_mtok"] is None, row["usd_per_mtok"] or 0.0))
    return [*rows, *(_refused(each) for each in found.refused)]


def _base(config: Config) -> dict[str, Any]:
    layout = config.layout
    return {
        "name": config.name,
        "gpu": config.offer.gpu.name,
        "tp": layout.tp,
        "pp": layout.pp,
        "ep": layout.ep,
        "dp": layout.dp,
        "precision": config.precision,
        "kv_dtype": config.kv_dtype,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.batched_tokens,
        "speculation": None
        if config.draft is None
        else {"method": config.draft.method, "tokens": config.drafted, "model": config.draft.model or None},
    }


def _simulated(spec: PlanSpec, each: Checked) -> dict[str, Any]:
    trial = each.trial
    fits = each.fits_offer
    binding, reason = each.binding, each.reason
    if each.replicas is not None and not fits:
        binding = "offer"
        reason = f"{each.gpus} GPUs are needed, {each.config.offer.most} are offered; {reason}"
    tested = None if trial is None else round(trial.rate_rps, 4)
    return {
        **_base(each.config),
        "feasible": fits,
        "class": "simulated",
        "step_times": _step_times(spec, each.ranked),
        "replicas": each.replicas,
        "usd_per_hour": round(each.usd_per_hour, 4) if each.replicas is not None else None,
        "usd_per_mtok": round(usd_per_mtok(spec, each.usd_per_hour), 4) if each.replicas is not None else None,
        "ttft_ms": None if trial is None else percentiles(trial.ttft_ms)["p99"],
        "tpot_ms": None if trial is None else percentiles(trial.tpot_ms)["p99"],
        "latency": None
        if trial is None
        else {"ttft_ms": percentiles(trial.ttft_ms), "tpot_ms": percentiles(trial.tpot_ms)},
        "goodput_rps": None if trial is None else round(spec.traffic.rate_rps * trial.attainment, 4),
        "tested_rps_per_replica": tested,
        "hit_rate": None if trial is None else round(trial.hit_rate, 4),
        "flags": command_line(engine_args(spec, each.ranked.sized)),
        "binding": binding,
        "reason": reason,
    }


def _by_formula(spec: PlanSpec, each: Ranked) -> dict[str, Any]:
    formulas = steady(spec, each)
    point = formulas.carrying(load_of(spec, each.replicas))
    fits = each.replicas * each.config.layout.gpus <= each.config.offer.most
    reason = each.bound.reason
    if not fits:
        needed = each.replicas * each.config.layout.gpus
        reason = f"about {needed} GPUs are needed, {each.config.offer.most} are offered; {reason}"
    return {
        **_base(each.config),
        "feasible": fits,
        "class": "formula",
        "step_times": _step_times(spec, each),
        "replicas": each.replicas,
        "usd_per_hour": round(each.usd_per_hour, 4),
        "usd_per_mtok": round(usd_per_mtok(spec, each.usd_per_hour), 4),
        "ttft_ms": round(formulas.ttft_s(point, 99.0) * 1e3, 2),
        "tpot_ms": round(formulas.tpot_s(point, 99.0) * 1e3, 2),
        "latency": None,
        "goodput_rps": round(min(spec.traffic.rate_rps, each.replicas * point.rate_rps), 4),
        "tested_rps_per_replica": None,
        "hit_rate": None,
        "flags": command_line(engine_args(spec, each.sized)),
        "binding": each.bound.binding if fits else "offer",
        "reason": f"by formula, not run: {reason}",
    }


def _refused(each: Refused) -> dict[str, Any]:
    empty = dict.fromkeys(("replicas", "usd_per_hour", "usd_per_mtok", "ttft_ms", "tpot_ms", "latency", "goodput_rps"))
    rest: dict[str, Any] = {
        "tested_rps_per_replica": None,
        "hit_rate": None,
        "flags": [],
        "binding": each.binding,
        "reason": each.reason,
    }
    return {**_base(each.config), "feasible": False, "class": "refused", "step_times": None, **empty, **rest}


def _step_times(spec: PlanSpec, each: Ranked) -> dict[str, Any]:
    config, point = each.config, each.bound.point
    rows = point.rows if point else 1
    return step_times(spec, config.offer.gpu, config.layout, rows, config.precision, config.kv_dtype)


def pareto(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the feasible candidates, those that no other beats on both cost and TPOT."""
    known = [row for row in rows if row["feasible"] and row["usd_per_mtok"] is not None and row["tpot_ms"] is not None]
    front: list[Mapping[str, Any]] = []
    for row in sorted(known, key=lambda each: (each["usd_per_mtok"], each["tpot_ms"])):
        if not front or row["tpot_ms"] < front[-1]["tpot_ms"]:
            front.append(row)
    return [{key: row[key] for key in ("name", "gpu", "usd_per_mtok", "tpot_ms", "ttft_ms", "class")} for row in front]


def _mix(spec: PlanSpec, mix: Mix | None) -> dict[str, Any] | None:
    if mix is None:
        return None
    return {
        "name": mix.name,
        "usd_per_hour": round(mix.usd_per_hour, 4),
        "usd_per_mtok": round(usd_per_mtok(spec, mix.usd_per_hour), 4),
        "parts": [
            {
                "name": checked.config.name,
                "replicas": count,
                "share": round(count * spec.traffic.rate_rps / (checked.replicas or 1) / spec.traffic.rate_rps, 4),
                "tested_rps_per_replica": round(load_of(spec, checked.replicas or 1), 4),
                "flags": command_line(engine_args(spec, checked.ranked.sized)),
            }
            for checked, count in mix.parts
        ],
    }
