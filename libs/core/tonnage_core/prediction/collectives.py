"""All-reduce times from a GpuProfile's own curve: between measured sizes straight in log-log, beyond them by bandwidth.

A line of latency plus bytes over bandwidth misses the sizes where a library changes its protocol (a few MiB) by a
third; between two measured sizes four times apart the straight line in logarithms is within a few percent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tonnage_core.errors import BadInputError

LIBRARY, ONE_SHOT = "allreduce", "allreduce_one_shot"
"""Curves of a profile: the communication library's, and reading every rank's buffer at once."""


@dataclass(frozen=True, slots=True)
class AllReduceCurve:
    """Seconds of an all-reduce over `ranks` GPUs by message bytes, measured in CUDA graphs as engines run it."""

    ranks: int
    points: tuple[tuple[float, float], ...]
    """(bytes, seconds), by size; at least two."""

    def seconds(self, size: float) -> float:
        """Of a message of `size` bytes; smaller than all measured ones, the smallest one's time."""
        first, last = self.points[0], self.points[-1]
        if size <= first[0]:
            return first[1]
        if size >= last[0]:
            return last[1] * size / last[0]
        for (b0, t0), (b1, t1) in pairwise(self.points):
            if size <= b1:
                share = math.log(size / b0) / math.log(b1 / b0)
                return t0 * math.exp(share * math.log(t1 / t0))
        raise AssertionError("the points are sorted")


def all_reduce_curve(
    document: Mapping[str, Any], ranks: int, kinds: Sequence[str] = (LIBRARY, ONE_SHOT)
) -> AllReduceCurve | None:
    """The profile's curve over `ranks` GPUs, the fastest of `kinds` at each size; None when it was not measured.

    Raises `BadInputError` for points that cannot be read.
    """
    curves = document.get("curves")
    best: dict[float, float] = {}
    for kind in kinds:
        found = curves.get(kind, ()) if isinstance(curves, Mapping) else ()
        for point in found if isinstance(found, Sequence) else ():
            size, seconds = _read(point, kind)
            if point.get("ranks") == ranks and point.get("mode", "graph") == "graph":
                best[size] = min(seconds, best.get(size, math.inf))
    return AllReduceCurve(ranks, tuple(sorted(best.items()))) if len(best) > 1 else None


def _read(point: Any, kind: str) -> tuple[float, float]:
    values = [point.get(name) if isinstance(point, Mapping) else None for name in ("bytes", "us")]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
            raise BadInputError(f"a point of the GpuProfile's {kind} curve has {str(value)[:40]!r}; probe again")
    return float(values[0] or 0), float(values[1] or 0) / 1e6
