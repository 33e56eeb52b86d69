"""CPU time of one plan by the number of GPU types offered, and what it came to.

usage: python benchmarks/plan/run.py [--short] [--out RESULT.json]
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tonnage_core.planning.plan import make_plan
from tonnage_core.planning.spec import Lookups, read_spec
from tonnage_runtime.catalogue import load_gpu, load_model

HERE = Path(__file__).resolve().parent
FIND = Lookups(load_model, load_gpu, Random)


def measure(asked: dict[str, Any], offers: int, rounds: int) -> dict[str, Any]:
    """The quickest round of a plan over the first `offers` GPUs; every round starts from the specification."""
    part = asked | {"offers": asked["offers"][:offers]}
    times, document = [], {}
    for _ in range(rounds):
        started = time.process_time()
        document = make_plan(read_spec(part, FIND))
        times.append(time.process_time() - started)
    best = document["best"]
    return {
        "cpu_s": round(min(times), 3),
        "cpu_s_all": [round(each, 3) for each in times],
        "considered": document["considered"],
        "simulated": document["simulated"],
        "feasible": document["feasible"],
        "best": best and best["name"],
        "usd_per_mtok": best and best["usd_per_mtok"],
    }


def main() -> int:
    """Print the document; 1 when the limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one round")
    parser.add_argument("--out", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    asked = yaml.safe_load((HERE.parent.parent / settings["specification"]).read_text())
    rounds = 1 if arguments.short else settings["rounds"]
    results = {str(count): measure(asked, count, rounds) for count in settings["offers"]}
    document = {
        "schema": "tonnage.benchmark.plan/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "load_average": [round(each, 1) for each in os.getloadavg()],
        "settings": settings,
        "results": results,
    }
    print(json.dumps(document, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if max(result["cpu_s"] for result in results.values()) <= settings["limits"]["cpu_s"] else 1


if __name__ == "__main__":
    sys.exit(main())
