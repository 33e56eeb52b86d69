"""Pickers: one candidate out of the scored ones. `totals` is empty unless the picker's entry says it needs scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tonnage_core.prefix_index.block_hash import chain
from tonnage_core.scheduling.types import Candidate, Reason, SchedulingRequest

if TYPE_CHECKING:
    from random import Random

TIE = 1e-6
"""Totals this close are a tie."""
LOAD_BOUND = 1.25
"""A hashed home may carry this multiple of the mean load before its keys move on (bounded-load hashing)."""

Pick = Callable[[SchedulingRequest, Sequence[Candidate], Sequence[float], "Random"], tuple[int, Reason | None]]


@dataclass(frozen=True, slots=True)
class Picker:
    """`pick` returns an index into the candidates and, where the picker alone decides, the reason.

    `scored`: it needs totals. `whole_fleet`: it must see every candidate, not a shortlist.
    """

    name: str
    scored: bool
    whole_fleet: bool
    pick: Pick


def max_random_ties(
    request: SchedulingRequest, candidates: Sequence[Candidate], totals: Sequence[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The highest total; ties at random."""
    best = max(totals)
    floor = best - TIE
    ties = [i for i, total in enumerate(totals) if total >= floor]
    return (ties[0] if len(ties) == 1 else ties[int(rng.random() * len(ties))]), None


def power_of_two(
    request: SchedulingRequest, candidates: Sequence[Candidate], totals: Sequence[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The better of two drawn at random."""
    count = len(candidates)
    first = int(rng.random() * count)
    second = (first + 1 + int(rng.random() * (count - 1))) % count
    return (first if totals[first] >= totals[second] else second), Reason.POWER_OF_TWO


def round_robin(
    request: SchedulingRequest, candidates: Sequence[Candidate], totals: Sequence[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """In turn."""
    return request.sequence % len(candidates), Reason.ROUND_ROBIN


def session(
    request: SchedulingRequest, candidates: Sequence[Candidate], totals: Sequence[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The session's home while its load is bounded; without a session, the highest total."""
    if request.session is None:
        return max_random_ties(request, candidates, totals, rng)
    return _bounded_home(request.session, candidates, Reason.SESSION)


def consistent_hash(
    request: SchedulingRequest, candidates: Sequence[Candidate], totals: Sequence[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The home of the session or, without one, of the prompt's beginning, while its load is bounded."""
    key = request.session or request.prefix_key
    if key is None:
        return max_random_ties(request, candidates, totals, rng)
    return _bounded_home(key, candidates, Reason.HASH)


def _bounded_home(key: bytes, candidates: Sequence[Candidate], reason: Reason) -> tuple[int, Reason]:
    """Rendezvous hashing: a key's order of candidates changes only where a candidate comes or goes."""
    order = sorted(range(len(candidates)), key=lambda i: chain(key, candidates[i].id.encode()), reverse=True)
    loads = [c.load_tokens for c in candidates]
    limit = LOAD_BOUND * sum(loads) / len(loads) + 1.0
    for index in order:
        if loads[index] <= limit:
            return index, reason if index == order[0] else Reason.OVERLOADED_HOME
    raise AssertionError("one load is at most the mean")


PICKERS: dict[str, Picker] = {
    p.name: p
    for p in (
        Picker("max_random_ties", True, False, max_random_ties),
        Picker("power_of_two", True, True, power_of_two),
        Picker("round_robin", False, True, round_robin),
        Picker("session", True, True, session),
        Picker("consistent_hash", True, True, consistent_hash),
    )
}
