"""CPU time of one memory answer, and of the accuracy run over the published measurements.

usage: python benchmarks/memory/run.py [--short] [--out RESULT.json]
"""

import argparse
import csv
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tonnage_core.kv_cache import parse_engine
from tonnage_core.memory import MemoryRequest, memory_report
from tonnage_core.memory.accuracy import Case, accuracy_document
from tonnage_core.memory.truth import truth_row
from tonnage_core.parallelism import Layout
from tonnage_runtime.catalogue import load_gpu, load_model

HERE = Path(__file__).resolve().parent
ROWS = HERE.parent.parent / "tests" / "golden" / "planner" / "memory_rows.csv"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the repeats")
    parser.add_argument("--out", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    repeats = settings["repeats"] // (10 if arguments.short else 1)
    document = {
        "schema": "tonnage.benchmark/1",
        "benchmark": "memory",
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "settings": settings,
        "answers": [_answer(case, settings, repeats) for case in settings["cases"]],
        "accuracy": _accuracy(),
    }
    print(json.dumps(document, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    slowest = max(answer["median_ms"] for answer in document["answers"])
    return 0 if slowest <= settings["limits"]["median_ms"] else 1


def _answer(case: dict[str, Any], settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    engine, version = parse_engine(settings["engine"])
    start = time.process_time()
    shape = load_model(case["model"])
    loaded = time.process_time() - start
    request = MemoryRequest(
        shape,
        load_gpu(settings["gpu"]),
        engine=engine,
        engine_version=version,
        layout=Layout(tp=case["tp"], ep=case["ep"]),
    )
    taken = [_seconds(request) for _ in range(repeats)]
    return {
        "model": case["model"],
        "load_ms": round(loaded * 1e3, 3),
        "first_ms": round(taken[0] * 1e3, 3),
        "median_ms": round(statistics.median(taken) * 1e3, 3),
        "p99_ms": round(sorted(taken)[int(0.99 * (len(taken) - 1))] * 1e3, 3),
    }


def _seconds(request: MemoryRequest) -> float:
    start = time.process_time()
    memory_report(request)
    return time.process_time() - start


def _accuracy() -> dict[str, Any]:
    with ROWS.open(newline="", encoding="utf-8") as file:
        rows = [truth_row(columns) for columns in csv.DictReader(file)]
    cases = [
        Case(row, load_model(row.config) if row.config else None, load_gpu(row.gpu) if row.gpu else None)
        for row in rows
    ]
    start = time.process_time()
    found = accuracy_document(cases)
    kept = ("rows", "answered", "false_fits", "false_refusals", "given_pool", "from_flags")
    return {"cpu_s": round(time.process_time() - start, 3), **{name: found[name] for name in kept}}


if __name__ == "__main__":
    sys.exit(main())
