"""Fit coefficients to measured TTFT and TPOT: damped Gauss-Newton on log errors, with a prior on every factor.

A coefficient is its prior times factors, so errors, factors and their spreads are all natural logarithms; only those of
`ADDED` are moved by adding, and their spread is one of the value. The prior
keeps factors that the measurements do not speak about where physics put them; heavy tails keep single wrong rows from
bending the rest. The same fit makes the shipped table from public rows and a calibration from one to three points.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from tonnage_core.prediction.closed_loop import Load, SteadyState, steady_state
from tonnage_core.prediction.coefficients import ADDED, BY_NAME, Coefficients, bounded
from tonnage_core.prediction.linear import solve
from tonnage_core.prediction.step_model import StepModel

STEP = 0.02
"""Change of a logarithm, or of a value of `ADDED`, for the numeric derivative."""
LARGEST_MOVE = 0.7
"""Of a log factor in one round."""
SETTLED = 0.005
REFRESH = 3
"""Rounds that the derivatives serve: they change slowly, and cost most …"""
STALE = 0.3
"""… unless a factor moved by more than this."""
TAIL = 1.0
"""Standard deviations from where on an error counts less."""


@dataclass(frozen=True)
class Sample:
    """One measured point; `model` holds the coefficients it starts from, times are ms, None where not measured."""

    model: StepModel
    load: Load
    tpot_ms: float | None
    ttft_ms: float | None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Noise:
    """Spread of what the model cannot explain, natural log, of TPOT and TTFT; `robust`: with heavy tails.

    `alike`: the same for clients whose lengths are all alike, when how they start their requests is not known.
    """

    tpot: float
    ttft: float
    robust: bool
    alike: tuple[float, float] | None = None

    def of(self, sample: "Sample") -> tuple[float, float]:
        """(TPOT, TTFT) of a sample."""
        return self.alike if self.alike and not sample.load.spread else (self.tpot, self.ttft)


Spread = Callable[[str], float]
"""Prior standard deviation of the log factor of a name (`coefficient` or `coefficient@tag`)."""


def applied(rates: Coefficients, factors: Mapping[str, float], tags: Sequence[str] = ()) -> Coefficients:
    """The coefficients times the exponentials of the log factors that concern the tags."""
    values = {}
    for name in BY_NAME:
        move = factors.get(name, 0.0) + sum(factors.get(f"{name}@{tag}", 0.0) for tag in tags)
        values[name] = bounded(name, _unbounded(name, getattr(rates, name), move))
    return Coefficients(**values)


def _unbounded(name: str, value: float, move: float) -> float:
    return value + move if name in ADDED else value * exp(move)


def state_of(sample: Sample, rates: Coefficients) -> SteadyState:
    """The sample's answer with other coefficients."""
    return steady_state(replace(sample.model, coefficients=rates), sample.load)


def _answers(sample: Sample, rates: Coefficients) -> tuple[float, float]:
    found = state_of(sample, rates)
    return log(found.tpot_s * 1e3), log(found.ttft_s * 1e3)


_Slopes = dict[str, tuple[float, float]]
"""Derivatives of (log TPOT, log TTFT) of one sample by the logarithm of a coefficient."""
Slopes = dict[int, _Slopes]
"""The same of every sample, by its index."""


def fit(
    samples: Sequence[Sample],
    names: Sequence[str],
    spread: Spread,
    noise: Noise,
    *,
    start: Mapping[str, float] | None = None,
    rounds: int = 10,
    slopes: Slopes | None = None,
) -> dict[str, float]:
    """Log factors of `names` over each sample's own coefficients. `slopes`: derivatives to begin with (`slopes_of`)."""
    factors = {name: (start or {}).get(name, 0.0) for name in names}
    known = dict(slopes or {})
    far = 0.0
    for turn in range(rounds):
        if (turn and turn % REFRESH == 0) or far > STALE:
            known.clear()
        moves = _round(samples, names, factors, spread, noise, known)
        for name, move in zip(names, moves, strict=True):
            factors[name] += max(-LARGEST_MOVE, min(LARGEST_MOVE, move))
        far = max((abs(move) for move in moves), default=0.0)
        if far < SETTLED:
            break
    return factors


