"""Goodput of prefill and decode apart, where the planner's rule says it pays and where not, beside aggregated engines.

`python benchmarks/router/disaggregation.py [--short] [--out FILE]`; settings in disaggregation.yaml beside it.
"""

import argparse
import heapq
import json
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tonnage_core.disaggregation import kv_bytes, transfer_s
from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.engine.types import EngineConfig, EngineRequest, StepResult
from tonnage_core.scheduling import POLICIES, Candidate, Reservation, Scheduler, SchedulingRequest
from tonnage_core.scheduling.prefill import Link, choose_prefill, judge
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

    def __init__(self, roles: dict[str, int], settings: dict[str, Any], config: EngineConfig, step: Any) -> None:
        self.rng = Random(settings["seed"])
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
        self.apart = 0

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
        found = self.scheduler.choose(asked, [], 0)
        assert found is not None
        decision, request.held = found
        request.decode = self.hosts[decision.chosen.slot]
        if decision.chosen.role == "decode":
            prefill = choose_prefill(self.scheduler, asked, [], 0, self.rng)
            assert prefill is not None
            if judge(decision, request.held, prefill, request.prompt, self.link, self.pace).pays:
                request.apart, request.prefill = True, self.hosts[prefill.chosen.slot]
                request.held.relieve()
                request.lent = Reservation.on(prefill.chosen, request.prompt, request.prompt)
                self.submit(request.prefill, request, 1, now)
                return
        self.submit(request.decode, request, request.output, now)

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
            if host is request.prefill and host is not request.decode:
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
    span = max(r.last for r in requests) - requests[0].arrival
    slo = settings["slo"]
    in_time = [r for r in requests if r.ttft <= slo["ttft_s"] + slo["ttft_s_per_8k"] * r.prompt / 8192]
    goodput = {
        str(limit): round(sum(r.tpot * 1e3 <= limit for r in in_time) / span, 3) for limit in settings["tpot_slos_ms"]
    }
    return {
        "goodput_rps_by_tpot_slo_ms": goodput,
        "ttft_ms": _spread([r.ttft * 1e3 for r in requests]),
        "tpot_ms": _spread([r.tpot * 1e3 for r in requests]),
        "apart_share": round(sum(r.apart for r in requests) / len(requests), 3),
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {name: round(ordered[int(share * (len(ordered) - 1))], 2) for name, share in at.items()}


def measure(settings: dict[str, Any], number: int, only: str) -> list[dict[str, Any]]:
    shape, gpu = load_model(settings["model"]), load_gpu(settings["gpu"])
    config = engine_config_for(shape, gpu, block_size=settings["block_size"])
    step, rows = step_time_for(shape, gpu), []
    for name, workload in settings["workloads"].items():
        for rate in workload["rates"]:
            if only not in ("", f"{name}:{rate}"):
                continue
            for fleet, roles in settings["fleets"].items():
                requests = arrivals(workload, rate, number, settings["block_size"], settings["seed"])
                Fleet(roles, settings, config, step).run(requests)
                row = {"workload": name, "rate_rps": rate, "fleet": fleet, **figures(requests, settings)}
                rows.append(row)
                print(f"{name:6} {rate:5} {fleet:11} apart {row['apart_share']:.2f} ttft {row['ttft_ms']} "
                      f"tpot {row['tpot_ms']} goodput {row['goodput_rps_by_tpot_slo_ms']}", flush=True)  # fmt: skip
    baseline = next(iter(settings["fleets"]))
    base = {(r["workload"], r["rate_rps"]): r["goodput_rps_by_tpot_slo_ms"] for r in rows if r["fleet"] == baseline}
    for row in rows:
        against = base[row["workload"], row["rate_rps"]]
        found = row["goodput_rps_by_tpot_slo_ms"].items()
        row["goodput_ratio"] = {limit: round(value / against[limit], 3) for limit, value in found if against[limit]}
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", metavar="WORKLOAD:RATE")
    given = parser.parse_args()
    settings = yaml.safe_load((HERE / "disaggregation.yaml").read_text())
    rows = measure(settings, settings["short_requests" if given.short else "requests"], given.only)
    if given.out is not None:
        document = {"schema": "tonnage.bench_disaggregation/1", "version": "0.1.0", "settings": settings, "rows": rows}
        given.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
