"""Fleets of more than one kind of GPU: cheaper at the edge of a replica, or the only way within what is offered."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tonnage_core.planning.evaluate import Checked
from tonnage_core.planning.spec import PlanSpec


@dataclass(frozen=True)
class Mix:
    """Replicas of each configuration; traffic is split in proportion to what each was shown to carry."""

    parts: tuple[tuple[Checked, int], ...]

    @property
    def usd_per_hour(self) -> float:
        """Price of all replicas."""
        return sum(checked.config.usd_per_hour * count for checked, count in self.parts)

    @property
    def name(self) -> str:
        """Such as `2 x H100/tp4/… + 1 x L40S/tp8/…`."""
        return " + ".join(f"{count} x {checked.config.name}" for checked, count in self.parts)


def carried(spec: PlanSpec, checked: Checked) -> float:
    """Requests a second a replica was shown to carry with the headroom."""
    return spec.traffic.rate_rps / checked.replicas if checked.replicas else 0.0


def cheapest_mix(spec: PlanSpec, checked: Sequence[Checked]) -> Mix | None:
    """The cheapest fleet of two kinds of GPU within the offers, else of as many as it takes; None: all are too few."""
    usable = [each for each in checked if each.replicas is not None]
    mixes = [mix for pair in combinations(usable, 2) for mix in _of_two(spec, *pair)]
    if not mixes and (filled := _filled(spec, usable)) is not None:
        mixes.append(filled)
    return min(mixes, key=lambda mix: mix.usd_per_hour, default=None)


def _of_two(spec: PlanSpec, first: Checked, second: Checked) -> list[Mix]:
    if first.config.offer.gpu.name == second.config.offer.gpu.name:
        return []
    found = []
    a, b, rate = carried(spec, first), carried(spec, second), spec.traffic.rate_rps
    for count in range(1, min(_most(first), math.ceil(rate / a) - 1) + 1):
        rest = math.ceil((rate - count * a) / b - 1e-9)
        if 1 <= rest <= _most(second):
            found.append(Mix(((first, count), (second, rest))))
    return found


def _filled(spec: PlanSpec, usable: Sequence[Checked]) -> Mix | None:
    """Cheapest capacity first, one configuration a GPU, until the traffic is carried."""
    left, parts, used = spec.traffic.rate_rps, [], set()
    for each in sorted(usable, key=lambda one: one.config.usd_per_hour / carried(spec, one)):
        name = each.config.offer.gpu.name
        if name in used or left <= 1e-9 or not _most(each):
            continue
        count = min(_most(each), math.ceil(left / carried(spec, each) - 1e-9))
        parts.append((each, count))
        used.add(name)
        left -= count * carried(spec, each)
    return Mix(tuple(parts)) if left <= 1e-9 else None


def _most(checked: Checked) -> int:
    return checked.config.offer.most // checked.config.layout.gpus
