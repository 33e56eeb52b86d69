"""Coefficients of one card from the steps its agent measured: the same step model, without an engine's host code.

The agent's decode-step and prefill-chunk probes run the layers of a Llama of 8 billion parameters in 16 bits from a
CUDA graph. Fitting the model's physical shares to them says how this card's kernels do; half of the points checks it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.hardware.profile import gpu_from_profile
from tonnage_core.models import ModelShape
from tonnage_core.prediction.coefficients import PRIOR, Coefficients, bounded
from tonnage_core.prediction.linear import solve
from tonnage_core.prediction.step_model import StepModel, step_model

NAMES = ("memory", "cache", "gemm", "overlap", "attention", "layer_s", "prompt_layer_s", "row_s")
"""What the probes' steps depend on."""
WIDTH = 1.0
"""Prior standard deviation of a log factor: the measured steps decide."""
NOISE = 0.03
ROUNDS = 12
_STEP = 0.02
_FEWEST = 8


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One probe: `tokens` of a chunk after `context`, or a decode step of `rows` sequences of `context` tokens."""

    rows: int
    tokens: int
    context: int
    seconds: float

    def predicted(self, model: StepModel) -> float:
        """Seconds of the same step by the model."""
        return model.mixed_step_s(self.rows, self.rows * self.context, self.tokens, self.context if self.tokens else 0)


def measured_steps(document: Mapping[str, Any]) -> list[MeasuredStep]:
    """The step curves of a GpuProfile, decode steps first. Raises `BadInputError` for points that cannot be read."""
    curves = document.get("curves")
    found = []
    for name, rows, tokens in (("decode_step", "batch", ""), ("prefill_chunk", "", "tokens")):
        points = curves.get(name, ()) if isinstance(curves, Mapping) else ()
        for point in points if isinstance(points, Sequence) else ():
            values = [_whole(point, rows), _whole(point, tokens), _whole(point, "context", 0), _seconds(point)]
            found.append(MeasuredStep(int(values[0]), int(values[1]), int(values[2]), values[3]))
    return found


def _whole(point: Any, name: str, low: int = 1) -> float:
    if not name:
        return 0
    value = point.get(name) if isinstance(point, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 1 << 30:
        raise BadInputError(f"a step of the GpuProfile has {name} {str(value)[:40]!r}; run `tonnage probe` again")
    return value


def _seconds(point: Any) -> float:
    value = point.get("us") if isinstance(point, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise BadInputError(f"a step of the GpuProfile has us {str(value)[:40]!r}; run `tonnage probe` again")
    return float(value) / 1e6


def profile_model(
    document: Mapping[str, Any], shape: ModelShape, steps: Sequence[MeasuredStep] | None = None
) -> StepModel:
    """The step model of `shape` (what the probes ran) on the profile's card, fitted to `steps` (all of them).

    Raises `BadInputError` when the profile has too few steps.
    """
    used = measured_steps(document) if steps is None else list(steps)
    if len(used) < _FEWEST:
        raise BadInputError(f"the GpuProfile has {len(used)} measured steps; run `tonnage probe --suite full`")
    bare = replace(PRIOR, step_s=0.0, request_s=0.0, prompt_layer_s=5e-6, row_s=1e-6)
    model = step_model(shape, gpu_from_profile(document), coefficients=bare, max_num_batched_tokens=1 << 20)
    factors = [0.0] * len(NAMES)
    for _ in range(ROUNDS):
        moves = _round(model, used, factors)
        factors = [value + max(-0.7, min(0.7, move)) for value, move in zip(factors, moves, strict=True)]
    return replace(model, coefficients=_moved(bare, factors))


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """How well half of a profile's steps predict the other half, both ways: absolute errors in percent."""

    decode: tuple[float, ...]
    prefill: tuple[float, ...]

    def document(self) -> dict[str, dict[str, float]]:
        """`n`, `median_pct` and `max_pct` of each kind of step that was measured."""
        kinds = {"decode": self.decode, "prefill": self.prefill}
        return {
            name: {"n": len(errors), "median_pct": round(median(errors), 3), "max_pct": round(max(errors), 3)}
            for name, errors in kinds.items()
            if errors
        }


def check_profile(document: Mapping[str, Any], shape: ModelShape) -> ProfileCheck:
    """Fit to every other step and predict the rest. Raises `BadInputError` when the profile has too few steps."""
    steps = measured_steps(document)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for half in (0, 1):
        model = profile_model(document, shape, steps[half::2])
        for step in steps[1 - half :: 2]:
            errors[step.rows > 0].append(100 * abs(step.predicted(model) / step.seconds - 1))
    return ProfileCheck(tuple(errors[True]), tuple(errors[False]))


def _moved(rates: Coefficients, factors: Sequence[float]) -> Coefficients:
    moved = {name: bounded(name, getattr(rates, name) * exp(f)) for name, f in zip(NAMES, factors, strict=True)}
    return replace(rates, **moved)


def _round(model: StepModel, steps: Sequence[MeasuredStep], factors: Sequence[float]) -> list[float]:
    """One Gauss-Newton move on log errors."""
    size = len(NAMES)
    models = [replace(model, coefficients=_moved(model.coefficients, factors))]
    for index in range(size):
        nudged = [value + (_STEP if i == index else 0.0) for i, value in enumerate(factors)]
        models.append(replace(model, coefficients=_moved(model.coefficients, nudged)))
    matrix = [[(1 / WIDTH**2 if i == j else 0.0) for j in range(size)] for i in range(size)]
    right = [-value / WIDTH**2 for value in factors]
    for step in steps:
        now, *then = (log(step.predicted(one)) for one in models)
        error = now - log(step.seconds)
        slopes = [(value - now) / _STEP for value in then]
        for i in range(size):
            right[i] -= slopes[i] * error / NOISE**2
            for j in range(size):
                matrix[i][j] += slopes[i] * slopes[j] / NOISE**2
    return solve(matrix, right)
