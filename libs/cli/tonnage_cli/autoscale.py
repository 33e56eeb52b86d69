"""`tonnage autoscale`: a trace through autoscaling policies with cold starts, in simulated time."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

import click

from tonnage_cli.autoscale_advice import advice_of, members_of, show_advice
from tonnage_cli.autoscale_page import page_of
from tonnage_cli.finite import FiniteRange
from tonnage_cli.output import check_writable, json_option, print_json, print_table
from tonnage_core.autoscaling.simulation.baselines import GRIDS
from tonnage_core.autoscaling.simulation.comparison import (
    OURS,
    POLICY_NAMES,
    Outcome,
    Scenario,
    grid,
    run_baseline,
    run_oracle,
    run_ours,
    tuned,
)
from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.errors import BadInputError
from tonnage_core.slo import Slo
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.catalogue import load_gpu, load_model

_POSITIVE = FiniteRange(0, min_open=True)
_START = FiniteRange(0, 86_400, min_open=True)


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "policies",
    type=click.Choice([*POLICY_NAMES, "all"]),
    multiple=True,
    default=(OURS,),
    show_default=True,
    help="May be given several times.",
)
@click.option(
    "--thresholds",
    type=(_POSITIVE, FiniteRange(0)),
    help="The baselines' two thresholds; without them the best of a grid.",
)
@click.option("--model", default="meta-llama/Llama-3.1-8B", show_default=True, help="Catalogue name or config.json.")
@click.option("--gpu", default="H100-SXM-80GB", show_default=True, help="Catalogue name or GpuProfile.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), default=512, show_default=True)
@click.option(
    "--rate-factor", type=_POSITIVE, default=1.0, show_default=True, help="Requests for each one of the trace."
)
@click.option("--limit", type=click.IntRange(1), help="Only the first N requests.")
@click.option("--max-input", type=click.IntRange(1), help="Cut longer prompts to their first N tokens.")
@click.option("--initial", type=click.IntRange(0), default=1, show_default=True, help="Replicas at the start.")
@click.option("--min-replicas", type=click.IntRange(0), default=1, show_default=True)
@click.option("--max-replicas", type=click.IntRange(1), default=64, show_default=True)
@click.option("--start-s", type=(_START, _START), default=(90.0, 240.0), show_default=True, help="Range of starts.")
@click.option("--slo-ttft-ms", type=_POSITIVE, default=2000.0, show_default=True)
@click.option("--slo-tpot-ms", type=_POSITIVE, default=50.0, show_default=True)
@click.option("--slo-percentile", type=FiniteRange(0, 100), default=99.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--usd-per-hour", type=_POSITIVE, help="Price of a replica: what a warm pool costs idle.")
@click.option("--usd-per-late", type=_POSITIVE, help="What a late request costs: how many warm replicas pay.")
@click.option(
    "--gpu-class",
    "classes",
    type=(str, _POSITIVE, click.IntRange(0)),
    multiple=True,
    metavar="GPU USD MOST",
    help="Share tonnage's targets out over GPU classes by price: give it for each; --usd-per-hour prices --gpu.",
)
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write the runs as an HTML page.")
@json_option
def command(trace: Path, *, as_json: bool, **given: Any) -> int:
    """Run a Mooncake JSONL or Azure CSV trace through autoscalers whose replicas take minutes to start.

    `tonnage` is the planner's own decision with its defaults; hpa_queue, hpa_kv, kpa and saturation are tuned on the
    trace; oracle knows arrivals and starts. Exit 1 when a policy that was asked for misses the SLO.
    """
    if given["plot"] is not None:
        check_writable(given["plot"], "--plot")
    scenario = scenario_of(trace, given)
    document, outcomes = compared(scenario, trace.name, given)
    if given["plot"] is not None:
        given["plot"].write_text(page_of(document, outcomes), encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        _show(document)
    met = all(one["slo_attainment"] * 100 >= given["slo_percentile"] for one in document["policies"].values())
    return 0 if met else 1


def scenario_of(trace: Path, given: dict[str, Any]) -> Scenario:
    """The conditions all policies share; raises `BadInputError` for options that contradict each other."""
    low, high = given["start_s"]
    if low > high:
        raise BadInputError(f"--start-s {low:g} {high:g}: give the shorter time first")
    if given["classes"] and given["usd_per_hour"] is None:
        raise BadInputError("--gpu-class compares prices: give --usd-per-hour for --gpu too")
    if given["classes"]:
        members_of(given)
    if not given["min_replicas"] <= given["initial"] <= given["max_replicas"]:
        raise BadInputError("--initial must be from --min-replicas to --max-replicas")
    if given["thresholds"] and not {*given["policies"]} & {"all", *GRIDS}:
        raise BadInputError(f"--thresholds are a baseline's: give --policy {', '.join(GRIDS)} or all with them")
    shape, gpu = load_model(given["model"]), load_gpu(given["gpu"])
    return Scenario(
        requests=read_trace(trace, strict=False).requests[: given["limit"]],
        engine=engine_config_for(shape, gpu, max_num_batched_tokens=given["max_num_batched_tokens"]),
        clock=step_time_for(shape, gpu),
        slo=Slo(given["slo_ttft_ms"], given["slo_tpot_ms"], given["slo_percentile"]),
        rng=Random,
        rate_factor=given["rate_factor"],
        max_input=given["max_input"] or 0,
        initial=given["initial"],
        min_replicas=given["min_replicas"],
        max_replicas=given["max_replicas"],
        start_s=(low, high),
        seed=given["seed"],
    )


def compared(scenario: Scenario, name: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[Outcome]]:
    """The report, and the runs it is of."""
    asked = POLICY_NAMES if "all" in given["policies"] else tuple(dict.fromkeys(given["policies"]))
    outcomes = [one for policy in asked if (one := _outcome(scenario, policy, given)) is not None]
    oracle = next((one for one in outcomes if one.policy == "oracle"), None)
    document = {
        "schema": "tonnage.autoscale/1",
        "version": metadata.version("tonnage"),
        "seed": scenario.seed,
        "trace": {"name": name, "requests": len(scenario.requests), "simulated": len(scenario.jobs())},
        "model": given["model"],
        "gpu": given["gpu"],
        "rate_factor": scenario.rate_factor,
        "max_input": scenario.max_input or None,
        "start_s": list(scenario.start_s),
        "initial": scenario.initial,
        "slo": scenario.slo.document(),
        "policies": {one.policy: _policy_fields(one, oracle) for one in outcomes},
        **advice_of(next((one for one in outcomes if one.policy == OURS), None), given),
    }
    return document, outcomes


def _outcome(scenario: Scenario, policy: str, given: dict[str, Any]) -> Outcome | None:
    if policy == OURS:
        return run_ours(scenario, usd_per_hour=given["usd_per_hour"], usd_per_miss=given["usd_per_late"])
    if policy == "oracle":
        plan = run_oracle(scenario)
        return None if plan is None else Outcome(policy, plan.result, (plan.used, float(plan.look)))
    pairs = [given["thresholds"]] if given["thresholds"] else grid(policy)
    return tuned([run_baseline(scenario, policy, pair) for pair in pairs], scenario.slo.percentile / 100)


def _policy_fields(one: Outcome, oracle: Outcome | None) -> dict[str, Any]:
    result = one.result
    ratio = result.gpu_hours / oracle.result.gpu_hours if oracle and oracle.result.gpu_hours else None
    return {
        "slo_attainment": round(result.slo_attainment, 6),
        "gpu_hours": round(result.gpu_hours, 4),
        "oracle_ratio": None if ratio is None else round(ratio, 4),
        "cut_streams": result.cut_streams,
        "direction_changes": result.direction_changes,
        "peak_replicas": result.peak_serving,
        "ttft_p99_ms": _rounded(result.ttft_p99_ms),
        "tpot_p99_ms": _rounded(result.tpot_p99_ms),
        "thresholds": list(one.thresholds),
        "grid": one.tried if one.policy in GRIDS else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _show(document: dict[str, Any]) -> None:
    print_table(
        f"{document['trace']['name']} x {document['rate_factor']:g}: {document['trace']['simulated']} requests",
        ["policy", "in SLO", "GPU hours", "of oracle", "turns", "cut", "peak", "TTFT p99, ms", "TPOT p99, ms"],
        list(_rows(document)),
    )
    show_advice(document)


def _rows(document: dict[str, Any]) -> Iterator[list[Any]]:
    for name, one in document["policies"].items():
        yield [
            name,
            f"{one['slo_attainment']:.2%}",
            one["gpu_hours"],
            "-" if one["oracle_ratio"] is None else one["oracle_ratio"],
            one["direction_changes"],
            one["cut_streams"],
            one["peak_replicas"],
            one["ttft_p99_ms"],
            one["tpot_p99_ms"],
        ]
