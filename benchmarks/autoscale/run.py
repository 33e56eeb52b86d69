"""Autoscaling policies over whole traces, each baseline the best of its grid, against an oracle.

usage: run.py TRACES_DIR [--trace NAME] [--policy P ...] [--runs FILE] [--out FILE] [--plot DIR]

A full run takes about ten minutes of one core a trace. Every single run is appended to `--runs`, and a run that stands
there already is not made again, so that an interrupted comparison goes on where it was.
"""

import argparse
import json
import platform
import sys
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tonnage_cli.autoscale_page import page_of
from tonnage_core.autoscaling.simulation.baselines import GRIDS
from tonnage_core.autoscaling.simulation.comparison import (
    LOOKS,
    OURS,
    SLOT_S,
    Outcome,
    Scenario,
    grid,
    run_baseline,
    run_ours,
    simulate,
)
from tonnage_core.autoscaling.simulation.driver import RunResult
from tonnage_core.autoscaling.simulation.oracle import OracleScaler, lifetimes, replicas_needed, slot_work
from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.slo import Slo
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.catalogue import load_gpu, load_model

HERE = Path(__file__).resolve().parent
USED = (0.91, 0.94, 0.97, 1.0, 1.03, 1.06)
"""Shares of a replica that the oracle's plans use."""


def scenario_of(settings: dict[str, Any], trace: dict[str, Any], folder: Path) -> Scenario:
    """The conditions of one trace."""
    shape, gpu = load_model(settings["model"]), load_gpu(settings["gpu"])
    low, high = settings["start_s"]
    return Scenario(
        requests=read_trace(folder / trace["file"], strict=False).requests,
        engine=engine_config_for(shape, gpu, max_num_batched_tokens=settings["max_num_batched_tokens"]),
        clock=step_time_for(shape, gpu),
        slo=Slo(settings["slo_ttft_ms"], settings["slo_tpot_ms"], settings["slo_percentile"]),
        rng=Random,
        rate_factor=trace["rate_factor"],
        max_input=trace.get("max_input", 0),
        initial=trace["initial"],
        min_replicas=settings["min_replicas"],
        max_replicas=settings["max_replicas"],
        start_s=(low, high),
        seed=settings["seed"],
    )


def tasks(policies: list[str]) -> list[tuple[str, tuple[float, ...]]]:
    """Every single run."""
    found: list[tuple[str, tuple[float, ...]]] = []
    for policy in policies:
        if policy == OURS:
            found.append((policy, ()))
        elif policy == "oracle":
            found += [(policy, (used, float(look))) for look in LOOKS for used in USED]
        else:
            found += [(policy, pair) for pair in grid(policy)]
    return found


def one_run(scenario: Scenario, policy: str, values: tuple[float, ...]) -> tuple[RunResult, int]:
    """The run and, of an oracle's plan, its peak."""
    if policy == OURS:
        return run_ours(scenario).result, 0
    if policy == "oracle":
        cost = scenario.cost
        work = slot_work(scenario.jobs(), lambda job: cost.request_s(job.prompt, job.output), SLOT_S)
        needed = replicas_needed(work, values[0], int(values[1]))
        scaler = OracleScaler(lifetimes(needed, SLOT_S, scenario.initial, scenario.starts()))
        return simulate(scenario, scaler), max(needed)
    first, second = values
    return run_baseline(scenario, policy, (first, second)).result, 0


def line_of(trace: str, policy: str, values: tuple[float, ...], result: RunResult, peak: int) -> dict[str, Any]:
    """One run as it is kept."""
    return {
        "trace": trace,
        "policy": policy,
        "thresholds": list(values),
        "slo_attainment": round(result.slo_attainment, 6),
        "gpu_hours": round(result.gpu_hours, 4),
        "cut_streams": result.cut_streams,
        "direction_changes": result.direction_changes,
        "peak_replicas": peak or result.peak_serving,
        "ttft_p99_ms": round(result.ttft_p99_ms or 0.0, 1),
        "tpot_p99_ms": round(result.tpot_p99_ms or 0.0, 2),
        "requests": result.requests,
    }


