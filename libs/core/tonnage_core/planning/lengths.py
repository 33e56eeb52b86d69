"""Token lengths of requests: a lognormal from two percentiles, a histogram, or what a trace had."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING

from tonnage_core.planning.errors import PlanSpecError
from tonnage_core.planning.fields import Fields, number, shown, whole

if TYPE_CHECKING:
    from random import Random

POINTS = 1000
"""Equally likely lengths that stand for a distribution: one is cut off at its 99.95th percentile."""
LONGEST = 1 << 24


@dataclass(frozen=True)
class Lengths:
    """A distribution as equally likely token counts in ascending order."""

    values: tuple[int, ...]

    @cached_property
    def mean(self) -> float:
        """Mean tokens."""
        return math.fsum(self.values) / len(self.values)

    @cached_property
    def cv(self) -> float:
        """Standard deviation over mean."""
        mean = self.mean
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.values) / len(self.values)) / mean

    @property
    def longest(self) -> int:
        """The longest."""
        return self.values[-1]

    def percentile(self, percent: float) -> int:
        """The smallest length that at least `percent` % of requests do not exceed."""
        return self.values[min(len(self.values) - 1, math.ceil(percent / 100 * len(self.values)) - 1)]

    def draw(self, rng: "Random") -> int:
        """One length."""
        return self.values[int(rng.random() * len(self.values))]

    def between(self, low: int, high: int) -> tuple["Lengths | None", float]:
        """The part of at least `low` and under `high` tokens (None when empty), and its share of requests."""
        kept = tuple(value for value in self.values if low <= value < high)
        return (Lengths(kept) if kept else None), len(kept) / len(self.values)


def lognormal(p50: float, p99: float) -> Lengths:
    """The lognormal with these percentiles."""
    normal = NormalDist()
    sigma = math.log(p99 / p50) / normal.inv_cdf(0.99)
    places = ((index + 0.5) / POINTS for index in range(POINTS))
    drawn = (p50 * math.exp(sigma * normal.inv_cdf(place)) for place in places)
    return Lengths(tuple(max(1, min(LONGEST, round(value))) for value in drawn))


def histogram(bins: Sequence[tuple[int, float]]) -> Lengths:
    """Lengths with their shares; the shares need not add up to 1."""
    total = math.fsum(share for _, share in bins)
    values: list[int] = []
    ordered, reached = sorted(bins), 0.0
    for tokens, share in ordered:
        reached += share
        values += [tokens] * (round(reached / total * POINTS) - len(values))
    return Lengths(tuple(values))


def read_lengths(fields: Fields, name: str) -> Lengths:
    """`{p50, p99}` or `{histogram: [[tokens, share], …]}` or one whole number for a fixed length."""
    value = fields.need(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return Lengths((whole(value, fields.path(name), 1, LONGEST),))
    inside = fields.fields(name)
    if inside.has("histogram"):
        inside.only("histogram")
        return histogram([_bin(each, inside.path("histogram")) for each in inside.items("histogram", 4096)])
    inside.only("p50", "p99", "histogram")
    p50, p99 = inside.number("p50", 1, LONGEST), inside.number("p99", 1, LONGEST)
    if p99 < p50:
        raise PlanSpecError(f"{inside.path('p99')} is {p99:g}, below p50 {p50:g}; the larger one is p99")
    return lognormal(p50, p99)


def _bin(value: object, path: str) -> tuple[int, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise PlanSpecError(f"{path} holds {shown(value)}; pairs [tokens, share] are expected")
    return whole(value[0], path, 1, LONGEST), number(value[1], path, 1e-9, 1e9)
