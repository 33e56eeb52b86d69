"""Goodput of prefill and decode apart, where the planner's rule says it pays and where not, beside aggregated engines.

`python benchmarks/router/disaggregation.py [--jobs N] [--seeds N,N] [--only WORKLOAD:RATE] [--fleets NAME,NAME]
[--short] [--out FILE]`; settings in disaggregation.yaml beside it. Goodput counts requests within both limits, over the
time in which requests arrived. A fleet's gain is paired: the same arrivals and lengths, seed by seed, with the 95 %
interval of the mean difference over the seeds.
"""

import argparse
import heapq
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import yaml

from tonnage_core.disaggregation import kv_bytes, transfer_s
from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.engine.types import EngineConfig, EngineRequest, StepResult
from tonnage_core.scheduling import POLICIES, Candidate, Decision, Reservation, Scheduler, SchedulingRequest
from tonnage_core.scheduling.prefill import Lending, Link, choose_prefill, judge
from tonnage_runtime.catalogue import load_gpu, load_model

HERE = Path(__file__).resolve().parent


@dataclass
class Request:
    """One request: tokens, seconds of the simulated clock."""

    number: int
    arrival: float
    prompt: int
    output: int
    blocks: tuple[int, ...]
    first: float = 0.0
    last: float = 0.0
    apart: bool = False
    decode: "Host | None" = None
    prefill: "Host | None" = None
    held: Reservation | None = None
    lent: Reservation | None = None

    @property
    def ttft(self) -> float:
        return self.first - self.arrival

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / max(1, self.output - 1)


@dataclass
class Host:
    """An engine and the router's view of it."""

    engine: Engine
    candidate: Candidate
    running: dict[str, Request] = field(default_factory=dict)
    busy: bool = False


class Fleet:
    """Arrivals, steps and hand-overs in the order of their times."""

    def __init__(
        self, roles: dict[str, int], settings: dict[str, Any], config: EngineConfig, step: Any, ties: int
    ) -> None:
        self.rng = Random(ties)
        self.link = Link(**settings["link"])
        self.scheduler = Scheduler(POLICIES["prefix"], self.rng)
        self.hosts: list[Host] = []
        for role in (role for role, number in roles.items() for _ in range(number)):
            slot = len(self.hosts)
            candidate = Candidate(f"{role}-{slot}", slot, frozenset({"m"}), role=role)
            self.scheduler.add(candidate, 1 << 20)
            self.hosts.append(Host(Engine(config, step), candidate))
        self.block = config.block_size
        self.pace = _pace(config, step)
        self.events: list[tuple[float, int, str, Any]] = []
        self.order = count()
        self.lending = Lending()

    def at(self, when: float, kind: str, what: Any) -> None:
        heapq.heappush(self.events, (when, next(self.order), kind, what))

    def run(self, requests: list[Request]) -> None:
        for request in requests:
            self.at(request.arrival, "arrival", request)
        while self.events:
            now, _, kind, what = heapq.heappop(self.events)
            if kind == "arrival":
                self.route(what, now)
            elif kind == "moved":
                missing = what.decode.engine.import_prefix(what.blocks)
                assert missing >= 0
                self.submit(what.decode, what, what.output, now)
            else:
                host, result = what
                self.stepped(host, result, now)

    def route(self, request: Request, now: float) -> None:
        asked = SchedulingRequest("m", request.prompt, request.output)
        kept = self.lending.kept_free(self.scheduler.eligible("m"), ())
        found = self.scheduler.choose(asked, [], 0, kept)
        assert found is not None
        decision, request.held = found
        request.decode = self.hosts[decision.chosen.slot]
        if decision.chosen.role == "decode":
            self.judge(request, decision, asked)
        else:
            self.lending.note(request.prompt, apart=False)
        if request.apart:
            assert request.prefill is not None
            request.held.relieve()
            request.lent = Reservation.on(request.prefill.candidate, request.prompt, request.prompt)
            self.submit(request.prefill, request, 1, now)
        else:
            self.submit(request.decode, request, request.output, now)

    def judge(self, request: Request, decision: Decision, asked: SchedulingRequest) -> None:
        prefill = choose_prefill(self.scheduler, asked, [], 0, self.rng)
        assert prefill is not None and request.held is not None
        request.prefill = self.hosts[prefill.chosen.slot]
        verdict = judge(decision, request.held, prefill, request.prompt, self.link, self.pace)
        self.lending.note(request.prompt, apart=verdict.pays_unshared)
        request.apart = verdict.pays

    def submit(self, host: Host, request: Request, output: int, now: float) -> None:
        name = str(request.number)
        host.running[name] = request
        made = EngineRequest(
            request_id=name, prompt_tokens=request.prompt, output_tokens=output, block_hashes=request.blocks
        )
        host.engine.submit(made, now)
        if not host.busy:
            self.step(host, now)

    def step(self, host: Host, now: float) -> None:
        result = host.engine.step(now)
        host.busy = result is not None
        if result is not None:
            self.at(result.end_s, "step", (host, result))

    def stepped(self, host: Host, result: StepResult, now: float) -> None:
        for row in result.rows:
            request = host.running.get(row.request_id)
            if request is None or not row.new_tokens:
                continue
            if request.apart and host is request.prefill:
                self.hand_over(host, request, now)
                continue
            assert request.held is not None
            if not request.first:
                request.first = now
                request.held.first_token()
            if row.finished:
                request.last = now
                request.held.release()
                del host.running[row.request_id]
        self.step(host, now)

    def hand_over(self, host: Host, request: Request, now: float) -> None:
        del host.running[str(request.number)]
        assert request.lent is not None
        request.lent.release()
        size = kv_bytes(request.prompt, self.link.kv_bytes_per_token)
        moved = transfer_s(size, self.link.link_gbps, self.link.latency_s, self.link.overlap)
        self.at(now + moved + self.link.hop_s, "moved", request)