def best(lines: list[dict[str, Any]], attainment: float) -> dict[str, Any]:
    """Fewest GPU hours that meet the SLO, else the highest attainment; with how many runs it was chosen from."""
    good = [line for line in lines if line["slo_attainment"] >= attainment]
    chosen = min(good, key=lambda one: one["gpu_hours"]) if good else max(lines, key=lambda one: one["slo_attainment"])
    return chosen | {"chosen_from": len(lines)}


def summary(lines: list[dict[str, Any]], limits: dict[str, float]) -> dict[str, Any]:
    """The best run of each policy, ratios to the oracle, and whether the limits hold; null where a run is missing."""
    found: dict[str, Any] = {}
    for policy in dict.fromkeys(line["policy"] for line in lines):
        found[policy] = best([line for line in lines if line["policy"] == policy], limits["slo_attainment"])
    oracle = found.get("oracle")
    for one in found.values():
        one["oracle_ratio"] = round(one["gpu_hours"] / oracle["gpu_hours"], 4) if oracle else None
    ours = found.get(OURS)
    holds = None
    if ours and oracle:
        holds = ours["slo_attainment"] >= limits["slo_attainment"] and ours["oracle_ratio"] <= limits["oracle_ratio"]
    better = [
        line
        for line in lines
        if ours
        and line["policy"] in GRIDS
        and line["slo_attainment"] >= ours["slo_attainment"]
        and line["gpu_hours"] <= ours["gpu_hours"]
    ]
    run = {(line["policy"], tuple(line["thresholds"])) for line in lines}
    missing = {policy: sum((policy, pair) not in run for pair in grid(policy)) for policy in GRIDS}
    return {"policies": found, "limits_hold": holds, "baselines_better_on_both": better, "grid_runs_missing": missing}


def plotted(scenario: Scenario, name: str, factor: float, chosen: dict[str, Any]) -> str:
    """A page with the chosen run of each policy, made once more for its course over time."""
    runs = {policy: one_run(scenario, policy, tuple(one["thresholds"]))[0] for policy, one in chosen.items()}
    shown = {"trace": {"name": name}, "rate_factor": factor, "policies": chosen}
    return page_of(shown, [Outcome(policy, result) for policy, result in runs.items()])


def main() -> int:
    """Print the document; 1 when a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--trace", action="append")
    parser.add_argument("--policy", action="append", choices=[OURS, "oracle", *GRIDS])
    parser.add_argument("--runs", type=Path, help="JSON lines of single runs: read first, then appended to")
    parser.add_argument("--no-runs", action="store_true", help="only sum up what stands in --runs")
    parser.add_argument("--plot", type=Path, help="run the best of each policy once more and write a page a trace here")
    parser.add_argument("--out", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    kept = arguments.runs.read_text().splitlines() if arguments.runs and arguments.runs.exists() else []
    lines: list[dict[str, Any]] = [json.loads(line) for line in kept]
    done = {(line["trace"], line["policy"], tuple(line["thresholds"])) for line in lines}
    for name in arguments.trace or settings["traces"]:
        scenario = None
        for policy, values in [] if arguments.no_runs else tasks(arguments.policy or ["oracle", OURS, *GRIDS]):
            if (name, policy, values) in done:
                continue
            scenario = scenario or scenario_of(settings, settings["traces"][name], arguments.traces)
            lines.append(line_of(name, policy, values, *one_run(scenario, policy, values)))
            print(lines[-1], file=sys.stderr, flush=True)
            if arguments.runs:
                with arguments.runs.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    traces = {
        name: summary([one for one in lines if one["trace"] == name], settings["limits"]) for name in settings["traces"]
    }
    document = {
        "schema": "tonnage.benchmark.autoscale/1",
        "python": platform.python_version(),
        "settings": settings,
        "traces": traces,
        "runs": lines,
    }
    for name in (arguments.trace or settings["traces"]) if arguments.plot else ():
        scenario = scenario_of(settings, settings["traces"][name], arguments.traces)
        arguments.plot.mkdir(parents=True, exist_ok=True)
        page = plotted(scenario, name, settings["traces"][name]["rate_factor"], traces[name]["policies"])
        (arguments.plot / f"autoscale-{name}.html").write_text(page)
    text = json.dumps(document, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 1 if any(one["limits_hold"] is False or one["baselines_better_on_both"] for one in traces.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
