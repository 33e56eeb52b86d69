"""`tonnage bench --capacity` on a simulated fleet beside the engine model's answer; the planner its sweep calibrates.

python benchmarks/bench/capacity.py OUT.json [--virtual]

The fleet is `tonnage up`: engines and router over HTTP in real time. The model's answer is `core.engine`'s fleet in
virtual time on long runs of the same workload. Nothing of the one is known to the other but the settings.
"""

import asyncio
import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import yaml
from tonnage_command import TONNAGE, command

from tonnage_core.benchmarking.arrivals import Arrivals, schedule
from tonnage_core.benchmarking.capacity import SearchSettings
from tonnage_core.benchmarking.lengths import parse_lengths
from tonnage_core.benchmarking.workload import Mix, RequestClass, plan_requests
from tonnage_core.engine.closed_loop import closed_loop
from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.fleet import Fleet, FleetConfig
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.hardware import find_gpu
from tonnage_core.memory.truth import truth_row
from tonnage_core.prediction.calibrate import calibrate, chosen, predict_calibrated
from tonnage_core.prediction.truth import Point, points_of
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.slo import Slo, percentile
from tonnage_loadgen.bench_points import Deployment, point_run, points_csv
from tonnage_loadgen.bench_run import document
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.shard import Endpoint, ShardResult
from tonnage_loadgen.sweep import find_capacity
from tonnage_loadgen.verdict import ClientVerdict
from tonnage_runtime.catalogue import load_gpu, load_model

SETTINGS = yaml.safe_load((Path(__file__).parent / "capacity.yaml").read_text())


def mix_of(load: dict[str, str]) -> Mix:
    return Mix((RequestClass("all", 1.0, parse_lengths(load["input_tokens"]), parse_lengths(load["output_tokens"])),))


def _config(seed: int) -> FleetConfig:
    fleet = SETTINGS["fleet"]
    shape = load_model(fleet["model"])
    return FleetConfig(
        replicas=fleet["engines"],
        engine=engine_config_for(shape, load_gpu(fleet["gpu"])),
        profile=POLICIES[fleet["policy"]],
        model=shape.name,
        seed=seed,
        keep_gaps=False,
    )


