"""Decode-step and prefill-chunk times from a profile's own curves: a few coefficients fitted to measured steps.

A step's time is a sum of what a roofline names: a fixed cost a layer, the matrix products (the measured curve of one
8192 x 8192 product at that many rows, scaled by weight bytes), a cost a row, and for decode the cache that is read,
for prefill the query-key pairs. Least squares on the relative error; nothing is fitted that is not in the profile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.gpu_health.profile import median

GEMM_WIDTH = 8192
Point = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a model decides its step: layers, 16-bit weight bytes that a token reads, bytes of K and V a token."""

    layers: int
    layer_weight_bytes: float
    head_weight_bytes: float
    kv_bytes_per_token: float


LLAMA_8B = StepShape(32, 2.0 * 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336), 2.0 * 4096 * 128256, 131072.0)
"""The shape that the agent's decode-step and prefill-chunk probes run."""


@dataclass(frozen=True, slots=True)
class GemmCurve:
    """Microseconds of one product over rows; between measured points straight in log-log, beyond them proportional."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, profile: Mapping[str, Any]) -> "GemmCurve":
        """The bf16 curve of a profile; `BadInputError` when it has none."""
        found = profile.get("curves", {}).get("gemm_bf16", ())
        points = tuple(sorted((float(p["batch"]), float(p["us"])) for p in found))
        if len(points) < 2:
            raise BadInputError("the GpuProfile has no gemm_bf16 curve; run `tonnage probe --suite full`")
        return cls(points)

    def us(self, rows: float) -> float:
        """Microseconds at `rows` >= 1."""
        if rows <= self.points[0][0]:
            return self.points[0][1]
        if rows >= self.points[-1][0]:
            return self.points[-1][1] * rows / self.points[-1][0]
        for (r0, t0), (r1, t1) in pairwise(self.points):
            if rows <= r1:
                share = math.log(rows / r0) / math.log(r1 / r0)
                return t0 * math.exp(share * math.log(t1 / t0))
        raise AssertionError("the points are sorted")

    def model_us(self, rows: float, weight_bytes: float) -> float:
        """Microseconds of all products of a model at `rows`."""
        return self.us(rows) * weight_bytes / (2.0 * GEMM_WIDTH * GEMM_WIDTH)


@dataclass(frozen=True, slots=True)
class StepFit:
    """Coefficients of a kind of step (`decode` or `prefill`) on one GPU."""

    kind: str
    gemm: GemmCurve
    coefficients: tuple[float, ...]

    def us(self, shape: StepShape, tokens: int, context: int) -> float:
        """Microseconds of a decode step of `tokens` sequences at `context`, or of a chunk of `tokens` after it."""
        values = features(self.kind, self.gemm, shape, tokens, context)
        return sum(c * v for c, v in zip(self.coefficients, values, strict=True))


def features(kind: str, gemm: GemmCurve, shape: StepShape, tokens: int, context: int) -> tuple[float, ...]:
    """What the coefficients multiply."""
    if kind == "decode":
        products = gemm.model_us(tokens, shape.layer_weight_bytes + shape.head_weight_bytes)
        return shape.layers, products, tokens * shape.layers, tokens * context * shape.kv_bytes_per_token
    products = gemm.model_us(tokens, shape.layer_weight_bytes)
    pairs = tokens * context + tokens * tokens / 2
    return shape.layers, products, pairs * shape.kv_bytes_per_token


def _curve(profile: Mapping[str, Any], kind: str) -> list[tuple[int, int, float]]:
    name, key = ("decode_step", "batch") if kind == "decode" else ("prefill_chunk", "tokens")
    found = profile.get("curves", {}).get(name, ())
    return sorted((int(p["context"]), int(p[key]), float(p["us"])) for p in found)


def fit_steps(
    profile: Mapping[str, Any], kind: str, shape: StepShape = LLAMA_8B, *, half: int | None = None
) -> StepFit:
    """Fit the measured steps of a GpuProfile; with `half` 0 or 1 only every other point, for a check on the rest.

    `BadInputError` when the profile has too few of them.
    """
    gemm = GemmCurve.of(profile)
    points = _curve(profile, kind)
    used = points if half is None else points[half::2]
    rows = [[value / us for value in features(kind, gemm, shape, tokens, context)] for context, tokens, us in used]
    if not rows or len(rows) < len(rows[0]):
        raise BadInputError(f"the GpuProfile has too few {kind} steps; run `tonnage probe --suite full`")
    return StepFit(kind, gemm, least_squares(rows, [1.0] * len(rows)))


def held_out_errors(profile: Mapping[str, Any], kind: str, shape: StepShape = LLAMA_8B) -> dict[str, float]:
    """Fitted on half of the points and checked on the other, both ways: percent, `median_pct` and `max_pct`."""
    errors = []
    for half in (0, 1):
        fit = fit_steps(profile, kind, shape, half=half)
        for context, tokens, us in _curve(profile, kind)[1 - half :: 2]:
            errors.append(100 * abs(fit.us(shape, tokens, context) / us - 1))
    return {"median_pct": median(errors), "max_pct": max(errors)}


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> tuple[float, ...]:
    """Coefficients that minimise the squared error, by scaled normal equations and Gaussian elimination."""
    width = len(rows[0])
    scale = [max(abs(row[j]) for row in rows) or 1.0 for j in range(width)]
    scaled = [[row[j] / scale[j] for j in range(width)] for row in rows]
    matrix = [[sum(r[i] * r[j] for r in scaled) for j in range(width)] for i in range(width)]
    vector = [sum(r[i] * t for r, t in zip(scaled, targets, strict=True)) for i in range(width)]
    for i in range(width):
        _, pivot = max((abs(matrix[row][i]), row) for row in range(i, width))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        vector[i], vector[pivot] = vector[pivot], vector[i]
        for j in range(i + 1, width):
            factor = matrix[j][i] / matrix[i][i]
            matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i], strict=True)]
            vector[j] -= factor * vector[i]
    solved = [0.0] * width
    for i in reversed(range(width)):
        solved[i] = (vector[i] - sum(matrix[i][j] * solved[j] for j in range(i + 1, width))) / matrix[i][i]
    return tuple(value / s for value, s in zip(solved, scale, strict=True))
