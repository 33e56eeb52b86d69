"""What each request of a run is: lengths, a path in a tree of shared prefixes, a turn of a session, tenant, adapter,
class, and whether the client gives up. Everything is drawn before the load from one seed.

Prompts are block ids as in traces (equal ids are equal tokens), so that sharing is exact: a tree of `depth` levels with
`branching` children each holds `prefix_tokens` in all, split evenly over the levels, every level whole blocks. A
session's next turn begins with its former prompt and the room of the former answer. The answer itself is not known
before the load, so its tokens in the next prompt are made up: an engine's cache serves the prompt part alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, islice
from typing import TYPE_CHECKING, TypeVar

from tonnage_core.benchmarking.arrivals import MOST
from tonnage_core.benchmarking.lengths import Lengths
from tonnage_core.errors import BadInputError
from tonnage_core.traces import TraceRequest

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")
BLOCK = 64
"""Tokens a block of made prompts: the grain of sharing."""
MOST_BLOCKS = 200_000_000
"""Blocks of a load's prompts, each some bytes in memory until the load is over: 12.8 billion prompt tokens."""
_TREE, _OWN, _ROOM = 1 << 60, 1 << 61, 59
"""Block ids of the prefix tree and of requests' own blocks, each from a place in so many bits of room that the seed
decides: runs of different seeds share no block, so that no run finds its prompts in a cache that another warmed."""


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A share of the requests with lengths of its own."""

    name: str
    share: float
    input_tokens: Lengths
    output_tokens: Lengths


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """`share` of the requests begin with a path of `prefix_tokens` in a tree; depth 1 is `branching` system prompts."""

    prefix_tokens: int
    share: float = 1.0
    depth: int = 1
    branching: int = 1


OPEN_THINK_S = 5.0
"""Mean time between the turns of an open loop that names none."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations of `turns` requests, `think_s` apart in the mean (exponential), drawn before the load.

    Time from a turn's intended instant to the next one's in an open loop, from its answer in a closed one. None:
    `OPEN_THINK_S` there, what users wait between all requests here.
    """

    turns: int
    think_s: float | None = None

    @property
    def open_s(self) -> float:
        """Mean time between turns in an open loop."""
        return OPEN_THINK_S if self.think_s is None else self.think_s


@dataclass(frozen=True, slots=True)
class Mix:
    """What a workload is drawn from. `tenants` and `adapters` are name -> weight, an empty name being none."""

    classes: tuple[RequestClass, ...]
    prefix: PrefixTree | None = None
    sessions: Sessions | None = None
    tenants: dict[str, float] = field(default_factory=dict)
    adapters: dict[str, float] = field(default_factory=dict)
    cancel_share: float = 0.0
    cancel_after_s: float = 1.0

    def __post_init__(self) -> None:
        """Raises `BadInputError` for shares that are none."""
        shares = [each.share for each in self.classes]
        if not shares or min(shares) < 0 or not 0 < sum(shares) < math.inf:
            raise BadInputError("a workload needs request classes with shares above 0")
        if not 0 <= self.cancel_share <= 1 or self.cancel_after_s < 0:
            raise BadInputError("cancellations: the share is 0 to 1 and the delay at least 0 s")
        tree, sessions = self.prefix, self.sessions
        if tree is not None and not (
            tree.prefix_tokens >= BLOCK * tree.depth >= BLOCK and 0 <= tree.share <= 1 and tree.branching >= 1
        ):
            raise BadInputError(f"a prefix tree needs {BLOCK} tokens a level, a share of 0 to 1 and 1 branch or more")
        if sessions is not None and not (sessions.turns >= 1 and sessions.open_s >= 0):
            raise BadInputError("sessions need 1 turn or more and a think time of at least 0 s")


@dataclass(frozen=True, slots=True)
class Planned:
    """One request as it will be sent: `request.arrival_s` is its intended instant in an open loop."""

    request: TraceRequest
    kind: str
    tenant: str = ""
    adapter: str = ""
    session: int | None = None
    turn: int = 0
    cancel_after_s: float | None = None


def plan_requests(mix: Mix, arrivals: Sequence[float], rng: "Random") -> list[Planned]:
    """A request for each arrival; with sessions, an arrival begins one and its later turns follow. In order of time."""
    found: list[Planned] = []
    salt = rng.getrandbits(_ROOM)
    blocks = count(_OWN + salt)
    for number, at in enumerate(arrivals):
        found += _conversation(mix, number, at, salt, blocks, rng)
    found.sort(key=lambda each: each.request.arrival_s)
    return [replace(each, request=replace(each.request, index=index)) for index, each in enumerate(found)]


def check_size(mix: Mix, conversations: float) -> None:
    """Raises `BadInputError` for so many arrivals whose turns or prompts, in the mean, no memory would hold."""
    turns = 1 if mix.sessions is None else mix.sessions.turns
    if conversations * turns > MOST:
        raise BadInputError(
            f"{conversations * turns:.3g} requests are too many for one run; give at most {MOST}, turns among them"
        )
    shares = math.fsum(each.share for each in mix.classes)
    fresh = math.fsum(each.share * max(1.0, each.input_tokens.mean / BLOCK) for each in mix.classes) / shares
    output = math.fsum(each.share * max(1.0, each.output_tokens.mean / BLOCK) for each in mix.classes) / shares
    prefix = 0.0 if mix.prefix is None else mix.prefix.share * mix.prefix.prefix_tokens / BLOCK
    blocks = conversations * turns * (prefix + fresh * (turns + 1) / 2 + output * (turns - 1) / 2)
    if blocks > MOST_BLOCKS:
        raise BadInputError(
            f"the prompts of this load have {blocks * BLOCK:.3g} tokens, more than {MOST_BLOCKS * BLOCK:.3g}: "
            "give fewer requests or turns, or shorter prompts"
        )


def _conversation(
    mix: Mix, number: int, start: float, salt: int, blocks: Iterator[int], rng: "Random"
) -> Iterator[Planned]:
    kind = _weighted([(each, each.share) for each in mix.classes], rng)
    tenant, adapter = _named(mix.tenants, rng), _named(mix.adapters, rng)
    history, at, sessions = _prefix_path(mix.prefix, salt, rng), start, mix.sessions
    for turn in range(1 if sessions is None else sessions.turns):
        if turn and sessions is not None and sessions.open_s:
            at += rng.expovariate(1 / sessions.open_s)
        fresh, output = kind.input_tokens.draw(rng), kind.output_tokens.draw(rng)
        ids = (*history, *islice(blocks, -(-fresh // BLOCK)))
        request = TraceRequest(0, at, len(history) * BLOCK + fresh, output, ids, BLOCK)
        quits = mix.cancel_after_s if rng.random() < mix.cancel_share else None
        yield Planned(request, kind.name, tenant, adapter, None if sessions is None else number, turn, quits)
        history = (*ids, *islice(blocks, -(-output // BLOCK)))


def as_planned(requests: Sequence[TraceRequest], mix: Mix, rng: "Random") -> list[Planned]:
    """A trace's own requests with the mix's tenants, adapters and cancellations; their class is by prompt length."""
    return [
        Planned(
            request,
            "trace",
            _named(mix.tenants, rng),
            _named(mix.adapters, rng),
            cancel_after_s=mix.cancel_after_s if rng.random() < mix.cancel_share else None,
        )
        for request in requests
    ]


def zipf(names: Sequence[str], exponent: float) -> dict[str, float]:
    """Weights 1 / rank^exponent for names in order of popularity."""
    return {name: 1 / rank**exponent for rank, name in enumerate(names, 1)}


def _prefix_path(tree: PrefixTree | None, salt: int, rng: "Random") -> tuple[int, ...]:
    if tree is None or rng.random() >= tree.share:
        return ()
    blocks = tree.prefix_tokens // BLOCK
    node = 0
    path: list[int] = []
    for level in range(tree.depth):
        node = node * tree.branching + rng.randrange(tree.branching) + 1
        size = blocks * (level + 1) // tree.depth - blocks * level // tree.depth
        start = _TREE + salt + node * (blocks + 1)
        path += range(start, start + size)
    return tuple(path)


def _named(weights: dict[str, float], rng: "Random") -> str:
    return _weighted(list(weights.items()), rng) if weights else ""


def _weighted(choices: Sequence[tuple[T, float]], rng: "Random") -> T:
    limits = list(accumulate(weight for _, weight in choices))
    return rng.choices([value for value, _ in choices], cum_weights=limits)[0]
