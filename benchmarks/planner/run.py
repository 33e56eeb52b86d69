"""CPU time of reading one engine's metrics and of one decision over a pool.

usage: python benchmarks/planner/run.py [--short] [--out RESULT.json]
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tonnage_core.autoscaling.engine_metrics import WANTED, read_engine
from tonnage_core.autoscaling.exposition import parse
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.state_machine import PoolState, decide

HERE = Path(__file__).resolve().parent
LABELS = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'


def body(settings: dict[str, Any]) -> str:
    """A vLLM-like exposition: the wanted gauges and counters among histograms and other gauges."""
    lines = [f"{name}{{{LABELS}}} 0.5" for name in sorted(WANTED) if name.startswith("vllm:")]
    for index in range(settings["histograms"]):
        name = f"vllm:histogram_{index}_seconds"
        lines += [f"# HELP {name} Histogram.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{LABELS},le="{edge}"}} 12.0' for edge in range(settings["buckets"])]
        lines += [f'{name}_bucket{{{LABELS},le="+Inf"}} 12.0', f"{name}_sum{{{LABELS}}} 3.5"]
        lines += [f"{name}_count{{{LABELS}}} 12.0"]
    for index in range(settings["gauges"]):
        lines += [f"# TYPE vllm:gauge_{index} gauge", f"vllm:gauge_{index}{{{LABELS}}} 1.0"]
    return "\n".join(lines) + "\n"


def best_ms(work: Callable[[], object], rounds: int, repeats: int) -> float:
    """The quickest round's CPU milliseconds a call."""
    times = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(repeats):
            work()
        times.append((time.process_time() - started) / repeats)
    return round(min(times) * 1e3, 3)


def main() -> int:
    """Print the document; 1 when a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a fifth of the repeats")
    parser.add_argument("--out", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    rounds, repeats = settings["rounds"], settings["repeats"] // (5 if arguments.short else 1)
    text = body(settings)
    reading = read_engine(parse(text, WANTED))
    seen = [Observation(str(n), "p", Knowledge.FRESH, "", 1.0, 0.0, reading) for n in range(settings["endpoints"])]
    results = {
        "body_bytes": len(text),
        "body_lines": text.count("\n"),
        "scrape_ms": best_ms(lambda: read_engine(parse(text, WANTED)), rounds, repeats),
        "full_parser_ms": best_ms(lambda: list(text_string_to_metric_families(text)), rounds, max(1, repeats // 10)),
        "decision_ms": best_ms(lambda: decide(PoolState(), seen, 0.0, ScalingPolicy()), rounds, repeats),
    }
    document = {
        "schema": "tonnage.benchmark.planner/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "settings": settings,
        "results": results,
    }
    print(json.dumps(document, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if all(results[name] <= limit for name, limit in settings["limits"].items()) else 1


if __name__ == "__main__":
    sys.exit(main())
