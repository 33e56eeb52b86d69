"""Pickers: one candidate out of the scored ones. `totals` is empty unless the picker's entry says it needs scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tonnage_core.prefix_index.block_hash import chain
from tonnage_core.scheduling.scorers import KV_MARGIN, adapter, answers_spoilt
from tonnage_core.scheduling.types import MIN_MATCH_TOKENS, Candidate, Reason, SchedulingRequest

if TYPE_CHECKING:
    from random import Random

TIE: Final = 1e-6
"""Totals this close are a tie."""
LOAD_BOUND = 1.25
"""A hashed home may carry this multiple of the mean load before its keys move on (bounded-load hashing)."""

HOME_REQUESTS: Final = 8
HOME_PROMPTS: Final = 2
HOME_TOKENS: Final = 49_152
"""When a prompt's home is taken: at most so many requests an endpoint in the mean, and work ahead at the home of at
most so many times the prompt and so many tokens.

The prompt waits for its home at most twice as long as it takes itself, and 1.3 s of Llama-3.1-8B's prefill on an H200.
In a busy fleet waiting costs more than homes give. In simulation (benchmarks/results/2026-11-29-router-homes.json:
1,000 requests of Mooncake on 4 H200 engine models) the hits of two runs whose arrivals differ by up to 60 ms agree
within 2 % in 14 of 15 pairs; placed by load alone in 7 of 15.
"""

Pick = Callable[[SchedulingRequest, list[Candidate], list[float], "Random"], tuple[int, Reason | None]]
Key = Callable[[SchedulingRequest], bytes | None]


@dataclass(frozen=True, slots=True)
class Picker:
    """`pick` returns an index into the candidates and, where the picker alone decides, the reason.

    `scored`: it needs totals. `whole_fleet`: it must see every candidate, not a shortlist. `key`: what it hashes to a
    home, whether or not the home has room.
    """

    name: str
    scored: bool
    whole_fleet: bool
    pick: Pick
    key: Key | None = None


def max_random_ties(
    request: SchedulingRequest, candidates: list[Candidate], totals: list[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The highest total; ties at random."""
    best = totals[_highest(totals)]
    ties = [i for i in range(len(totals)) if totals[i] >= best - TIE]
    return (ties[0] if len(ties) == 1 else ties[int(rng.random() * len(ties))]), None


def _highest(totals: list[float]) -> int:
    """Where the greatest value stands first."""
    at = 0
    for i, total in enumerate(totals):
        if total > totals[at]:
            at = i
    return at


def content_home(
    request: SchedulingRequest, candidates: list[Candidate], totals: list[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The highest total; or the prompt's home among those that differ from it by a little load alone.

    Loads of the moment are noise where they are small: placed by them, equal traffic fills the caches otherwise each
    time, and two routers place one prompt on two endpoints. Without a content key, ties at random.
    """
    index = _highest(totals)
    missing = request.prompt_tokens - request.matched.get(candidates[index].slot, 0)
    if request.content_key is None or missing < MIN_MATCH_TOKENS or _busy(candidates):
        return max_random_ties(request, candidates, totals, rng)
    return _home(request.content_key, request, candidates, totals, index)


def _busy(candidates: list[Candidate]) -> bool:
    """More requests are in flight than homes are kept for."""
    requests = 0
    for c in candidates:
        requests += c.requests
    return requests > HOME_REQUESTS * len(candidates)


def _home(
    key: bytes, request: SchedulingRequest, candidates: list[Candidate], totals: list[float], index: int
) -> tuple[int, Reason | None]:
    """The home of `key` among `candidates[index]`, the best one, and those that are as good but for a little load."""
    best, matched = candidates[index], request.matched
    known = matched.get(best.slot, 0)
    missing = request.prompt_tokens - known
    light = max(_wait(best), min(HOME_TOKENS, HOME_PROMPTS * missing))
    homes = [
        i
        for i, c in enumerate(candidates)
        if i == index or (matched.get(c.slot, 0) == known and _wait(c) <= light and _alike(request, c, best))
    ]
    home = max(homes, key=lambda i: chain(key, candidates[i].id.encode()))
    return home, None if totals[home] >= totals[index] - TIE else Reason.HOME


def _wait(candidate: Candidate) -> float:
    """Work in flight, in tokens of the fastest endpoint's time."""
    return candidate.load_tokens / (candidate.gpu_speed or 1.0)


def _alike(request: SchedulingRequest, one: Candidate, best: Candidate) -> bool:
    """Whether `one` is as good as `best` in all but load: adapter or room for it, speed, price, refusals, KV blocks,
    answers that the prompt would spoil."""
    return (
        one.gpu_speed == best.gpu_speed
        and one.cost == best.cost
        and one.pressure <= best.pressure
        and (one.kv_utilisation is None or one.kv_utilisation <= 1.0 - KV_MARGIN)
        and adapter(request, [one]) == adapter(request, [best])
        and answers_spoilt(request, one) <= answers_spoilt(request, best)
    )


def power_of_two(
    request: SchedulingRequest, candidates: list[Candidate], totals: list[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The better of two drawn at random."""
    count = len(candidates)
    first = int(rng.random() * count)
    second = (first + 1 + int(rng.random() * (count - 1))) % count
    return (first if totals[first] >= totals[second] else second), Reason.POWER_OF_TWO


def round_robin(
    request: SchedulingRequest, candidates: list[Candidate], totals: list[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """In turn."""
    return request.sequence % len(candidates), Reason.ROUND_ROBIN


def session(
    request: SchedulingRequest, candidates: list[Candidate], totals: list[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The session's home while its load is bounded; without a session, the highest total."""
    key = session_key(request)
    if key is None:
        return max_random_ties(request, candidates, totals, rng)
    return _bounded_home(key, candidates, Reason.SESSION)


def session_key(request: SchedulingRequest) -> bytes | None:
    """What `session` hashes."""
    return request.session


def consistent_hash(
    request: SchedulingRequest, candidates: list[Candidate], totals: list[float], rng: "Random"
) -> tuple[int, Reason | None]:
    """The home of the session or, without one, of the prompt's beginning, while its load is bounded."""
    key = hash_key(request)
    if key is None:
        return max_random_ties(request, candidates, totals, rng)
    return _bounded_home(key, candidates, Reason.HASH)


def hash_key(request: SchedulingRequest) -> bytes | None:
    """What `consistent_hash` hashes."""
    return request.session or request.prefix_key


def home_of(key: bytes, candidates: list[Candidate]) -> Candidate:
    """Where `key` belongs among `candidates`, whatever their load."""
    return max(candidates, key=lambda c: chain(key, c.id.encode()))


def _bounded_home(key: bytes, candidates: list[Candidate], reason: Reason) -> tuple[int, Reason]:
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
        Picker("content_home", True, False, content_home),
        Picker("power_of_two", True, True, power_of_two),
        Picker("round_robin", False, True, round_robin),
        Picker("session", True, True, session, session_key),
        Picker("consistent_hash", True, True, consistent_hash, hash_key),
    )
}
