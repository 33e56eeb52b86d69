"""Which GPUs carry the load: the cheapest feasible class first, the dearest given up first.

Classes are compared by the price of what they carry, not of a GPU: `usd_per_hour / capacity`; one that cannot keep the
SLO comes after all that can, since late answers are better than none. Going up, what there is
stays and the cheapest class with room is asked for what is missing; a class whose replicas did not start lately is
passed over. Going down, the dearest goes first, as long as the rest still carries the load. No class shrinks to let
another grow in one step: the new one serves first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tonnage_core.errors import BadInputError


@dataclass(frozen=True, slots=True)
class GpuClass:
    """Replicas of one GPU class: `capacity` in units of load (1: one replica of the reference class)."""

    name: str
    usd_per_hour: float
    capacity: float
    most: int
    have: int = 0
    """Serving or starting now."""
    blocked: bool = False
    """Its replicas did not start: none are asked for until it is tried again."""
    unfit: str = ""
    """Why it cannot keep the SLO for the requests seen lately; empty when it can. It comes last and goes first."""

    @property
    def price(self) -> float:
        """Dollars an hour and unit of load."""
        return self.usd_per_hour / self.capacity


@dataclass(frozen=True, slots=True)
class Allocation:
    """Replicas by class, in the order given; `short` is the load that found no place, `reasons` one line a change."""

    replicas: dict[str, int]
    short: float
    usd_per_hour: float
    reasons: tuple[str, ...]


def allocate(
    load: float, fits: float, classes: Sequence[GpuClass], *, budget_usd_per_hour: float | None = None
) -> Allocation:
    """Replicas for `load`; none are given up while what remains carries less than `fits` (>= `load`).

    Raises `BadInputError` for two classes of one name, or a class that carries nothing or costs nothing.
    """
    _check(classes)
    counts = {one.name: min(one.have, one.most) for one in classes}
    reasons: list[str] = []
    _grow(load, classes, counts, reasons, budget_usd_per_hour)
    if _carried(classes, counts) > max(load, fits):
        _shrink(max(load, fits), classes, counts, reasons)
    short = max(0.0, load - _carried(classes, counts))
    return Allocation(counts, short, _bill(classes, counts), tuple(reasons))


def _check(classes: Sequence[GpuClass]) -> None:
    if len({one.name for one in classes}) != len(classes):
        raise BadInputError("GPU classes: a name stands twice")
    for one in classes:
        if one.capacity <= 0 or one.usd_per_hour <= 0 or one.most < 0:
            raise BadInputError(f"GPU class {one.name}: capacity and price must be above 0, most at least 0")


def _grow(
    load: float,
    classes: Sequence[GpuClass],
    counts: dict[str, int],
    reasons: list[str],
    budget: float | None,
) -> None:
    for one in sorted(classes, key=lambda each: (bool(each.unfit), each.price, each.name)):
        missing = load - _carried(classes, counts)
        if missing <= 1e-9:
            return
        if one.blocked:
            reasons.append(f"{one.name} passed over: its replicas did not start")
            continue
        wanted = min(math.ceil(missing / one.capacity - 1e-9), one.most - counts[one.name])
        if budget is not None:
            wanted = min(wanted, int((budget - _bill(classes, counts)) / one.usd_per_hour + 1e-9))
        if wanted > 0:
            counts[one.name] += wanted
            unfit = f", though {one.unfit}: no class that keeps the limits can take it" if one.unfit else ""
            reasons.append(f"{wanted} more {one.name}: {one.price:.3g} $ an hour and unit of load{unfit}")


def _shrink(keep: float, classes: Sequence[GpuClass], counts: dict[str, int], reasons: list[str]) -> None:
    for one in sorted(classes, key=lambda each: (not each.unfit, -each.price, each.name)):
        spare = _carried(classes, counts) - keep
        gone = min(counts[one.name], int(spare / one.capacity + 1e-9))
        if gone > 0:
            counts[one.name] -= gone
            why = one.unfit or "the dearest that the load does without"
            reasons.append(f"{gone} fewer {one.name}: {why}")


def _carried(classes: Sequence[GpuClass], counts: dict[str, int]) -> float:
    return sum(counts[one.name] * one.capacity for one in classes)


def _bill(classes: Sequence[GpuClass], counts: dict[str, int]) -> float:
    return sum(counts[one.name] * one.usd_per_hour for one in classes)
