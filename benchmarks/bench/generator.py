"""The bench's own lateness, CPU and truth on one core, beside a mock of known timing on another.

python benchmarks/bench/generator.py [OUT.json]
"""

import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
import yaml

from tonnage_core.benchmarking.arrivals import Arrivals
from tonnage_core.benchmarking.lengths import parse_lengths
from tonnage_core.benchmarking.workload import Mix, RequestClass
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.paced_mock import Pace, PacedMock
from tonnage_loadgen.shard import Endpoint
from tonnage_loadgen.sweep import run_one

SETTINGS = yaml.safe_load((Path(__file__).parent / "generator.yaml").read_text())


def mock(pipe: Connection, pace: dict[str, Any]) -> None:
    async def main() -> None:
        server = await PacedMock(Pace(**pace)).serve()
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    uvloop.run(main())


def spec_of(case: dict[str, Any], port: int, seed: int) -> BenchSpec:
    tokens = parse_lengths(f"constant:{case['pace']['tokens']}")
    mix = Mix((RequestClass("all", 1.0, parse_lengths("constant:128"), tokens),))
    end = Endpoint(f"http://127.0.0.1:{port}", "mock")
    if "users" in case:
        return BenchSpec(end, mix, users=case["users"], requests=case["requests"], seed=seed)
    return BenchSpec(end, mix, Arrivals("poisson", case["rate"]), case["duration_s"], seed=seed)


def measured(case: dict[str, Any], seed: int) -> dict[str, Any]:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=mock, args=(there, case["pace"]), daemon=True)
    server.start()
    try:
        port, load = here.recv(), round(os.getloadavg()[0], 1)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        found = uvloop.run(run_one(spec_of(case, port, seed)))
    finally:
        server.terminate()
        server.join()
    sent = found["requests"]["sent"] + found["requests"]["warmup"]
    client = found["client"]
    return {
        "load_average_1min": load,
        "requests": found["requests"],
        "lateness_ms_p99": client["lateness_ms_p99"],
        "own_lateness_ms_p99": client["own_lateness_ms_p99"],
        "void": client["bound"],
        "cpu_us_per_request": round(client["cpu_s"] / sent * 1e6, 1),
        "ttft_ms": found["ttft_ms"],
        "tpot_ms": found["tpot_ms"],
        "in_time": client["lateness_ms_p99"] < SETTINGS["limit_lateness_ms_p99"],
    }


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    document: dict[str, Any] = {"benchmark": "bench/generator", "settings": SETTINGS, "cases": {}}
    for name, case in SETTINGS["cases"].items():
        runs = []
        for seed in range(case["repeats"]):
            os.sched_setaffinity(0, cores)
            runs.append(measured(case, seed))
            print(name, json.dumps(runs[-1]), flush=True)
        document["cases"][name] = runs
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
