"""What the load generator costs and how late it is, on one core, against a server of known timing.

usage: python benchmarks/loadgen/run.py [--short] [--floor] [--out RESULT.json]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
import yaml

from tonnage_core.slo import RequestRecord, percentile
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.open_loop import Load, OpenLoop
from tonnage_loadgen.paced_mock import Pace, PacedMock
from tonnage_loadgen.prompt_bytes import RequestFields, RequestTemplate, TextPrompts
from tonnage_loadgen.records import record_of
from tonnage_loadgen.target import parse_target
from tonnage_loadgen.verdict import judge

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="short windows, one run a case")
    parser.add_argument("--floor", action="store_true", help="measure plain aiohttp the same way as well")
    parser.add_argument("--out", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    results = _all_cases(settings, short=arguments.short, floor=arguments.floor)
    document = {
        "schema": "tonnage.benchmark.loadgen/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "short": arguments.short,
        "settings": settings,
        "results": results,
    }
    _print_table(results)
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    limits = settings["limits"]
    late = [
        r["case"] for r in results if r["case"] in limits["held"] and r["client"] == "tonnage" and _is_late(r, limits)
    ]
    if late:
        print(f"lateness p99 over {limits['lateness_ms_p99']} ms: {', '.join(late)}", file=sys.stderr)
    return 1 if late else 0


_COLUMNS = (
    ("us/request", "cpu_us_per_request", "{:.0f}"),
    ("us/token", "cpu_us_per_token", "{:.1f}"),
    ("core", "core_share", "{:.0%}"),
    ("late p99 ms", "lateness_ms_p99", "{:.2f}"),
    ("own late p99", "own_lateness_ms_p99", "{:.2f}"),
    ("at server p99", "arrival_lateness_ms_p99", "{:.2f}"),
    ("TTFT p50", "ttft_ms_p50", "{:.1f}"),
    ("TTFT p99", "ttft_ms_p99", "{:.1f}"),
    ("ITL p99", "itl_ms_p99", "{:.1f}"),
)


def _print_table(results: list[dict[str, Any]]) -> None:
    print(f"{'client':8} {'case':14}" + "".join(f"{title:>14}" for title, _, _ in _COLUMNS))
    for result in results:
        cells = ("-" if result.get(key) is None else form.format(result[key]) for _, key, form in _COLUMNS)
        print(f"{result['client']:8} {result['case']:14}" + "".join(f"{cell:>14}" for cell in cells))


def _is_late(result: dict[str, Any], limits: dict[str, Any]) -> bool:
    return bool(result["lateness_ms_p99"] > limits["lateness_ms_p99"])


def _all_cases(settings: dict[str, Any], *, short: bool, floor: bool) -> list[dict[str, Any]]:
    window = settings["short_window_s" if short else "window_s"]
    results = []
    for client in ("tonnage", "aiohttp") if floor else ("tonnage",):
        for case in settings["cases"]:
            if client == "aiohttp" and not case.get("floor", True):
                continue
            runs = [_one(settings, case, client, window) for _ in range(1 if short else settings["repeats"])]
            middle = {key: _median([run[key] for run in runs]) for key in runs[0]}
            results.append({"case": case["name"], "client": client, **case, "runs": len(runs), **middle})
    return results


def _median(values: list[Any]) -> Any:
    return round(statistics.median(values), 3) if isinstance(values[0], int | float) else values[0]


def _one(settings: dict[str, Any], case: dict[str, Any], client: str, window: float) -> dict[str, Any]:
    """One run in a process of its own, so that memory and collector state are those of a fresh client."""
    pace = Pace(case["tokens"], settings["first_s"], settings["gap_s"])
    ours, theirs = multiprocessing.Pipe()
    mock = multiprocessing.Process(target=_serve, args=(pace, theirs))
    mock.start()
    theirs.close()
    port = ours.recv()
    back, answer = multiprocessing.Pipe()
    generator = multiprocessing.Process(target=_generate, args=(settings, case, client, window, port, answer))
    generator.start()
    answer.close()
    found: dict[str, Any] = back.recv()
    generator.join()
    ours.send("stop")
    arrivals = ours.recv()
    mock.join()
    return found | {"arrival_lateness_ms_p99": _against_schedule(arrivals, case["rate_rps"])}


def _against_schedule(arrivals: list[float], rate: float) -> float:
    """By the server's clock: delay of each arrival against the constant schedule that fits best."""
    offsets = sorted(at - n / rate for n, at in enumerate(sorted(arrivals)))
    late = percentile([offset - offsets[0] for offset in offsets], 99)
    return round((late or 0.0) * 1e3, 3)


def _serve(pace: Pace, pipe: Connection) -> None:
    _pin(0)

    async def serving() -> PacedMock:
        mock = PacedMock(pace)
        server = await mock.serve()
        pipe.send(server.sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_reader(pipe.fileno(), stop.set)
        await stop.wait()
        server.close()
        return mock

    mock = uvloop.run(serving())
    os.set_blocking(pipe.fileno(), True)  # the loop's reader had made it non-blocking
    pipe.recv()
    pipe.send(list(mock.arrivals))


def _generate(
    settings: dict[str, Any], case: dict[str, Any], client: str, window: float, port: int, answer: Connection
) -> None:
    _pin(-1)
    if client == "aiohttp":
        sys.path.insert(0, str(HERE))
        from aiohttp_floor import floor

        answer.send(uvloop.run(floor(case, window, port, settings["prompt_tokens"])))
        return
    answer.send(uvloop.run(_load(settings, case, window, port)))


async def _load(settings: dict[str, Any], case: dict[str, Any], window: float, port: int) -> dict[str, Any]:
    target = parse_target(f"http://127.0.0.1:{port}")
    template = RequestTemplate(target, TextPrompts(), RequestFields("mock"))
    count = int(case["rate_rps"] * window)
    requests = [
        TraceRequest(n, n / case["rate_rps"], settings["prompt_tokens"], case["tokens"], (n,)) for n in range(count)
    ]
    load = await OpenLoop(target, [r.arrival_s for r in requests], lambda n: template.write(requests[n])).run()
    records = [record_of(e, r, load.start) for e, r in zip(load.exchanges, requests, strict=True)]
    return _figures(load, records, case["tokens"])


def _figures(load: Load, records: list[RequestRecord], tokens: int) -> dict[str, Any]:
    client = judge(load, records).document()
    ttft = sorted((r.ttft_s or 0.0) * 1e3 for r in records)
    gaps = sorted(gap * 1e3 for r in records for gap in r.gaps_s)
    return {
        "ok": sum(r.ok for r in records) / len(records),
        "cpu_us_per_request": client["cpu_s"] / len(records) * 1e6,
        "cpu_us_per_token": client["cpu_s"] / len(records) / tokens * 1e6,
        "core_share": client["cpu_s"] / client["wall_s"],
        "lateness_ms_p50": client["lateness_ms_p50"],
        "lateness_ms_p99": client["lateness_ms_p99"],
        "own_lateness_ms_p99": client["own_lateness_ms_p99"],
        "loop_lag_ms_p99": client["loop_lag_ms_p99"],
        "ttft_ms_p50": percentile(ttft, 50),
        "ttft_ms_p99": percentile(ttft, 99),
        "itl_ms_p99": percentile(gaps, 99) or 0.0,
    }


def _pin(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core]})


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
