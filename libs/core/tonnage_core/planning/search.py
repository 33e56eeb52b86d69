"""The search: every configuration by formula, the most promising in the engine model, cheapest first, until no other
could be cheaper."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tonnage_core.planning.candidate import Refused, Sized, explicit, size
from tonnage_core.planning.evaluate import (
    PATIENCE,
    Checked,
    Ranked,
    check,
    hopeful_usd,
    load_of,
    rank,
    try_load,
    try_replicas,
    with_limits,
    work_of,
)
from tonnage_core.planning.mixes import Mix, cheapest_mix
from tonnage_core.planning.space import configurations
from tonnage_core.planning.spec import PlanSpec
from tonnage_core.planning.trial import Trial

Progress = Callable[[float, str], None]
"""(share done 0..1, what is being done); may raise to end the search."""
MOST_CHECKS = 6
MOST_MISSES = 3
"""Configurations that miss the SLO even when idle before the search gives up."""
RIVALS, RIVAL_PRICE = 2, 1.5
"""GPUs that the engine model looks at in any case, and how much dearer by formula the second may be."""
QUICK = 120
"""Requests measured of batch limits that are only compared; what would save a replica is run in full."""
BUDGETS = (2048, 16384)
"""Step budgets tried besides the engine's default."""


@dataclass(frozen=True)
class Tuning:
    """One other pair of batch limits, tried at the load of `replicas`."""

    sized: Sized
    replicas: int
    trial: Trial
    meets: bool


@dataclass(frozen=True)
class Found:
    """What the search came to. `best` is None when nothing within the offers meets the SLO."""

    spec: PlanSpec
    best: Checked | None
    mix: Mix | None
    checked: tuple[Checked, ...]
    ranked: tuple[Ranked, ...]
    refused: tuple[Refused, ...]
    tunings: tuple[Tuning, ...] = ()


def search(spec: PlanSpec, progress: Progress = lambda share, what: None) -> Found:
    """Find the cheapest fleet."""
    ranked, refused = _by_formula(spec, progress)
    checked = _check_cheapest(spec, ranked, progress)
    fitting = [each for each in checked if each.fits_offer]
    best = min(fitting, key=lambda each: each.usd_per_hour, default=None)
    mix = cheapest_mix(spec, checked)
    tunings: tuple[Tuning, ...] = ()
    if best is not None:
        progress(0.7, f"batch limits of {best.config.name}")
        best, tunings = tune(spec, best)
    if mix is not None and best is not None and mix.usd_per_hour >= best.usd_per_hour:
        mix = None
    return Found(spec, best, mix, tuple(checked), tuple(ranked), tuple(refused), tunings)


def _by_formula(spec: PlanSpec, progress: Progress) -> tuple[list[Ranked], list[Refused]]:
    ranked: list[Ranked] = []
    refused: list[Refused] = []
    for index, offer in enumerate(spec.offers):
        progress(0.3 * index / len(spec.offers), f"formulas on {offer.gpu.name}")
        for found in configurations(spec, offer):
            result = rank(spec, found) if isinstance(found, Sized) else found
            if isinstance(result, Refused):
                refused.append(result)
            else:
                ranked.append(result)
    ranked.sort(key=lambda each: (each.usd_per_hour, each.replicas * each.config.layout.gpus, each.config.name))
    return ranked, refused


def _check_cheapest(spec: PlanSpec, ranked: list[Ranked], progress: Progress) -> list[Checked]:
    """Cheapest by formula first. Offers too small to carry the traffic alone are checked for mixes, once a GPU."""
    checked: list[Checked] = []
    for each in (one for one in ranked if within(one)):
        if len(checked) >= MOST_CHECKS or sum(one.replicas is None for one in checked) >= MOST_MISSES:
            break
        if any(one.fits_offer for one in checked) and _patience_ends(checked):
            break
        if _worth(spec, each, checked):
            if checked and spec.work.ends():
                break
            progress(0.3 + 0.4 * len(checked) / MOST_CHECKS, f"engine model: {each.config.name}")
            checked.append(check(spec, each))
    if not any(each.fits_offer for each in checked):
        seen = {each.config.offer.gpu.name for each in checked if each.replicas is not None}
        for each in ranked:
            name = each.config.offer.gpu.name
            if not within(each) and name not in seen and len(seen) < RIVALS and not (checked and spec.work.ends()):
                seen.add(name)
                progress(0.6, f"engine model: {each.config.name}")
                checked.append(check(spec, each))
    return checked


