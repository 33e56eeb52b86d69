"""The router under faults, floods and churn: what must hold, measured over real processes.

usage: python benchmarks/router/gates.py [--short] [--only faults isolation churn] [--out RESULT.json]
"""

import argparse
import asyncio
import hashlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import uvloop
import yaml
from churn import churn
from quality_fleet import machine, running

from tonnage_core.slo import RequestRecord, distribution_ms
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.replay import ReplayOptions, replay

HERE = Path(__file__).resolve().parent
OURS = {"command": ["{python}", "-m", "tonnage_router.main"], "kind": "tonnage"}


def main() -> int:
    """Measure and judge; 1 when a gate does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "gates.yaml").read_text())
    found: dict[str, Any] = {}
    for name in arguments.only:
        chosen = {key: settings[key] for key in ("model", "gpu", "seed")} | settings[name]
        if arguments.short:
            chosen |= chosen["short"]
        before, begun = machine(), time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            found[name] = SCENARIOS[name](chosen, Path(directory))
        after, wall = machine(), time.monotonic() - begun
        found[name]["machine"] = {
            "busy_share": round((after["busy_s"] - before["busy_s"]) / (after["all_s"] - before["all_s"]), 3),
            "waited_share": round((after["waited_s"] - before["waited_s"]) / wall, 3),
        }
        print(json.dumps({name: found[name]}, indent=1), flush=True)
    document = {
        "schema": "tonnage.bench_router_gates/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "settings": settings,
        "short": arguments.short,
        "results": found,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(result["holds"] for result in found.values()) else 1


def cold_load(settings: dict[str, Any], rate_rps: float, seed: int) -> list[TraceRequest]:
    """Prompts that share nothing, at random moments, for `seconds`."""
    rng, at, requests = Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate_rps)) < settings["seconds"]:
        length = rng.randint(*settings["prompt_tokens"])
        first = (seed << 40) + (len(requests) << 10)
        ids = tuple(range(first, first + -(-length // 512)))
        requests.append(TraceRequest(len(requests), at, length, rng.randint(*settings["output_tokens"]), ids))
    return requests


async def send(url: str, settings: dict[str, Any], load: list[TraceRequest], key: str | None) -> list[RequestRecord]:
    """Replay `load` in an open loop; `key` is the tenant's bearer token."""
    headers = () if key is None else (("authorization", f"Bearer {key}"),)
    scale = settings["time_scale"]
    result = await replay(ReplayOptions(url=url, time_scale=scale, timeout_s=120.0, headers=headers), load)
    return list(result.records)


def faults(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """No client error for a request that had no token yet; every count of the router back at 0."""
    router = OURS | {"settings": settings["router"]}
    load = cold_load(settings, settings["rate_rps"], settings["seed"])
    with running(settings, router, (), directory / "log") as fleet:
        records = uvloop.run(_under_faults(fleet, settings, load))
        left = _left_over(fleet["admin"])
    bad = [record for record in records if not record.ok]
    unanswered = [record for record in bad if record.first_s is None]
    kinds = sorted({record.outcome for record in bad})
    return {
        "requests": len(records),
        "ok": len(records) - len(bad),
        "cut_after_a_token": len(bad) - len(unanswered),
        "errors_without_a_token": len(unanswered),
        "kinds": {kind: sum(record.outcome == kind for record in bad) for kind in kinds},
        "counts_left_over": left,
        "holds": not unanswered and not any(left.values()),
    }


async def _under_faults(
    fleet: dict[str, Any], settings: dict[str, Any], load: list[TraceRequest]
) -> list[RequestRecord]:
    async def strike(share: float, engine: int, fault: dict[str, Any]) -> None:
        await asyncio.sleep(share * settings["seconds"])
        await asyncio.to_thread(_post, f"{fleet['engines'][engine]}/admin/fault", fault)

    struck = [asyncio.create_task(strike(*row)) for row in settings["schedule"]]
    records = await send(fleet["url"], settings, load, None)
    await asyncio.gather(*struck)
    await asyncio.sleep(1.0)
    return records


def isolation(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """B's TTFT p99 with A at ten times its share, over that with A at its share."""
    shares: dict[str, list[float]] = {"calm": [], "flooded": []}
    refused = sent = used = 0
    for number in range(settings["rounds"]):
        for name, times in (("calm", 1), ("flooded", settings["times_share"])):
            a, b = _two_tenants(settings, directory, times, number)
            p99 = distribution_ms(r.ttft_s for r in b if r.ok)["p99"]
            assert p99 is not None and all(r.ok for r in b), "a request of the calm tenant failed"
            shares[name].append(p99)
            if name == "flooded":
                refused, sent = refused + sum(r.outcome == "http_429" for r in a), sent + len(a)
                used += sum(r.prompt_tokens + (r.output_tokens or 0) for r in a if r.ok)
    calm, flooded = (statistics.median(shares[name]) for name in ("calm", "flooded"))
    return {
        "b_ttft_p99_ms": shares,
        "ratio": round(flooded / calm, 4),
        "a_sent": sent,
        "a_refused": refused,
        "a_tokens_served": used,
        "holds": flooded / calm < settings["limit"],
    }


def _two_tenants(
    settings: dict[str, Any], directory: Path, times: float, number: int
) -> tuple[list[RequestRecord], list[RequestRecord]]:
    mean = sum(settings["prompt_tokens"]) / 2 + 256  # the router reserves 256 tokens where none are asked for
    quota = {name: 1.1 * 60 * settings[f"{name}_rps"] * mean for name in ("a", "b")}
    tenants = [
        {"name": name, "key_sha256": hashlib.sha256(name.encode()).hexdigest(), "tokens_per_min": tokens}
        for name, tokens in quota.items()
    ]
    (directory / "tenants.yaml").write_text(yaml.safe_dump({"tenants": tenants}))
    router = OURS | {"settings": {"TENANTS_FILE": directory / "tenants.yaml"}, "key": "b"}
    loads = {
        "a": cold_load(settings, times * settings["a_rps"], 2 * number + 1),
        "b": cold_load(settings, settings["b_rps"], 2 * number + 2),
    }

    async def both(url: str) -> list[list[RequestRecord]]:
        return await asyncio.gather(*(send(url, settings, load, name) for name, load in loads.items()))

    with running(settings, router, (), directory / "log") as fleet:
        a, b = uvloop.run(both(fleet["url"]))
    return a, b


def _left_over(admin: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{admin}/admin/endpoints", timeout=10) as answer:
        rows = json.load(answer)["endpoints"]
    return {key: sum(row[key] for row in rows) for key in ("requests", "prefill_tokens", "decode_tokens")}


def _post(url: str, document: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(document).encode(), {"content-type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except (urllib.error.URLError, OSError):
        if document["kind"] != "crash":  # a process that dies does not answer
            raise


SCENARIOS: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "faults": faults,
    "isolation": isolation,
    "churn": churn,
}

if __name__ == "__main__":
    sys.exit(main())
