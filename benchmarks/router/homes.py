"""Two runs of equal traffic: how much do the hits differ, with prompts placed by load alone and by their homes?

usage: python benchmarks/router/homes.py MOONCAKE_TRACE [--out RESULT.json]    (settings: homes.yaml; 15 CPU-minutes)
"""

import argparse
import itertools
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.fleet import Fleet, FleetConfig, FleetResult
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.scheduling.pickers import PICKERS
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.catalogue import load_gpu, load_model

SETTINGS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def simulate(requests: list[TraceRequest], picker: str, replicas: int) -> FleetResult:
    shape, gpu = load_model(SETTINGS["model"]), load_gpu(SETTINGS["gpu"])
    engine = replace(engine_config_for(shape, gpu), step_jitter=SETTINGS["step_jitter"])
    profile = replace(POLICIES["prefix"], picker=PICKERS[picker])
    config = FleetConfig(replicas=replicas, engine=engine, profile=profile, model=shape.name, seed=0)
    return Fleet(config, step_time_for(shape, gpu), Random(0)).run(requests)


def first_token(result: FleetResult, share: float) -> float:
    waits = sorted(record.first_s - record.intended_s for record in result.records if record.first_s is not None)
    return round(1e3 * waits[int(share * len(waits))], 1)


def later(requests: list[TraceRequest], seed: int) -> list[TraceRequest]:
    """Each arrival later by up to the jitter, in the same order."""
    rng = Random(seed)
    times = sorted(one.arrival_s + rng.random() * SETTINGS["jitter_ms"] / 1e3 for one in requests)
    return [replace(one, arrival_s=at) for one, at in zip(requests, times, strict=True)]


def repeat(requests: list[TraceRequest], picker: str) -> dict[str, Any]:
    """Runs that differ in the jitter of arrivals alone."""
    how = SETTINGS["repeat"]
    runs = [simulate(later(requests, run), picker, how["replicas"]) for run in range(how["runs"])]
    hits = [sum(record.cached_tokens or 0 for record in one.records) for one in runs]
    pairs = [abs(a - b) / max(a, b) for a, b in itertools.combinations(hits, 2)]
    return {
        "hit_tokens": hits,
        "spread": round(statistics.pstdev(hits) / statistics.mean(hits), 4),
        "pairs_that_agree": round(sum(pair <= how["agree"] for pair in pairs) / len(pairs), 3),
        "ttft_p50_ms": [first_token(one, 0.5) for one in runs],
        "ttft_p99_ms": [first_token(one, 0.99) for one in runs],
    }


def quality(requests: list[TraceRequest], picker: str, share: float, seed: int) -> dict[str, Any]:
    """Goodput and hits at a share of capacity."""
    how = SETTINGS["quality"]
    start, rate = requests[0].arrival_s, share * how["capacity_rps"]
    stretch = len(requests) / (requests[-1].arrival_s - start) / rate
    timed = [replace(one, arrival_s=(one.arrival_s - start) * stretch) for one in requests]
    result = simulate(later(timed, seed), picker, how["replicas"])
    answered = [(r, r.first_s, r.last_s) for r in result.records if r.first_s is not None and r.last_s is not None]
    met = sum(
        first - r.intended_s <= how["ttft_s"] + how["ttft_s_per_prompt_token"] * (r.prompt_tokens or 0)
        and (last - first) / max(1, (r.output_tokens or 0) - 1) <= how["tpot_s"]
        for r, first, last in answered
    )
    return {
        "share": share,
        "seed": seed,
        "goodput_rps": round(met / max(last for _, _, last in answered), 3),
        "slo_attainment": round(met / len(timed), 4),
        "ttft_p50_ms": first_token(result, 0.5),
        "ttft_p99_ms": first_token(result, 0.99),
        "hit_tokens": sum(r.cached_tokens or 0 for r in result.records),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    requests = list(read_trace(options.trace, strict=False).requests)
    how = SETTINGS["quality"]
    result: dict[str, Any] = {
        "schema": "tonnage.bench_router_homes/1",
        "date": time.strftime("%Y-%m-%d"),
        "settings": SETTINGS,
    }
    for picker in SETTINGS["pickers"]:
        rows = result[picker] = {"repeat": repeat(requests[: SETTINGS["repeat"]["requests"]], picker), "quality": []}
        print(picker, rows["repeat"], flush=True)
        for share, seed in itertools.product(how["shares"], how["seeds"]):
            rows["quality"].append(quality(requests[: how["requests"]], picker, share, seed))
            print(picker, rows["quality"][-1], flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
