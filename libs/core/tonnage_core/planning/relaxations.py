"""When nothing within the offers meets the SLO: what binds, and each single change that would make it work."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tonnage_core.planning.candidate import Config, Refused, Sized, size
from tonnage_core.planning.evaluate import (
    Checked,
    Ranked,
    check,
    idle_replicas,
    rank,
    try_replicas,
    usd_per_mtok,
)
from tonnage_core.planning.mixes import carried
from tonnage_core.planning.search import Found
from tonnage_core.planning.space import configurations
from tonnage_core.planning.spec import Offer, PlanSpec

ROOM = 1.02
"""A limit is loosened to what was reached and this much more."""


@dataclass(frozen=True)
class Relaxation:
    """One change that makes a plan possible: `change` from `before` to `after`, at `usd_per_hour` then."""

    change: str
    before: float | str
    after: float | str
    usd_per_hour: float | None
    text: str
    besides: float = 0.0
    """Size of a second change that it takes as well."""

    @property
    def size(self) -> float:
        """How large the change is, relative; what names no number counts as a whole."""
        if isinstance(self.before, str) or isinstance(self.after, str) or not self.before:
            return 1.0 + self.besides
        return abs(self.after / self.before - 1) + self.besides


@dataclass(frozen=True)
class Infeasible:
    """The constraint that stops the most promising configuration, and ways out, the smallest change first."""

    binding: str
    reason: str
    relaxations: tuple[Relaxation, ...]


def explain(found: Found) -> Infeasible | None:
    """None when there is a plan."""
    if found.best is not None or found.mix is not None:
        return None
    spec = found.spec
    ways = [*_more_gpus(found), *_less_traffic(spec, found), *_looser(found), *_other_formats(spec)]
    ways.sort(key=lambda way: (way.size, way.usd_per_hour if way.usd_per_hour is not None else math.inf))
    binding, reason = _binding(found)
    return Infeasible(binding, reason, tuple(ways))


def _binding(found: Found) -> tuple[str, str]:
    carries = [each for each in found.checked if each.replicas is not None]
    if carries:
        least = min(carries, key=lambda each: each.usd_per_hour)
        offer = least.config.offer
        text = f"{least.config.name} needs {least.gpus} GPUs ({least.replicas} replicas), {offer.most} are offered"
        return f"offers.{offer.gpu.name}.max", text
    if found.checked:
        last = min(found.checked, key=lambda each: _miss(found.spec, each))
        return last.binding, f"{last.config.name}: {last.reason}"
    if not found.refused:
        return "offers", "no layout of the search fits into what is offered"
    near = min(found.refused, key=lambda each: _REFUSALS.get(each.binding, 9 if each.binding == "engine" else 0))
    return near.binding, f"{near.config.name}: {near.reason}"


_REFUSALS = {"kv_cache": 1, "activation": 2, "weights": 3}
"""What came closest to running first: a missed target, then no pool for a sequence, then no room at all."""


def _miss(spec: PlanSpec, checked: Checked) -> float:
    """By how much the best of its trials missed."""
    values = []
    for trial in checked.trials.values():
        broken = trial.broken(spec.call_targets)
        values.append(1.0 if broken is None else broken[1] / broken[0].limit_ms)
    return min(values, default=math.inf)


def _more_gpus(found: Found) -> Iterator[Relaxation]:
    least: dict[str, Checked] = {}
    for each in sorted(found.checked, key=lambda one: one.gpus):
        if each.replicas is not None:
            least.setdefault(each.config.offer.gpu.name, each)
    for each in least.values():
        offer = each.config.offer
        if each.gpus > offer.most:
            text = f"offer {each.gpus} x {offer.gpu.name} instead of {offer.most}: {each.replicas} x {each.config.name}"
            yield Relaxation(f"offers.{offer.gpu.name}.max", offer.most, each.gpus, each.usd_per_hour, text)


def _less_traffic(spec: PlanSpec, found: Found) -> Iterator[Relaxation]:
    """What everything offered carries together."""
    total, usd, used = 0.0, 0.0, set()
    for each in found.checked:
        name = each.config.offer.gpu.name
        if each.replicas is None or name in used:
            continue
        count = each.config.offer.most // each.config.layout.gpus
        used.add(name)
        total += count * carried(spec, each)
        usd += count * each.config.usd_per_hour
    if 0 < total < spec.traffic.rate_rps:
        text = f"everything offered carries {total:.2f} of {spec.traffic.rate_rps:.2f} requests/s within the SLO"
        yield Relaxation("traffic.rate_rps", round(spec.traffic.rate_rps, 4), round(total, 4), usd, text)


def _looser(found: Found) -> Iterator[Relaxation]:
    """Each target alone loosened to what is reached then; all of them together where that is not enough."""
    spec = found.spec
    missed = [each.config for each in found.refused if each.binding in {target.name for target in spec.call_targets}]
    quickest = _quickest_of_each(missed, [each.config for each in found.checked if each.replicas is None])
    ways = [way for index in range(len(spec.targets)) if (way := _loosened(spec, index, quickest)) is not None]
    if not ways and quickest and (way := _all_loosened(spec, quickest)) is not None:
        ways.append(way)
    yield from ways


def _loosened(spec: PlanSpec, index: int, quickest: list[Config]) -> Relaxation | None:
    """One target left open, and set to what the configuration then reaches."""
    target = spec.targets[index]
    opened = tuple(replace(each, limit_ms=_OPEN) if each is target else each for each in spec.targets)
    best: tuple[float, Checked] | None = None
    for number, config in enumerate(quickest):
        if number and spec.work.ends():
            break
        result = _check_alone(replace(spec, targets=opened), config)
        if result is not None and result.trial is not None:
            value = result.trial.value_ms(spec.call_targets[index])
            best = (value, result) if best is None or value < best[0] else best
    if best is None:
        return None
    after, won = float(f"{best[0] * ROOM:.3g}"), best[1]
    text = f"{target.name} of {after:g} ms instead of {target.limit_ms:g} is met by {won.replicas} x {won.config.name}"
    return _with_gpus(f"slo.{target.name}", target.limit_ms, after, won, text)


def _all_loosened(spec: PlanSpec, quickest: list[Config]) -> Relaxation | None:
    """Every missed target set to what nearly idle replicas reach."""
    opened = replace(spec, targets=tuple(replace(each, limit_ms=_OPEN) for each in spec.targets))
    for config in quickest:
        sized = size(opened, config)
        result = rank(opened, sized) if isinstance(sized, Sized) else sized
        if isinstance(result, Refused):
            continue
        replicas = idle_replicas(opened, result)
        trial = try_replicas(opened, result, replicas)
        reached = {
            each.name: max(each.limit_ms, float(f"{trial.value_ms(call) * ROOM:.3g}"))
            for each, call in zip(spec.targets, spec.call_targets, strict=True)
        }
        before = ", ".join(f"{each.name} {each.limit_ms:g}" for each in spec.targets)
        after = ", ".join(f"{name} {limit:g}" for name, limit in reached.items())
        won = Checked(result, replicas, "", "", {replicas: trial})
        text = f"limits of {after} ms are met by {replicas} x {config.name}"
        return _with_gpus("slo", before, after, won, text)
    return None


def _with_gpus(change: str, before: float | str, after: float | str, won: Checked, text: str) -> Relaxation:
    most = won.config.offer.most
    if won.fits_offer:
        return Relaxation(change, before, after, won.usd_per_hour, text)
    text += f", which takes {won.gpus} GPUs where {most} are offered"
    return Relaxation(change, before, after, won.usd_per_hour, text, won.gpus / most)


_OPEN = 1e12
"""Milliseconds: no limit."""


def _quickest_of_each(*groups: list[Config]) -> list[Config]:
    """The configuration with the most GPUs of each offer: the quickest one."""
    quickest: dict[str, Config] = {}
    for config in (each for group in groups for each in group):
        name = config.offer.gpu.name
        held = quickest.get(name)
        if held is None or config.layout.gpus > held.layout.gpus:
            quickest[name] = config
    return sorted(quickest.values(), key=lambda config: config.usd_per_hour)[:3]


def _check_alone(spec: PlanSpec, config: Config) -> Checked | None:
    sized = size(spec, config)
    result = rank(spec, sized) if isinstance(sized, Sized) else sized
    return None if isinstance(result, Refused) else check(spec, result)


def _other_formats(spec: PlanSpec) -> Iterator[Relaxation]:
    """Formats that the search was not allowed to use."""
    if spec.space.precision is None and spec.space.kv_dtype is None:
        yield from _smaller_weights(spec)
        return
    wider = replace(spec, space=replace(spec.space, precision=None, kv_dtype=None))
    best = _best_ranked(wider)
    if best is not None:
        config = best.config
        before = f"{'/'.join(spec.space.precision or ('any',))}, KV {'/'.join(spec.space.kv_dtype or ('any',))}"
        after = f"{config.precision}, KV {config.kv_dtype}"
        text = f"allow weights {after}: {best.replicas} x {config.name} by formula; certify accuracy on the task"
        yield Relaxation("search.precision", before, after, best.usd_per_hour, text)


def _smaller_weights(spec: PlanSpec) -> Iterator[Relaxation]:
    if spec.shape.quantization.rules:
        return
    best = _best_ranked(replace(spec, space=replace(spec.space, precision=("w4a16",))))
    if best is not None:
        text = f"4-bit weights: {best.replicas} x {best.config.name} by formula; certify accuracy on the task"
        yield Relaxation("search.precision", "auto, fp8", "w4a16", best.usd_per_hour, text)


def _best_ranked(spec: PlanSpec) -> Ranked | None:
    """The cheapest by formula within the offers."""
    found: list[Ranked] = []
    for offer in spec.offers:
        found += _of_offer(spec, offer)
    return min(found, key=lambda each: each.usd_per_hour, default=None)


def _of_offer(spec: PlanSpec, offer: Offer) -> Iterator[Ranked]:
    for sized in configurations(spec, offer):
        result = rank(spec, sized) if isinstance(sized, Sized) else sized
        if isinstance(result, Ranked) and result.replicas * result.config.layout.gpus <= offer.most:
            yield result


def document_of(spec: PlanSpec, way: Relaxation) -> dict[str, Any]:
    """A relaxation as JSON."""
    usd = way.usd_per_hour
    return {
        "change": way.change,
        "from": way.before,
        "to": way.after,
        "usd_per_hour": None if usd is None else round(usd, 4),
        "usd_per_mtok": None if usd is None or way.change == "traffic.rate_rps" else round(usd_per_mtok(spec, usd), 4),
        "text": way.text,
    }