def _patience_ends(checked: list[Checked]) -> bool:
    return work_of(trial for each in checked for trial in each.trials.values()) > PATIENCE


def within(each: Ranked) -> bool:
    """Whether the offer has the GPUs that the formulas ask for."""
    return each.replicas * each.config.layout.gpus <= each.config.offer.most


def _worth(spec: PlanSpec, each: Ranked, checked: list[Checked]) -> bool:
    """Whether it could be cheaper than the best so far, or is the nearest rival on another GPU, to compare with; and,
    where a smaller layout of the GPU missed a target even when idle, whether it is a larger one."""
    name, gpus = each.config.offer.gpu.name, each.config.layout.gpus
    same = [one for one in checked if one.config.offer.gpu.name == name]
    if any(one.replicas is None and gpus <= one.config.layout.gpus for one in same):
        return False
    best = min((one.usd_per_hour for one in checked if one.fits_offer), default=float("inf"))
    if hopeful_usd(spec, each) < best:
        return True
    known = {one.config.offer.gpu.name for one in checked}
    return name not in known and len(known) < RIVALS and each.usd_per_hour < RIVAL_PRICE * best


def tune(spec: PlanSpec, best: Checked) -> tuple[Checked, tuple[Tuning, ...]]:
    """Other batch limits for the winner, at the load of one replica fewer where there are several: one that meets the
    SLO there saves a replica. All are looked at shortly; those that met it, the one with the most room first, are then
    run in full until one still does."""
    if best.replicas is None or _patience_ends([best]):
        return best, ()
    goal = max(1, best.replicas - 1)
    tried: list[tuple[Ranked, Tuning]] = []
    for budget, seqs in _limits(spec, best):
        sized = size(spec, with_limits(spec, best.config, budget, seqs))
        result = rank(spec, sized) if isinstance(sized, Sized) else sized
        if isinstance(result, Refused):
            continue
        trial = try_load(spec, result, load_of(spec, goal), QUICK)
        tried.append((result, Tuning(result.sized, goal, trial, trial.broken(spec.call_targets) is None)))
    looked = tuple(tuning for _, tuning in tried)
    hopeful = [(ranked, tuning) for ranked, tuning in tried if tuning.meets]
    if not hopeful or goal == best.replicas:
        return best, looked
    roomiest = sorted(hopeful, key=lambda pair: _room(spec, pair[1].trial), reverse=True)
    for number, (won, short) in enumerate(roomiest):
        if number and spec.work.ends():
            break
        trial = try_replicas(spec, won, goal)
        full = Tuning(won.sized, goal, trial, trial.broken(spec.call_targets) is None)
        looked = tuple(full if tuning is short else tuning for tuning in looked)
        if full.meets:
            capped = won.config.batched_tokens == explicit(best.ranked.sized).batched_tokens
            limit = f"cap of {won.sized.rows} requests" if capped else f"step budget of {won.sized.budget} tokens"
            reason = f"a {limit} meets the SLO with {goal} replicas"
            return Checked(won, goal, best.binding, f"{reason}; {best.reason}", {**best.trials, goal: trial}), looked
    return best, looked


def _room(spec: PlanSpec, trial: Trial) -> float:
    """How many times the tightest target's value fits into its limit."""
    return min(target.limit_ms / max(1e-9, trial.value_ms(target)) for target in spec.call_targets)


def _limits(spec: PlanSpec, best: Checked) -> list[tuple[int | None, int | None]]:
    default = explicit(best.ranked.sized)
    if spec.space.max_num_batched_tokens is not None:
        return []
    options: list[tuple[int | None, int | None]] = [
        (budget, best.config.max_num_seqs) for budget in BUDGETS if budget != default.batched_tokens
    ]
    point = best.ranked.bound.point
    if point is not None and best.replicas is not None:
        # Room for the requests in flight and half as many again: a cap that a burst reaches before TPOT suffers.
        rows = point.rows * load_of(spec, best.replicas) / point.rate_rps
        cap = max(16, -(-int(1.5 * rows) // 16) * 16)
        if default.max_num_seqs is None or cap < default.max_num_seqs:
            options.append((default.batched_tokens, cap))
    return options


def settled(best: Checked) -> Checked:
    """The winner with its default limits spelt out, as the manifest needs them."""
    sized = best.ranked.sized
    return replace(best, ranked=replace(best.ranked, sized=replace(sized, config=explicit(sized))))
