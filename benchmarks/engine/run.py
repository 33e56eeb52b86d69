"""How long the discrete-event fleet takes for an hour of real traffic: CPU seconds of one core, peak memory.

usage: python benchmarks/engine/run.py [TRACE] [--short] [--out RESULT.json]
"""

import argparse
import json
import platform
import resource
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.fleet import Fleet, FleetConfig, FleetResult
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.catalogue import load_gpu, load_model

HERE = Path(__file__).resolve().parent


def main() -> int:
    arguments = _arguments()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    trace = arguments.trace or HERE.parent.parent / settings["trace"]
    requests = [r for r in read_trace(trace).requests if r.arrival_s < 3600 * settings["hours"]]
    if arguments.short:
        requests = requests[:300]
    results = {policy: _measure(policy, settings, requests) for policy in settings["policies"]}
    document = _document(settings, trace, requests, results)
    print(json.dumps(document, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    slowest = max(result["cpu_s"] for result in results.values())
    return 0 if slowest <= settings["limits"]["cpu_s"] else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="Mooncake JSONL; by default the sample in samples/")
    parser.add_argument("--short", action="store_true", help="the first 300 requests only")
    parser.add_argument("--out", type=Path, help="write the result here too")
    return parser.parse_args()


def _measure(policy: str, settings: dict[str, Any], requests: list[TraceRequest]) -> dict[str, Any]:
    fleet = _fleet(policy, settings)
    cpu, wall = time.process_time(), time.perf_counter()
    result = fleet.run(requests)
    return _result(result, time.process_time() - cpu, time.perf_counter() - wall)


def _fleet(policy: str, settings: dict[str, Any]) -> Fleet:
    shape, gpu = load_model(settings["model"]), load_gpu(settings["gpu"])
    config = FleetConfig(
        replicas=settings["replicas"],
        engine=engine_config_for(shape, gpu, block_size=settings["block_size"]),
        profile=POLICIES[policy],
        model=shape.name,
        seed=settings["seed"],
    )
    return Fleet(config, step_time_for(shape, gpu), Random(settings["seed"]))


def _result(result: FleetResult, cpu_s: float, wall_s: float) -> dict[str, Any]:
    counters = result.counters
    return {
        "cpu_s": round(cpu_s, 2),
        "wall_s": round(wall_s, 2),
        "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "simulated_s": round(result.duration_s, 1),
        "steps": counters.steps,
        "steps_per_cpu_s": round(counters.steps / cpu_s),
        "output_tokens": counters.generation_tokens,
        "hit_tokens": counters.hit_tokens,
        "prompt_tokens": counters.prompt_tokens,
        "preemptions": counters.preemptions,
        "decisions_sha256": result.decisions_sha256,
    }


def _document(
    settings: dict[str, Any], trace: Path, requests: list[TraceRequest], results: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    return {
        "schema": "tonnage.benchmark.engine/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "trace": {"name": trace.name, "requests": len(requests)},
        "settings": settings,
        "results": results,
    }


if __name__ == "__main__":
    sys.exit(main())
