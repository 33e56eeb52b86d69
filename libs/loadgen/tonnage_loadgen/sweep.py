"""Several runs: the latency-throughput curve over given rates, and the capacity at the SLO by bracketing."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tonnage_core.benchmarking.capacity import Found, SearchSettings, Trial, next_move
from tonnage_core.benchmarking.series import run_seed
from tonnage_loadgen.bench_run import document, meets_slo
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.processes import run_load

RunOne = Callable[[BenchSpec], Awaitable[dict[str, Any]]]
"""One run of a specification, to its document."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a series: its rate, what came of it, why it was made."""

    rate: float
    met: bool | None
    reason: str
    document: dict[str, Any]


OnStep = Callable[[Step], None]


async def run_one(spec: BenchSpec) -> dict[str, Any]:
    """Send the load of `spec` and judge it."""
    shard = spec.shard()
    results = await run_load(shard, spec.processes)
    return document(shard, results, spec.judging())


async def sweep(
    spec: BenchSpec,
    rates: Sequence[float],
    run: RunOne = run_one,
    on_step: OnStep | None = None,
    done: Sequence[Step] = (),
) -> list[Step]:
    """A run at each rate, in order; those `done` are not run again."""
    steps = list(done)
    for number, rate in enumerate(rates[len(steps) :], len(steps)):
        await _step(spec, rate, number, "sweep", run, steps, on_step)
    return steps


async def find_capacity(
    spec: BenchSpec,
    search: SearchSettings,
    run: RunOne = run_one,
    on_step: OnStep | None = None,
    done: Sequence[Step] = (),
) -> tuple[Found, list[Step]]:
    """The highest rate at which a run meets the SLO, and every run made for it; those `done` are not run again."""
    steps = list(done)
    while not isinstance(move := next_move([Trial(step.rate, step.met) for step in steps], search), Found):
        await _step(spec, move.rate, len(steps), move.reason, run, steps, on_step)
    return move, steps


async def _step(
    spec: BenchSpec, rate: float, number: int, reason: str, run: RunOne, steps: list[Step], on_step: OnStep | None
) -> None:
    # Each run draws anew, and its prompts are new to the engine's cache: a cache warm from the last run would flatter.
    found = await run(spec.at_rate(rate, run_seed(spec.seed, number)))
    steps.append(Step(rate, meets_slo(found), reason, found))
    if on_step is not None:
        on_step(steps[-1])


def capacity_document(found: Found, steps: Sequence[Step]) -> dict[str, Any]:
    """The search's answer and its runs in short."""
    return asdict(found) | {"runs": len(steps), "trials": [asdict(Trial(s.rate, s.met)) for s in steps]}


def curve(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The latency-throughput curve, ascending in rate: figures of each run at the SLO's percentile."""
    return [
        {
            "rate_rps": step.rate,
            "met": step.met,
            "reason": step.reason,
            "goodput_rps": step.document["goodput_rps"],
            "slo_attainment": step.document["slo_attainment"],
            "concurrency": step.document["concurrency"]["mean"],
            "percentiles": step.document["percentiles"],
            "steady": step.document["steady"]["steady"],
            "more_requests_needed": step.document["more_requests_needed"],
            "notes": step.document["notes"],
        }
        for step in sorted(steps, key=lambda each: each.rate)
    ]