def _pace(config: EngineConfig, step: Any) -> float:
    """Prompt tokens a second of an idle engine: what the router learns from streams."""
    engine = Engine(config, step)
    engine.submit(EngineRequest(request_id="x", prompt_tokens=8192, output_tokens=1, block_hashes=range(512)), 0.0)
    result = engine.step(0.0)
    assert result is not None
    return 8192 / result.end_s


def arrivals(workload: dict[str, Any], rate: float, number: int, block: int, seed: int) -> list[Request]:
    rng, now, made = Random(seed), 0.0, []
    for index in range(number):
        now += rng.expovariate(rate)
        prompt, output = (
            max(2, round(m * 2.718281828 ** rng.gauss(0, s))) for m, s in (workload["input"], workload["output"])
        )
        base = index << 20
        made.append(Request(index, now, prompt, output, tuple(range(base, base + prompt // block))))
    return made


def figures(requests: list[Request], settings: dict[str, Any]) -> dict[str, Any]:
    """One run. `goodput_rps` by TPOT limit; `over_all_rps` divides by the time to the last token instead, which in a
    run of seconds is as long as its longest answer."""
    slo = settings["slo"]
    in_time = [r for r in requests if r.ttft <= slo["ttft_s"] + slo["ttft_s_per_8k"] * r.prompt / 8192]
    good = {str(limit): sum(r.tpot * 1e3 <= limit for r in in_time) for limit in settings["tpot_slos_ms"]}
    arriving, whole = requests[-1].arrival, max(r.last for r in requests)
    return {
        "goodput_rps": {limit: number / arriving for limit, number in good.items()},
        "over_all_rps": {limit: number / whole for limit, number in good.items()},
        "attained": {limit: number / len(requests) for limit, number in good.items()},
        "ttft_ms": _spread([r.ttft * 1e3 for r in requests]),
        "tpot_ms": _spread([r.tpot * 1e3 for r in requests]),
        "apart_share": sum(r.apart for r in requests) / len(requests),
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {name: ordered[int(share * (len(ordered) - 1))] for name, share in at.items()}


def run(settings: dict[str, Any], cell: tuple[str, float], fleet: str, seed: int, share: float) -> dict[str, Any]:
    """One fleet under one seed's arrivals."""
    shape, gpu = load_model(settings["model"]), load_gpu(settings["gpu"])
    config = engine_config_for(shape, gpu, block_size=settings["block_size"])
    workload = settings["workloads"][cell[0]]
    config = replace(config, max_num_seqs=workload.get("max_num_seqs", config.max_num_seqs))
    requests = arrivals(workload, cell[1], round(workload["requests"] * share), settings["block_size"], seed)
    if fleet.endswith("_again"):
        rng = Random(seed + 1)
        for request in requests[:-1]:
            request.arrival += rng.uniform(0, settings["jitter_s"])
    Fleet(settings["fleets"][fleet], settings, config, step_time_for(shape, gpu), seed).run(requests)
    return figures(requests, settings)


def mean(runs: list[Any]) -> Any:
    """The mean over runs of a tree of numbers."""
    if isinstance(runs[0], dict):
        return {name: mean([each[name] for each in runs]) for name in runs[0]}
    return round(fmean(runs), 4)


def gain(runs: list[dict[str, Any]], base: list[dict[str, Any]], limit: str, t95: float) -> dict[str, Any]:
    """Goodput beside the baseline's, paired by seed. `lost`: the whole 95 % interval is below nothing."""
    mine, other = ([each["goodput_rps"][limit] for each in side] for side in (runs, base))
    differences = [a - b for a, b in zip(mine, other, strict=True)]
    half = t95 * stdev(differences) / len(differences) ** 0.5
    return {
        "rps": round(fmean(differences), 4),
        "ci95_rps": round(half, 4),
        "ratio": round(fmean(mine) / fmean(other), 4) if any(other) else None,
        "lost": fmean(differences) + half < 0,
        "by_seed_rps": [round(each, 4) for each in differences],
    }


def cells(settings: dict[str, Any], only: str) -> Iterator[tuple[str, float]]:
    for name, workload in settings["workloads"].items():
        yield from ((name, rate) for rate in workload["rates"] if only in ("", f"{name}:{rate}"))


def measure(settings: dict[str, Any], share: float, only: str, jobs: int) -> list[dict[str, Any]]:
    fleets, rows = list(settings["fleets"]), []
    with ProcessPoolExecutor(jobs) as pool:
        pending = [
            (cell, {f: [pool.submit(run, settings, cell, f, s, share) for s in settings["seeds"]] for f in fleets})
            for cell in cells(settings, only)
        ]
        for (workload, rate), futures in pending:
            runs = {fleet: [each.result() for each in made] for fleet, made in futures.items()}
            for fleet, made in runs.items():
                row = {"workload": workload, "rate_rps": rate, "fleet": fleet, **mean(made)}
                if fleet != fleets[0]:
                    limits = row["goodput_rps"]
                    row["gain"] = {x: gain(made, runs[fleets[0]], x, settings["t95"]) for x in limits}
                rows.append(row)
                show(row)
    return rows


def show(row: dict[str, Any]) -> None:
    gains = row.get("gain", {})
    against = " ".join(
        f"{limit}: {g['rps']:+.3f}+-{g['ci95_rps']:.3f} ({g['ratio']}){' LOST' if g['lost'] else ''}"
        for limit, g in gains.items()
    )
    print(f"{row['workload']:8}{row['rate_rps']:4} {row['fleet']:17} apart {row['apart_share']:.2f} "
          f"attained {list(row['attained'].values())} {against}", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", default="", metavar="N,N", help="instead of the reported ones")
    parser.add_argument("--fleets", default="", metavar="NAME,NAME", help="some of them; the first is the baseline")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", metavar="WORKLOAD:RATE")
    given = parser.parse_args()
    settings = yaml.safe_load((HERE / "disaggregation.yaml").read_text())
    if given.seeds:
        settings["seeds"] = [int(seed) for seed in given.seeds.split(",")]
    if given.fleets:
        settings["fleets"] = {name: settings["fleets"][name] for name in given.fleets.split(",")}
    if given.short:
        settings["seeds"] = settings["seeds"][: settings["short_seeds"]]
    rows = measure(settings, 0.2 if given.short else 1.0, given.only, given.jobs)
    if given.out is not None:
        document = {"schema": "tonnage.bench_disaggregation/2", "version": "0.1.0", "settings": settings, "rows": rows}
        given.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
