"""Coverage of the bench's percentile intervals on M/M/1 and M/D/1, and the tail a closed loop hides; virtual time.

python benchmarks/bench/queues.py [OUT.json]
"""

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tonnage_core.benchmarking.arrivals import Arrivals, schedule
from tonnage_core.benchmarking.known_queues import closed_sojourns, md1_percentile, sojourns
from tonnage_core.benchmarking.statistics import interval_of
from tonnage_core.queueing import mm1_percentile
from tonnage_core.slo import percentile

SETTINGS = yaml.safe_load((Path(__file__).parent / "queues.yaml").read_text())


def one_run(seed: int, load: float, requests: int, *, exponential: bool) -> list[float]:
    rng = Random(seed)
    arrivals = schedule(Arrivals("poisson", load), requests * 1.2 / load, rng)
    services = [rng.expovariate(1.0) if exponential else 1.0 for _ in arrivals]
    return sojourns(arrivals, services)[requests // 10 :][:requests]


def coverage(load: float, requests: int, *, exponential: bool) -> dict[str, Any]:
    formula = mm1_percentile if exponential else md1_percentile
    truth = {percent: formula(1.0, load, percent) for percent in SETTINGS["percentiles"]}
    inside = dict.fromkeys(truth, 0)
    for seed in range(SETTINGS["seeds"]):
        values = one_run(seed, load, requests, exponential=exponential)
        for percent, value in truth.items():
            found = interval_of(values, percent)
            inside[percent] += found is not None and found.holds(value)
    names = {f"p{percent}": count for percent, count in inside.items()}
    return {
        "queue": "M/M/1" if exponential else "M/D/1",
        "load": load,
        "requests": requests,
        "inside": names,
        "holds": min(inside.values()) >= 0.85 * SETTINGS["seeds"],
        "truth_in_services": {f"p{percent}": round(value, 4) for percent, value in truth.items()},
    }


def closed_loop_bias() -> dict[str, Any]:
    asked = SETTINGS["closed_loop"]
    rng = Random(1)
    services = [rng.expovariate(1.0) for _ in range(asked["requests"])]
    seen = sorted(closed_sojourns(asked["users"], services, asked["think_s"]))
    load = asked["users"] / (sum(seen) / len(seen) + asked["think_s"])  # Little's law; a service takes 1 s
    open_p99 = mm1_percentile(1.0, load, 99)
    return asked | {"load": load, "p99_in_services": percentile(seen, 99), "open_loop_p99_at_that_load": open_p99}


def main() -> None:
    rows = []
    for load, requests in SETTINGS["loads"].items():
        for exponential in (True, False):
            rows.append(coverage(load, requests, exponential=exponential))
            print(json.dumps(rows[-1]), flush=True)
    document = {"benchmark": "bench/queues", "seeds": SETTINGS["seeds"], "rows": rows, "closed": closed_loop_bias()}
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
