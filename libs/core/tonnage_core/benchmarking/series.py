"""A series of runs as a pure rule: from the runs that are done to the next one, so that a series can stop and go on.

The stages, in order: the capacity search, the given rates, the given numbers of users, one run when there is none of
these, the accuracy gate. Each run draws its load from a seed of its own, so that no run finds its prompts in a cache
that the last one warmed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tonnage_core.benchmarking.capacity import Found, SearchSettings, Trial, next_move

SEED_STEP = 1000
"""Between the seeds of two runs of a series."""


@dataclass(frozen=True, slots=True)
class Series:
    """What a series is made of. Without any stage it is one run as the load is given."""

    search: SearchSettings | None = None
    rates: tuple[float, ...] = ()
    users: tuple[int, ...] = ()
    gate: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """One run: its number from 0, its kind, the rate (requests/s) or users it is made at, its seed, why it is made."""

    number: int
    kind: str
    rate: float | None
    users: int | None
    seed: int
    reason: str


@dataclass(frozen=True, slots=True)
class Made:
    """A run that is done; `met` is None when it was void."""

    ask: Ask
    met: bool | None


def run_seed(seed: int, number: int) -> int:
    """The seed of run `number` of a series."""
    return seed + SEED_STEP * (number + 1)


def next_ask(series: Series, made: Sequence[Made]) -> Ask | None:
    """The next run; None when the series is over."""
    number = len(made)
    seed = run_seed(series.seed, number)
    if series.search is not None:
        move = next_move(_trials(made), series.search)
        if not isinstance(move, Found):
            return Ask(number, "search", move.rate, None, seed, move.reason)
    rates = sum(each.ask.kind == "rate" for each in made)
    if rates < len(series.rates):
        return Ask(number, "rate", series.rates[rates], None, seed, "sweep")
    users = sum(each.ask.kind == "users" for each in made)
    if users < len(series.users):
        return Ask(number, "users", None, series.users[users], seed, "sweep of users")
    if not (made or series.search or series.rates or series.users):
        return Ask(number, "once", None, None, series.seed, "one run")
    if series.gate and all(each.ask.kind != "gate" for each in made):
        return Ask(number, "gate", None, None, seed, "accuracy gate")
    return None


def sure_asks(series: Series) -> list[Ask]:
    """The runs whose load is known before any is made: of a search its first, of the other stages all."""
    made: list[Made] = []
    if series.search is not None:
        made.append(Made(Ask(0, "search", series.search.start, None, run_seed(series.seed, 0), "the first"), met=True))
    while (ask := next_ask(replace(series, search=None), made)) is not None:
        made.append(Made(ask, met=True))
    return [each.ask for each in made]


def capacity_found(series: Series, made: Sequence[Made]) -> Found | None:
    """The capacity search's answer; None without a search or while it goes on."""
    if series.search is None:
        return None
    move = next_move(_trials(made), series.search)
    return move if isinstance(move, Found) else None


def most_runs(series: Series) -> int:
    """Runs a series may take at most."""
    searching = 0 if series.search is None else series.search.most_runs
    runs = searching + len(series.rates) + len(series.users)
    return max(1, runs) + series.gate


def _trials(made: Sequence[Made]) -> list[Trial]:
    return [Trial(each.ask.rate or 0.0, each.met) for each in made if each.ask.kind == "search"]
