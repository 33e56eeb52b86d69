"""All-reduce times from a GpuProfile's own curve.

One line of latency plus bytes over bandwidth misses the sizes where a library changes its protocol (a few MiB) by a
third. Between two measured sizes the time lies between such a line, exact while the protocol stays, and the power law
that a change of protocol looks like: their geometric mean. Beyond the largest size the last two points' line goes on.
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
        if size <= self.points[0][0]:
            return self.points[0][1]
        for (b0, t0), (b1, t1) in pairwise(self.points):
            if size <= b1:
                line = t0 + (size - b0) / (b1 - b0) * (t1 - t0)
                power = t0 * (size / b0) ** (math.log(t1 / t0) / math.log(b1 / b0))
                return math.sqrt(line * power)
        (b0, t0), (b1, t1) = self.points[-2:]
        return t1 + max(0.0, (t1 - t0) / (b1 - b0)) * (size - b1)


def all_reduce_curves(
    document: Mapping[str, Any], kinds: Sequence[str] = (LIBRARY, ONE_SHOT)
) -> tuple[AllReduceCurve, ...]:
    """The profile's curves by number of ranks, the fastest of `kinds` at each size; empty when it measured none.

    Raises `BadInputError` for points that cannot be read.
    """
    curves = document.get("curves")
    best: dict[int, dict[float, float]] = {}
    for kind in kinds:
        found = curves.get(kind, ()) if isinstance(curves, Mapping) else ()
        for point in found if isinstance(found, Sequence) else ():
            ranks, size, seconds = _read(point, kind)
            if point.get("mode", "graph") == "graph":
                of = best.setdefault(ranks, {})
                of[size] = min(seconds, of.get(size, math.inf))
    return tuple(AllReduceCurve(n, tuple(sorted(of.items()))) for n, of in sorted(best.items()) if len(of) > 1)


def _read(point: Any, kind: str) -> tuple[int, float, float]:
    values = [point.get(name) if isinstance(point, Mapping) else None for name in ("ranks", "bytes", "us")]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
            raise BadInputError(f"a point of the GpuProfile's {kind} curve has {str(value)[:40]!r}; probe again")
    ranks, size, us = (float(value or 0) for value in values)
    return int(ranks), size, us / 1e6
