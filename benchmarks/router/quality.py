"""Routing quality against peers: a trace through each router in turn, over simulated engines, at stated loads.

usage: python benchmarks/router/quality.py TRACE [--rates R ...] [--only NAME ...] [--time-scale X] [--out RUNS.json]
       python benchmarks/router/quality.py TRACE --tune PEER --out TUNING.json     the best of the stated settings
       python benchmarks/router/quality.py TRACE --capacity                        the fleet's capacity, recomputed
       python benchmarks/router/quality.py --report RUNS.json ... --out RESULT.json    merge, compare, judge the gates
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import uvloop
import yaml
from quality_fleet import cpu_s, installed, machine, prompt_shares, running
from quality_report import merged, table

from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.fleet import Fleet, FleetConfig
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.slo import Slo
from tonnage_core.traces import TraceRequest
from tonnage_loadgen import report
from tonnage_loadgen.replay import ReplayOptions, ReplayResult, replay
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.catalogue import load_gpu, load_model

HERE = Path(__file__).resolve().parent
FLOOD = 5.0
"""Arrivals come this much faster than the trace's when the capacity is looked for."""


def main() -> int:
    """Run what was asked; 1 when a gate of a report fails."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run that is ended ends its processes
    arguments = _parser().parse_args()
    settings = yaml.safe_load((HERE / "quality.yaml").read_text())
    if arguments.report:
        return _report(arguments, settings)
    if arguments.short:
        settings |= settings["short"]
        arguments.only = arguments.only or settings["short"]["only"]
    settings |= {"time_scale": arguments.time_scale or settings["time_scale"]}
    settings |= {"rates": arguments.rates or settings["rates"], "limit": arguments.limit or settings["limit"]}
    requests = read_trace(arguments.trace).requests
    if arguments.capacity:
        print(json.dumps({"capacity_rps": round(capacity_rps(settings, requests), 2)}))
    elif arguments.tune:
        _tune(arguments, settings, requests)
    else:
        _measure(arguments, settings, requests)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", default=HERE.parents[1] / "samples" / "mooncake_sample.jsonl")
    parser.add_argument("--short", action="store_true", help="ours alone, a slice of the trace, a faster clock")
    parser.add_argument("--rates", type=float, nargs="+", default=[])
    parser.add_argument("--only", nargs="+", default=[], help="these routers")
    parser.add_argument("--setting", default="default", help="of the peers: a name under `settings`")
    parser.add_argument("--time-scale", type=float)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--capacity", action="store_true")
    parser.add_argument("--tune", help="a router whose settings are compared on the tuning slice")
    parser.add_argument("--report", type=Path, nargs="+", default=[])
    parser.add_argument("--out", type=Path)
    return parser


def _measure(arguments: argparse.Namespace, settings: dict[str, Any], requests: tuple[TraceRequest, ...]) -> None:
    """Every chosen router at every rate; the file grows by a run at a time, so that nothing measured is lost."""
    chosen = {n: spec for n, spec in settings["routers"].items() if not arguments.only or n in arguments.only}
    runs: list[dict[str, Any]] = []
    for rate in settings["rates"]:
        for name, spec in chosen.items():
            if not installed(spec):
                print(f"{name}: not installed, left out", file=sys.stderr)
                continue
            setting = arguments.setting if "tuned" in spec else "default"
            runs.append(one_run(settings, requests, name, rate, setting))
            print(table(runs[-1:]), flush=True)
            _save(arguments.out, runs)


def _tune(arguments: argparse.Namespace, settings: dict[str, Any], requests: tuple[TraceRequest, ...]) -> None:
    sliced = settings | {"time_scale": settings["tuning"]["time_scale"], "limit": settings["tuning"]["limit"]}
    runs = []
    for setting in settings["settings"]:
        runs.append(one_run(sliced, requests, arguments.tune, settings["tuning"]["rate"], setting) | {"tuning": True})
        print(table(runs[-1:]), flush=True)
        _save(arguments.out, runs)


def _save(out: Path | None, runs: list[dict[str, Any]]) -> None:
    if out is not None:
        out.write_text(json.dumps(runs, indent=1) + "\n")


def one_run(
    settings: dict[str, Any], requests: tuple[TraceRequest, ...], name: str, rate: float, setting: str
) -> dict[str, Any]:
    """Fresh engines, a fresh router, the trace once: the report with what the machine did meanwhile."""
    requests = requests[: settings["limit"]]
    natural = (len(requests) - 1) / (requests[-1].arrival_s - requests[0].arrival_s)
    speed = rate * settings["capacity_rps"] / natural
    slo = Slo(**settings["slo"])
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"quality-{os.getpid()}.log"
    with running(settings, settings["routers"][name], settings["settings"][setting], log) as fleet:
        options = ReplayOptions(
            url=fleet["url"],
            speed=speed * settings["time_scale"],
            time_scale=settings["time_scale"],
            prompt_format=settings["routers"][name].get("prompts", "text"),
            seed=settings["seed"],
        )
        overhead = fixed_overhead(options, settings["overhead"], fleet) if settings["time_scale"] != 1 else None
        before, load_before = machine(), os.getloadavg()
        begun = time.time()
        engines, router = cpu_s(fleet["engine_pids"]), cpu_s([fleet["router_pid"]])
        result, cache = uvloop.run(_replay(options, requests, fleet["engines"]))
        after = machine()
        document = report.build(result, slo, kind="quality_run", cache=cache, trace="mooncake_conversation.jsonl")
        if overhead:
            document["without_overhead"] = _forgiven(result, slo, overhead)
        spent = {
            "engines": round(cpu_s(fleet["engine_pids"]) - engines, 2),
            "router": round(cpu_s([fleet["router_pid"]]) - router, 2),
        }
        shares = prompt_shares(fleet["engines"])
    wall = after["all_s"] - before["all_s"]
    document.pop("timeline", None)
    return {
        "router": name,
        "setting": setting,
        "rate": rate,
        "offered_rps": round(rate * settings["capacity_rps"], 4),
        "time_scale": settings["time_scale"],
        "limit": len(requests),
        "started": time.strftime("%H:%M:%S", time.gmtime(begun)),
        "cpu_s": spent,
        "machine": {
            "busy_share": round((after["busy_s"] - before["busy_s"]) / wall, 3),
            "waited_share": round((after["waited_s"] - before["waited_s"]) / (time.time() - begun), 3),
            "load_before": [round(value, 2) for value in load_before],
            "load_after": [round(value, 2) for value in os.getloadavg()],
        },
        "prompt_share_by_engine": shares,
        "report": document,
    }


def fixed_overhead(options: ReplayOptions, paced: dict[str, Any], fleet: dict[str, Any]) -> dict[str, float]:
    """What the router adds to a short request that is alone, in engine ms: medians through it less those beside it."""
    medians = []
    for salt, url in (("beside", fleet["engines"][0]), ("through", fleet["url"])):
        alone = replace(options, url=url, speed=options.time_scale, cache_salt=salt)
        shapes = [
            TraceRequest(i, i * paced["gap_s"], paced["input_tokens"], paced["output_tokens"], (i,))
            for i in range(paced["requests"])
        ]
        seen = report.build(uvloop.run(replay(alone, shapes)), kind="quality_run")
        medians.append({name: seen[name]["p50"] for name in ("ttft_ms", "tpot_ms")})
    beside, through = medians
    return {name: round(max(0.0, through[name] - beside[name]), 3) for name in through}


def _forgiven(result: ReplayResult, slo: Slo, overhead: dict[str, float]) -> dict[str, Any]:
    """The run judged as if the router added nothing to a request that is alone."""
    wider = replace(slo, ttft_ms=slo.ttft_ms + overhead["ttft_ms"], tpot_ms=slo.tpot_ms + overhead["tpot_ms"])
    judged = report.build(result, wider, kind="quality_run")
    return {"overhead": overhead, **{name: judged[name] for name in ("goodput_rps", "slo_attainment")}}


async def _replay(
    options: ReplayOptions, requests: tuple[TraceRequest, ...], engines: list[str]
) -> tuple[ReplayResult, report.FleetCache | None]:
    cache = await report.fleet_cache(tuple(engines))
    return await replay(options, requests), cache


def capacity_rps(settings: dict[str, Any], requests: tuple[TraceRequest, ...]) -> float:
    """Completions a second of the engine models when more arrives than they can serve; see quality.yaml."""
    shape, gpu = load_model(settings["model"]), load_gpu(settings["gpu"])
    config = FleetConfig(
        replicas=settings["engines"],
        engine=engine_config_for(shape, gpu),
        profile=POLICIES["prefix"],
        seed=settings["seed"],
        rate_scale=FLOOD,
        keep_gaps=False,
    )
    chosen = requests[: settings["limit"]]
    result = Fleet(config, step_time_for(shape, gpu), Random(settings["seed"])).run(chosen)
    return len(chosen) * settings["engines"] / result.counters.busy_s


def _report(arguments: argparse.Namespace, settings: dict[str, Any]) -> int:
    runs = [run for path in arguments.report for run in json.loads(path.read_text())]
    about = {
        "schema": "tonnage.bench_router_quality/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "commit": _commit(),
        "settings": settings,
    }
    document = about | merged(runs, settings["gates"])
    print(table(runs))
    print(json.dumps(document["gates"], indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(gate["holds"] for gate in document["gates"].values()) else 1


def _commit() -> str | None:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True, cwd=HERE
    )
    return found.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
