"""Arrival processes: when requests are due, drawn whole before the load from one seeded generator.

Rates are requests/s, times seconds from the start, ascending. A gamma process has gamma gaps of shape 1 / cv^2, so that
`cv` 1 is Poisson and larger is burstier. A ramp is a Poisson process whose rate goes linearly from one to the other:
unit-rate arrivals put through the inverse of the integrated rate.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tonnage_core.errors import BadInputError

if TYPE_CHECKING:
    from random import Random

KINDS = ("poisson", "gamma", "constant", "ramp")
MOST = 5_000_000
"""Arrivals of one schedule."""
LONGEST_S = 7 * 86400.0
"""Seconds of one run."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process: `rate` at the start, `end_rate` at the end of a ramp, `cv` of the gaps of a gamma process."""

    kind: str = "poisson"
    rate: float = 1.0
    cv: float = 1.0
    end_rate: float | None = None

    def __post_init__(self) -> None:
        """Raises `BadInputError` for a process that cannot be drawn."""
        if self.kind not in KINDS:
            raise BadInputError(f"arrivals {self.kind!r} are unknown; choose one of {', '.join(KINDS)}")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise BadInputError(f"an arrival rate of {self.rate:g} requests/s is impossible; give more than 0")
        if self.kind == "gamma" and not (math.isfinite(self.cv) and 0.01 <= self.cv <= 20):
            raise BadInputError(f"gamma arrivals with cv {self.cv:g} are impossible; give 0.01 to 20")
        if (self.kind == "ramp") != (self.end_rate is not None):
            raise BadInputError("a ramp, and nothing else, has an end rate: give both or neither")
        if self.end_rate is not None and not (math.isfinite(self.end_rate) and self.end_rate > 0):
            raise BadInputError(f"an end rate of {self.end_rate:g} requests/s is impossible; give more than 0")


def expected(arrivals: Arrivals, duration_s: float) -> float:
    """Arrivals in [0, `duration_s`) in the mean. Raises `BadInputError` for more than 5 million."""
    mean = arrivals.rate if arrivals.end_rate is None else (arrivals.rate + arrivals.end_rate) / 2
    if not (math.isfinite(duration_s) and duration_s > 0):
        raise BadInputError(f"a load of {duration_s:g} s is impossible; give more than 0")
    if mean * duration_s > MOST:
        raise BadInputError(f"{mean * duration_s:.3g} requests are too many for one run; give at most {MOST}")
    return mean * duration_s


def schedule(arrivals: Arrivals, duration_s: float, rng: "Random") -> list[float]:
    """Every arrival in [0, `duration_s`). Raises `BadInputError` for more than 5 million."""
    expected(arrivals, duration_s)
    if arrivals.kind == "ramp":
        return _ramp(arrivals, duration_s, rng)
    found: list[float] = []
    at = 0.0
    for gap in _gaps(arrivals, rng):
        at += gap
        if at >= duration_s:
            return found
        found.append(at)
    raise AssertionError("gaps never end")


def scaled(times: Sequence[float], rate_scale: float) -> list[float]:
    """A trace's arrivals at `rate_scale` times its rate, the first at 0."""
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise BadInputError(f"a rate scale of {rate_scale:g} is impossible; give more than 0")
    first = times[0] if times else 0.0
    return [(at - first) / rate_scale for at in times]


def _gaps(arrivals: Arrivals, rng: "Random") -> Iterator[float]:
    mean = 1 / arrivals.rate
    if arrivals.kind == "constant":
        while True:
            yield mean
    if arrivals.kind == "gamma":
        shape = 1 / arrivals.cv**2
        while True:
            yield rng.gammavariate(shape, mean / shape)
    while True:
        yield rng.expovariate(arrivals.rate)


def _ramp(arrivals: Arrivals, duration_s: float, rng: "Random") -> list[float]:
    end = arrivals.end_rate or arrivals.rate
    slope = (end - arrivals.rate) / duration_s
    total = (arrivals.rate + end) / 2 * duration_s
    found: list[float] = []
    mass = rng.expovariate(1.0)
    while mass < total:
        # The root of rate * t + slope * t^2 / 2 = mass, in the form that does not cancel for small slopes.
        found.append(2 * mass / (arrivals.rate + math.sqrt(max(0.0, arrivals.rate**2 + 2 * slope * mass))))
        mass += rng.expovariate(1.0)
    return found