def model_meets(rate: float, seed: int) -> bool:
    """One long run in virtual time: do the percentiles of TTFT and TPOT meet the SLO?"""
    fleet, slo, model = SETTINGS["fleet"], SETTINGS["slo"], SETTINGS["model"]
    shape, gpu = load_model(fleet["model"]), load_gpu(fleet["gpu"])
    rng = Random(seed)
    times = schedule(Arrivals("poisson", rate), model["requests"] / rate, rng)
    requests = [each.request for each in plan_requests(mix_of(SETTINGS["load"]), times, rng)]
    records = Fleet(_config(seed), step_time_for(shape, gpu), Random(seed)).run(requests).records[len(requests) // 20 :]
    for name in ("ttft", "tpot"):
        values = sorted(v for r in records if (v := getattr(r, f"{name}_s")) is not None)
        found = percentile(values, slo["percentile"])
        if found is None or found * 1e3 > slo[f"{name}_ms"]:
            return False
    return True


def model_capacity() -> float:
    """Bisection; a rate passes when most seeds do."""
    model = SETTINGS["model"]
    low, high = model["low_rps"], model["high_rps"]
    while high / low > 1 + model["precision"]:
        middle = math.sqrt(low * high)
        passed = sum(model_meets(middle, seed) for seed in range(model["seeds"]))
        low, high = (middle, high) if passed > model["seeds"] / 2 else (low, middle)
        print(f"model: {low:.3f} to {high:.3f} requests/s", flush=True)
    return math.sqrt(low * high)


def virtual_search() -> dict[str, Any]:
    """The bench's own search and judging, its runs of the same length made in virtual time: no machine disturbs it."""
    fleet, search, slo = SETTINGS["fleet"], SETTINGS["search"], SETTINGS["slo"]
    shape, gpu = load_model(fleet["model"]), load_gpu(fleet["gpu"])

    async def run(spec: BenchSpec) -> dict[str, Any]:
        shard = spec.shard()
        requests = [each.request for each in shard.planned]
        records = Fleet(_config(spec.seed), step_time_for(shape, gpu), Random(spec.seed)).run(requests).records
        verdict = ClientVerdict(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, False, None)
        return document(shard, [ShardResult(records, verdict, 0, 0, 0.0, ())], spec.judging())

    spec = BenchSpec(
        Endpoint("http://none", fleet["model"]),
        mix_of(SETTINGS["load"]),
        Arrivals("poisson", search["start_rps"]),
        search["duration_s"],
        slo=Slo(slo["ttft_ms"], slo["tpot_ms"], slo["percentile"]),
    )
    settings = SearchSettings(search["start_rps"], search["tolerance"], search["most_runs"])
    found = []
    for seed in range(SETTINGS["virtual_seeds"]):
        answer, steps = asyncio.run(find_capacity(replace(spec, seed=seed), settings, run=run))
        found.append({"passes_rps": answer.capacity, "fails_rps": answer.failing, "runs": len(steps)})
        print(f"virtual: {found[-1]}", flush=True)
    return {"searches": found, "planner": virtual_planner()}


def virtual_planner() -> dict[str, Any]:
    """The planner calibrated by the same sweep of an undisturbed engine."""
    asked, fleet = SETTINGS["sweep"], SETTINGS["fleet"]
    shape, gpu = load_model(fleet["model"]), load_gpu(fleet["gpu"])
    deployment = Deployment(fleet["model"], "", "vllm", "0.32.0", fleet["gpu"])
    runs = []
    for number, users in enumerate(asked["users"]):
        spec = BenchSpec(
            Endpoint("http://none", fleet["model"]),
            mix_of(asked),
            users=users,
            requests=max(asked["least"], asked["rounds"] * users),
            seed=number,
        )
        shard = spec.shard()
        requests = [each.request for each in shard.planned]
        records = closed_loop(engine_config_for(shape, gpu), step_time_for(shape, gpu), requests, users)
        verdict = ClientVerdict(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, False, None)
        found = document(shard, [ShardResult(records, verdict, 0, 0, 0.0, ())], spec.judging())
        runs.append(point_run(f"virtual.c{users}", spec, found, users))
    text = points_csv(runs, deployment)
    points = points_of([(truth_row(row), shape, find_gpu(fleet["gpu"])) for row in csv.DictReader(io.StringIO(text))])
    return {f"{count}_points": held_out(points, count) for count in (2, 3)}


def measured_capacity(urls: dict[str, Any]) -> dict[str, Any]:
    """The command's answer, in engine requests/s: its rates are of wall time."""
    search, slo, speed = SETTINGS["search"], SETTINGS["slo"], SETTINGS["fleet"]["speed"]
    found = command(
        *("bench", "--url", urls["router"], "--capacity", "--time-scale", str(speed)),
        *("--rate", str(search["start_rps"] * speed), "--tolerance", str(search["tolerance"])),
        *("--most-runs", str(search["most_runs"]), "--duration-s", str(search["duration_s"] / speed)),
        *("--slo-ttft-ms", str(slo["ttft_ms"]), "--slo-tpot-ms", str(slo["tpot_ms"])),
        *("--slo-percentile", str(slo["percentile"])),
        *("--input-tokens", SETTINGS["load"]["input_tokens"], "--output-tokens", SETTINGS["load"]["output_tokens"]),
    )
    capacity = found["capacity"]
    ends = [None if end is None else end / speed for end in (capacity["capacity"], capacity["failing"])]
    curve = [
        {"rate_rps": row["rate_rps"] / speed}
        | {name: row[name] for name in ("met", "goodput_rps", "concurrency", "percentiles", "notes")}
        for row in found["curve"]
    ]
    return {"passes_rps": ends[0], "fails_rps": ends[1], "runs": capacity["runs"], "curve": curve}


def sweep(urls: dict[str, Any], folder: Path) -> list[Point]:
    """Closed loops on one engine, as the planner reads them."""
    asked, fleet, file = SETTINGS["sweep"], SETTINGS["fleet"], folder / "points.csv"
    command(
        *("bench", "--url", urls["engines"][0], "--time-scale", str(fleet["speed"]), "--points", str(file)),
        *(
            "--sweep-users",
            ",".join(map(str, asked["users"])),
            "--requests",
            str(asked["least"]),
            "--requests-per-user",
            str(asked["rounds"]),
        ),
        *("--input-tokens", asked["input_tokens"], "--output-tokens", asked["output_tokens"]),
        *("--catalogue-model", fleet["model"], "--gpu", fleet["gpu"], "--engine", "vllm:0.32.0"),
    )
    shape, gpu = load_model(fleet["model"]), find_gpu(fleet["gpu"])
    return points_of([(truth_row(row), shape, gpu) for row in csv.DictReader(io.StringIO(file.read_text()))])


def held_out(points: list[Point], count: int) -> dict[str, Any]:
    """Errors on the points that did not calibrate."""
    used = chosen(points, count)
    calibration = calibrate(used)
    rows = []
    for point in points:
        if point not in used:
            found = predict_calibrated(point.request, calibration)
            rows.append(
                {
                    "users": point.request.concurrency,
                    "tpot_error": round(found.tpot_ms.value / (point.tpot_ms or math.nan) - 1, 4),
                    "ttft_error": round(found.ttft_ms.value / (point.ttft_ms or math.nan) - 1, 4),
                }
            )
    mean = {name: round(sum(abs(row[name]) for row in rows) / len(rows), 4) for name in ("tpot_error", "ttft_error")}
    return {"calibrated_on": [point.request.concurrency for point in used], "mean": mean, "held_out": rows}


def up(folder: Path) -> "subprocess.Popen[bytes]":
    fleet, file = SETTINGS["fleet"], folder / "urls.json"
    process = subprocess.Popen(
        [
            *(TONNAGE, "up", "--engines", str(fleet["engines"]), "--model", fleet["model"], "--gpu", fleet["gpu"]),
            *("--policy", fleet["policy"], "--speed", str(fleet["speed"]), "--port-base", "0"),
            *("--urls-file", str(file), "--state-dir", str(folder / "state")),
        ],
        stdout=subprocess.DEVNULL,
    )
    for _ in range(1200):
        if file.exists() or process.poll() is not None:
            return process
        time.sleep(0.1)
    raise SystemExit("the fleet did not start")


def real(document: dict[str, Any]) -> None:
    """The sweep and the search over HTTP."""
    with tempfile.TemporaryDirectory(prefix="capacity-") as name:
        folder = Path(name)
        process = up(folder)
        try:
            urls = json.loads((folder / "urls.json").read_text())
            document["load_average_1min"] = round(os.getloadavg()[0], 1)
            points = sweep(urls, folder)
            document["planner"] = {f"{count}_points": held_out(points, count) for count in (2, 3)}
            print(json.dumps(document["planner"]), flush=True)
            document["bench"] = measured_capacity(urls)
            print(json.dumps(document["bench"]), flush=True)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _planner_holds(planner: dict[str, Any]) -> bool:
    limits = SETTINGS["limits"]
    two, three = (planner[f"{count}_points"]["mean"] for count in (2, 3))
    return bool(
        two["tpot_error"] <= limits["tpot_2_points"]
        and two["ttft_error"] <= limits["ttft_2_points"]
        and three["tpot_error"] <= limits["tpot_3_points"]
    )


def verdict(document: dict[str, Any]) -> dict[str, Any]:
    """The figures that were asked for, against the model's answer."""
    limits, model = SETTINGS["limits"], document["model_rps"]
    found: dict[str, Any] = {}
    if "virtual" in document:
        errors = [each["passes_rps"] / model - 1 for each in document["virtual"]["searches"]]
        found["virtual_errors"] = [round(error, 4) for error in errors]
        found["virtual_within"] = sum(abs(error) <= limits["capacity"] for error in errors)
        found["virtual_planner_holds"] = _planner_holds(document["virtual"]["planner"])
        found["virtual_most_runs"] = max(each["runs"] for each in document["virtual"]["searches"])
    if "bench" in document:
        bench = document["bench"]
        found["capacity_error"] = round(bench["passes_rps"] / model - 1, 4)
        found["capacity_holds"] = abs(found["capacity_error"]) <= limits["capacity"]
        found["runs_hold"] = bench["runs"] < limits["runs"]
        found["planner_holds"] = _planner_holds(document["planner"])
    return found


def main() -> None:
    document: dict[str, Any] = {"benchmark": "bench/capacity", "settings": SETTINGS}
    if "--virtual" in sys.argv:
        document["virtual"] = virtual_search()
    else:
        real(document)
    document["model_rps"] = round(model_capacity(), 4)
    document["verdict"] = verdict(document)
    print(json.dumps(document["verdict"], indent=1))
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
