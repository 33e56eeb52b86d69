"""How many replicas of a configuration meet the SLO: a guess by formula, decided by the engine model."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tonnage_core.cost import usd_per_million_tokens
from tonnage_core.planning.candidate import Config, Refused, Sized
from tonnage_core.planning.sampling import MEASURED
from tonnage_core.planning.spec import PlanSpec
from tonnage_core.planning.steady import Bound, Steady, steady_of
from tonnage_core.planning.trial import Trial, run_trial

FORMULA_SHARE = 0.75
"""Of the rate by formula, what the engine model usually confirms: prompts come in lumps, the formula spreads them."""
HOPEFUL_SHARE = 0.85
"""The most of it that the engine model is taken to confirm when deciding whether a look is worth while."""
IDLE_SHARE = 0.2
"""A replica that misses a target at this share of its rate by formula misses it at any."""
MOST_TRIALS = 6
MOST_REPLICAS = 1_000_000
PATIENCE = 1_300_000
"""Generated tokens followed, a second or two of one core, after which an answer found so far is good enough."""


@dataclass(frozen=True)
class Ranked:
    """A configuration with its bound by formula; `replicas` and `usd_per_hour` are what the formulas suggest."""

    sized: Sized
    bound: Bound
    replicas: int
    usd_per_hour: float

    @property
    def config(self) -> Config:
        """What it is."""
        return self.sized.config


@dataclass(frozen=True)
class Checked:
    """A configuration that the engine model has seen; `trials` by the number of replicas they stand for.

    `replicas` is the fewest that met every target with the headroom; None: no number does, `binding` says why.
    """

    ranked: Ranked
    replicas: int | None
    binding: str
    reason: str
    trials: dict[int, Trial] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """What it is."""
        return self.ranked.config

    @property
    def trial(self) -> Trial | None:
        """The run at the chosen number of replicas."""
        return self.trials.get(self.replicas) if self.replicas is not None else None

    @property
    def usd_per_hour(self) -> float:
        """Price of all replicas; infinite when no number does."""
        return math.inf if self.replicas is None else self.replicas * self.config.usd_per_hour

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return (self.replicas or 0) * self.config.layout.gpus

    @property
    def fits_offer(self) -> bool:
        """Whether there are as many GPUs."""
        return self.replicas is not None and self.gpus <= self.config.offer.most


def rank(spec: PlanSpec, found: Sized) -> Ranked | Refused:
    """The bound by formula, or the target that even an idle replica misses."""
    bound = steady_of(found, spec.traffic).most(spec.call_targets)
    if bound.point is None:
        return Refused(found.config, bound.binding, bound.reason)
    replicas = fewest(spec, bound.point.rate_rps * FORMULA_SHARE)
    return Ranked(found, bound, replicas, replicas * found.config.usd_per_hour)


def fewest(spec: PlanSpec, rate_rps: float) -> int:
    """Replicas that carry the traffic with the headroom when each carries `rate_rps`."""
    return max(1, min(MOST_REPLICAS, math.ceil(spec.traffic.rate_rps / (rate_rps * (1 - spec.headroom)) - 1e-9)))


def hopeful_usd(spec: PlanSpec, ranked: Ranked) -> float:
    """Price of as few replicas as the engine model could possibly confirm."""
    rate = ranked.bound.point.rate_rps if ranked.bound.point else 0.0
    return fewest(spec, rate * HOPEFUL_SHARE) * ranked.config.usd_per_hour if rate else math.inf


def load_of(spec: PlanSpec, replicas: int) -> float:
    """Requests a second at which one of `replicas` is tested: its share, and the headroom on top."""
    return spec.traffic.rate_rps / replicas / (1 - spec.headroom)


def try_replicas(spec: PlanSpec, ranked: Ranked, replicas: int) -> Trial:
    """The engine model at the load of one of `replicas`."""
    return try_load(spec, ranked, load_of(spec, replicas))


def try_load(spec: PlanSpec, ranked: Ranked, load: float, measured: int = MEASURED) -> Trial:
    """The engine model at a load, requests a second."""
    point = ranked.bound.point
    expected = point.rows * min(3.0, load / point.rate_rps) if point else 0.0
    traffic, rng = spec.traffic.at(load), spec.generator(spec.seed)
    measured = spec.work.shorten(measured)
    trial = run_trial(ranked.sized, traffic, spec.call_targets, rng=rng, in_flight=expected, measured=measured)
    spec.work.tokens += trial.tokens
    return trial


def check(spec: PlanSpec, ranked: Ranked) -> Checked:
    """The fewest replicas that meet the SLO in the engine model, near what the formulas suggest."""
    trials: dict[int, Trial] = {}
    passes, fails = None, 0
    for replicas in _to_try(spec, ranked, trials):
        trials[replicas] = trial = try_replicas(spec, ranked, replicas)
        if trial.broken(spec.call_targets) is None:
            passes = replicas if passes is None else min(passes, replicas)
        else:
            fails = max(fails, replicas)
    if passes is None:
        return _never(spec, ranked, fails, trials)
    slack = min(spec.call_targets, key=lambda target: target.limit_ms / trials[passes].value_ms(target))
    value = trials[passes].value_ms(slack)
    reason = (
        f"{slack.name} is {value:,.0f} of {slack.limit_ms:g} ms at {load_of(spec, passes):.2f} requests/s a replica"
    )
    if passes - 1 in trials:
        broken = trials[passes - 1].broken(spec.call_targets)
        if broken is not None:
            reason += f"; with {passes - 1} replicas {broken[0].name} is {broken[1]:,.0f} ms"
            slack = broken[0]
    return Checked(ranked, passes, slack.name, reason, trials)


def _to_try(spec: PlanSpec, ranked: Ranked, trials: dict[int, Trial]) -> Iterator[int]:
    """Numbers of replicas: the guess; when it fails, nearly idle ones, which end the search when they fail too; then
    inwards until one passes and one fewer fails."""
    low, high, now = 0, None, ranked.replicas
    for _ in range(MOST_TRIALS):
        yield now
        if trials[now].broken(spec.call_targets) is None:
            high = now
        elif high is None and low:
            return
        else:
            low = now
        if high is not None and work_of(trials.values()) > PATIENCE:
            return
        if high is None:
            now = max(low + 1, idle_replicas(spec, ranked))
        elif low == 0:
            now = high - max(1, high // 8)
        else:
            now = min(math.ceil(low * 1.25), (low + high) // 2)
        if now == 0 or now in trials:
            return


def work_of(trials: Iterable[Trial]) -> float:
    """Generated tokens that the trials took to follow."""
    return sum(trial.tokens for trial in trials)


def idle_replicas(spec: PlanSpec, ranked: Ranked) -> int:
    """So many that each is nearly idle: who misses a target then misses it always."""
    rate = ranked.bound.point.rate_rps if ranked.bound.point else math.inf
    return fewest(spec, IDLE_SHARE * rate)


def _never(spec: PlanSpec, ranked: Ranked, fails: int, trials: dict[int, Trial]) -> Checked:
    broken = trials[fails].broken(spec.call_targets)
    target, value = broken if broken is not None else (spec.call_targets[0], math.nan)
    reason = f"{target.name} is {value:,.0f} ms, above {target.limit_ms:g}, with {fails} replicas"
    return Checked(ranked, None, target.name, reason, trials)


def usd_per_mtok(spec: PlanSpec, usd_per_hour: float) -> float:
    """Price of a million output tokens of the asked traffic, every GPU paid whether busy or not."""
    return usd_per_million_tokens(usd_per_hour, spec.traffic.rate_rps * spec.traffic.outputs.mean)


def with_limits(spec: PlanSpec, config: Config, batched: int | None, seqs: int | None) -> Config:
    """The configuration with other batch limits."""
    return replace(config, batched_tokens=batched, max_num_seqs=seqs)


def steady(spec: PlanSpec, ranked: Ranked) -> Steady:
    """The formulas for a ranked configuration."""
    return steady_of(ranked.sized, spec.traffic)