def slopes_of(samples: Sequence[Sample], names: Sequence[str], factors: Mapping[str, float]) -> Slopes:
    """Derivatives of every sample's answer where the log factors are."""
    found = {}
    for index, sample in enumerate(samples):
        rates = applied(sample.model.coefficients, factors, sample.tags)
        found[index] = _slopes(sample, rates, _answers(sample, rates), names)
    return found


def _round(
    samples: Sequence[Sample],
    names: Sequence[str],
    factors: Mapping[str, float],
    spread: Spread,
    noise: Noise,
    known: dict[int, _Slopes],
) -> list[float]:
    """The moves of one round; slopes that are not `known` are worked out and kept there."""
    size = len(names)
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for i, name in enumerate(names):
        weight = 1 / spread(name) ** 2
        matrix[i][i] += weight
        right[i] -= weight * factors[name]
    for index, sample in enumerate(samples):
        rates = applied(sample.model.coefficients, factors, sample.tags)
        now = _answers(sample, rates)
        if index not in known:
            known[index] = _slopes(sample, rates, now, names)
        for row, error, weight in _rows(sample, names, known[index], now, noise):
            for i, a in row:
                right[i] -= weight * a * error
                line = matrix[i]
                for j, b in row:
                    line[j] += weight * a * b
    return solve(matrix, right)


def _slopes(sample: Sample, rates: Coefficients, now: tuple[float, float], names: Sequence[str]) -> _Slopes:
    idle, found = _idle(sample), {}
    for plain in {name.partition("@")[0] for name in names} - idle:
        # Without the bound: at it, a share would seem to be without effect.
        then = _answers(sample, replace(rates, **{plain: _unbounded(plain, getattr(rates, plain), STEP)}))
        found[plain] = ((then[0] - now[0]) / STEP, (then[1] - now[1]) / STEP)
    return found


def _rows(
    sample: Sample, names: Sequence[str], slopes: _Slopes, now: tuple[float, float], noise: Noise
) -> list[tuple[list[tuple[int, float]], float, float]]:
    """(derivatives by index, error, weight) of the sample's measured metrics."""
    used = []
    for index, name in enumerate(names):
        plain, _, tag = name.partition("@")
        if plain in slopes and (not tag or tag in sample.tags):
            used.append((index, slopes[plain]))
    found = []
    spreads = noise.of(sample)
    for which, truth, sigma in ((0, sample.tpot_ms, spreads[0]), (1, sample.ttft_ms, spreads[1])):
        if truth is None:
            continue
        error = now[which] - log(truth)
        weight = 1 / sigma**2 / (1 + (error / sigma / TAIL) ** 2 if noise.robust else 1.0)
        found.append(([(index, pair[which]) for index, pair in used if pair[which]], error, weight))
    return found


_EXPERTS = frozenset({"expert_memory", "routing", "expert_gemm", "expert_layer_s", "prompt_expert_layer_s"})


def _idle(sample: Sample) -> frozenset[str]:
    """Coefficients that the sample's answer cannot depend on."""
    work, layout = sample.model.operators, sample.model.operators.layout
    idle = set() if work.experts else set(_EXPERTS)
    if not work.recurrent_layers:
        idle.add("state_layer_s")
    if not work.sparse_layers:
        idle.add("sparse_layer_s")
    if all(part.kind != "latent" for part in work.attention):
        idle |= {"latent", "latent_layer_s"}
    if layout.tp == layout.dp == layout.pp == 1:
        idle |= {"link", "collective_s"}
    idle.add("burst" if sample.load.spread == 0 else "burst_alike")
    return frozenset(idle)
