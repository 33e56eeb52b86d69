"""`make chaos`: a trace goes through the fleet while each fault in settings.yaml is done to it in turn.

usage: python benchmarks/chaos/run.py [--short] [--only WORD …] [--out RESULT.json]

Exit code 1 when a fault cost more than its part promises (docs/trust.md), or a part did not come back.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
import yaml
from faults import KINDS
from fleet import Fleet, options
from judge import Span, judged, table
from load import Load

from tonnage_core.traces import TraceRequest, parse_trace, truncated

HERE = Path(__file__).resolve().parent
BACK_S = 60.0
"""Every part is back by then, or the run fails."""


def main() -> int:
    """Run every fault, or those whose name holds a word of `--only`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the few faults marked short, for CI")
    parser.add_argument("--only", nargs="+", default=[], help="words of names")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    if arguments.short:
        settings |= settings["short"]
    chosen = [f for f in settings["faults"] if f.get("short") or not arguments.short]
    chosen = [f for f in chosen if not arguments.only or any(word in f["name"] for word in arguments.only)]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tonnage-chaos-") as folder:
        rows = uvloop.run(attack(settings, chosen, Path(folder)))
    document = {
        "schema": "tonnage.chaos/1",
        "date": time.strftime("%Y-%m-%d"),
        "short": arguments.short,
        "settings": {key: settings[key] for key in ("model", "gpu", "engines", "speed", "rate_rps", "seed")},
        "faults": len(rows) - 1,
        "requests": sum(row["sent"] for row in rows),
        "beyond_promise": sum(row["beyond_promise"] for row in rows),
        "wall_s": round(time.monotonic() - begun, 1),
        "load_average": os.getloadavg()[0],
        "rows": rows,
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(rows))
    print(json.dumps({key: value for key, value in document.items() if key != "rows"}))
    for row in rows:
        for example in row["examples"]:
            print(f"beyond the promise of {row['fault']!r}: {example}", file=sys.stderr)
    return 1 if document["beyond_promise"] else 0


def requests(settings: dict[str, Any]) -> list[TraceRequest]:
    """The trace's requests, with prompts and answers cut so that all of them fit the rate."""
    found = parse_trace((HERE.parents[1] / settings["trace"]).read_bytes()).requests
    cut = (truncated(one, settings["max_input"]) for one in found)
    return [
        TraceRequest(r.index, r.arrival_s, r.input_length, min(r.output_length, settings["max_output"]), r.hash_ids)
        for r in cut
    ]


async def attack(settings: dict[str, Any], chosen: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Rows of all faults, the quiet time first."""
    fleet = Fleet(options(settings, folder), folder)
    load = Load(settings["model"], fleet.routers, requests(settings), settings["rate_rps"])
    quiet = {"name": "no fault", "kind": "nothing"}
    spans, back = [], []
    try:
        await fleet.start()
        load.start()
        await asyncio.sleep(settings["warm_s"])
        for fault in [quiet, *chosen]:
            began = time.monotonic()
            async with KINDS[fault["kind"]](fleet, fault):
                await asyncio.sleep(fault.get("for_s", settings["for_s"]))
                ended = time.monotonic()
            back.append(await fleet.settled(BACK_S))
            await asyncio.sleep(settings["after_s"])
            spans.append(Span(began, ended, time.monotonic()))
            print(f"{fault['name']}: back after {back[-1]:.1f} s", file=sys.stderr, flush=True)
        await load.stop()
    finally:
        await fleet.stop()
    spans[-1] = Span(spans[-1].began, spans[-1].ended, time.monotonic())
    rows = []
    for fault, span, seconds in zip([quiet, *chosen], spans, back, strict=True):
        victim = fleet.endpoint(fault["target"]) if fault.get("target") in fleet.proxies else ""
        rows.append({**judged(fault, span, load.records, victim), "settled_s": round(seconds, 2)})
    return rows


if __name__ == "__main__":
    sys.exit(main())
