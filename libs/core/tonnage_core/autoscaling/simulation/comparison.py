"""The policies side by side: one trace, one simulator, one way to count; what is run, tuned and reported.

A baseline is tuned on the very trace it is judged on: of its grid the run with the fewest replica-hours that meets the
SLO, or the one that comes nearest. Ours is run once, with its defaults.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tonnage_core.autoscaling.capacity import ReplicaCost, replica_cost
from tonnage_core.autoscaling.policy import ReplicaCapacity, ScalingPolicy
from tonnage_core.autoscaling.simulation.arrivals import multiplied
from tonnage_core.autoscaling.simulation.baselines import GRIDS, MAKERS
from tonnage_core.autoscaling.simulation.driver import Autoscaler, RunConfig, RunResult, run
from tonnage_core.autoscaling.simulation.lean_engine import Job, LeanEngine
from tonnage_core.autoscaling.simulation.oracle import (
    OraclePlan,
    OracleScaler,
    lifetimes,
    replicas_needed,
    search,
    slot_work,
)
from tonnage_core.autoscaling.simulation.tonnage_scaler import TonnageScaler
from tonnage_core.autoscaling.simulation.view import TargetScaler
from tonnage_core.autoscaling.state_machine import Decision
from tonnage_core.autoscaling.warm import WarmTable
from tonnage_core.engine.batch import StepClock
from tonnage_core.engine.types import EngineConfig
from tonnage_core.errors import BadInputError
from tonnage_core.slo import Slo
from tonnage_core.traces import TraceRequest

if TYPE_CHECKING:
    from random import Random

SLOT_S = 5.0
LOOKS = (1, 3, 7)
"""Slots that the oracle's plan looks over: 5, 15 and 35 seconds."""
OURS, ORACLE = "tonnage", "oracle"
POLICY_NAMES = (OURS, *GRIDS, ORACLE)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A trace and the conditions all policies share; times in seconds. `rng(seed)` makes seeded generators."""

    requests: Sequence[TraceRequest]
    engine: EngineConfig
    clock: StepClock
    slo: Slo
    rng: "Callable[[int], Random]"
    rate_factor: float = 1.0
    max_input: int = 0
    initial: int = 1
    min_replicas: int = 1
    max_replicas: int = 64
    start_s: tuple[float, float] = (90.0, 240.0)
    seed: int = 0

    @property
    def cost(self) -> ReplicaCost:
        """What a token takes of a replica."""
        return replica_cost(self.clock, self.engine.max_num_batched_tokens)

    def jobs(self) -> list[Job]:
        """The arrivals, fresh and equal at every call."""
        return multiplied(self.requests, self.rate_factor, self.rng(self.seed), self.max_input)

    def starts(self) -> Iterator[float]:
        """How long each start takes, in the order in which they are asked for."""
        rng = self.rng(self.seed + 1)
        while True:
            yield rng.uniform(*self.start_s)

    def config(self) -> RunConfig:
        """The run's settings."""
        return RunConfig(new_engine=self.new_engine, slo=self.slo, initial=self.initial)

    def new_engine(self, now_s: float) -> LeanEngine:
        """One replica's engine, ready at `now_s`."""
        engine = self.engine
        tokens = (engine.num_blocks - 1) * engine.block_size
        return LeanEngine(
            self.clock,
            budget=engine.max_num_batched_tokens,
            kv_tokens=tokens,
            max_seqs=engine.max_num_seqs,
            now_s=now_s,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A policy's run, with the thresholds a baseline had and how many were tried."""

    policy: str
    result: RunResult
    thresholds: tuple[float, ...] = ()
    tried: int = 1
    warm: WarmTable | None = None
    """Ours: what warm replicas would have cost and saved."""
    decisions: tuple[tuple[float, Decision], ...] = ()
    """Ours: every decision with its time, seconds."""


def simulate(scenario: Scenario, scaler: Autoscaler) -> RunResult:
    """One run of the scenario under a scaler."""
    return run(scenario.jobs(), scaler, scenario.config(), scenario.starts())


def run_ours(scenario: Scenario, *, usd_per_hour: float | None = None, usd_per_miss: float | None = None) -> Outcome:
    """Tonnage's own decision, with defaults and the planner's cost of a request. Prices of a replica and of a late
    request change no decision: they are for what is said of a warm pool.
    """
    scaler = TonnageScaler(replace(default_policy(scenario), usd_per_replica_hour=usd_per_hour))
    result = simulate(scenario, scaler)
    return Outcome(OURS, result, warm=scaler.warm(usd_per_miss), decisions=tuple(scaler.decisions))


def default_policy(scenario: Scenario) -> ScalingPolicy:
    """The policy's defaults within the scenario's limits; `start_s` is the mean start, replaced by what is seen."""
    return ScalingPolicy(
        min_replicas=scenario.min_replicas,
        max_replicas=scenario.max_replicas,
        capacity=ReplicaCapacity(scenario.cost, scenario.slo.ttft_ms / 1e3, scenario.slo.tpot_ms / 1e3),
        start_s=sum(scenario.start_s) / 2,
    )


def run_baseline(scenario: Scenario, name: str, thresholds: tuple[float, float]) -> Outcome:
    """One baseline at one pair of thresholds; raises `BadInputError` for an unknown name."""
    if name not in MAKERS:
        raise BadInputError(f"policy {name!r}: choose one of {', '.join(POLICY_NAMES)}")
    scaler = TargetScaler(
        MAKERS[name](*thresholds), min_replicas=scenario.min_replicas, max_replicas=scenario.max_replicas
    )
    return Outcome(name, simulate(scenario, scaler), thresholds)


def tuned(outcomes: Sequence[Outcome], attainment: float) -> Outcome:
    """The best of a grid: fewest replica-hours among those that meet `attainment`, else the highest attainment."""
    best = min(outcomes, key=lambda one: _rank(one.result, attainment))
    return Outcome(best.policy, best.result, best.thresholds, len(outcomes))


def _rank(result: RunResult, attainment: float) -> tuple[bool, float, float]:
    """Smaller is better."""
    misses = result.slo_attainment < attainment
    return misses, -result.slo_attainment if misses else 0.0, result.gpu_hours


def grid(name: str) -> list[tuple[float, float]]:
    """The pairs of thresholds a baseline is tuned over."""
    first, second = GRIDS[name]
    return [(a, b) for a in first for b in second]


def run_oracle(scenario: Scenario, *, looks: Sequence[int] = LOOKS, rounds: int = 6) -> OraclePlan | None:
    """The cheapest plan found with foresight; None when even the most generous one misses the SLO."""
    cost = scenario.cost
    work = slot_work(scenario.jobs(), lambda job: cost.request_s(job.prompt, job.output), SLOT_S)

    def attempt(used: float, look: int) -> tuple[Sequence[int], RunResult]:
        needed = replicas_needed(work, used, look)
        lives = lifetimes(needed, SLOT_S, scenario.initial, scenario.starts())
        return needed, simulate(scenario, OracleScaler(lives))

    return search(attempt, attainment=scenario.slo.percentile / 100, looks=looks, rounds=rounds)
