"""Filter, score, pick: one decision, pure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tonnage_core.scheduling.pickers import home_of
from tonnage_core.scheduling.profile import Profile
from tonnage_core.scheduling.types import Candidate, Decision, Reason, SchedulingRequest

if TYPE_CHECKING:
    from random import Random

TOKEN_SCALE_FLOOR: Final = 1024.0
"""Token scorers are divided by their range over the candidates, but by no less than this: a difference of a few
tokens must not outweigh a full cache."""
_PREFIX: Final = Reason.PREFIX
_LOAD: Final = Reason.LOAD


def schedule(
    request: SchedulingRequest,
    candidates: list[Candidate],
    profile: Profile,
    rng: "Random",
    *,
    prefiltered: bool = False,
) -> Decision | None:
    """The decision over `candidates`, or None when the filters leave none.

    `prefiltered` says that the caller keeps a list to which the profile's static filters were applied.
    """
    if not prefiltered:
        for keep in profile.static_filters:
            candidates = keep(request, candidates)
    eligible = candidates
    for keep in profile.request_filters:
        candidates = keep(request, candidates)
    if not candidates:
        return None
    decision = _picked(request, candidates, profile, rng) if len(candidates) > 1 else _only(request, candidates[0])
    if len(candidates) < len(eligible) and _left_home(request, decision.chosen, eligible, profile):
        decision.reason = Reason.OVERLOADED_HOME
    return decision


def _left_home(request: SchedulingRequest, chosen: Candidate, eligible: list[Candidate], profile: Profile) -> bool:
    """Whether filters that look at load took the home of the request's key, of those that take prompts this long."""
    key = profile.picker.key(request) if profile.picker.key is not None else None
    if key is None:
        return False
    for keep in profile.length_filters:
        eligible = keep(request, eligible)
    return home_of(key, eligible) is not chosen


def _picked(request: SchedulingRequest, candidates: list[Candidate], profile: Profile, rng: "Random") -> Decision:
    columns, totals = score(request, candidates, profile)
    index, reason = profile.picker.pick(request, candidates, totals, rng)
    chosen = candidates[index]
    matched = request.matched.get(chosen.slot, 0)
    if reason is None:
        reason = _PREFIX if matched else _LOAD
    return Decision(chosen, reason, matched, candidates, columns, totals)


def _only(request: SchedulingRequest, candidate: Candidate) -> Decision:
    return Decision(candidate, Reason.ONLY, request.matched.get(candidate.slot, 0), [candidate], {}, [])


def score(
    request: SchedulingRequest, candidates: list[Candidate], profile: Profile
) -> tuple[dict[str, list[float] | None], list[float]]:
    """Raw columns by scorer name (None: no opinion), and the weighted sums of the columns normalised to [0, 1]."""
    columns: dict[str, list[float] | None] = {}
    if not profile.picker.scored:
        return columns, []
    totals = [0.0] * len(candidates)
    tokens: list[tuple[list[float], float, float]] = []
    scale = TOKEN_SCALE_FLOOR
    for scorer, weight in profile.scorers:
        column = columns[scorer.name] = scorer.score(request, candidates)
        if column is None:
            continue
        if scorer.in_tokens:
            low, high = _ends(column)
            if high > low:
                tokens.append((column, low, weight))
                scale = max(scale, high - low)
        else:
            _add(totals, column, 0.0, weight)
    for column, low, weight in tokens:
        _add(totals, column, low, weight / scale)
    return columns, totals


def _ends(column: list[float]) -> tuple[float, float]:
    """The least and the greatest value."""
    low = high = column[0]
    for value in column:
        if value < low:
            low = value
        elif value > high:
            high = value
    return low, high


def _add(totals: list[float], column: list[float], low: float, factor: float) -> None:
    for i, value in enumerate(column):
        totals[i] += (value - low) * factor


def contributions(columns: Mapping[str, list[float] | None], profile: Profile) -> dict[str, list[float]]:
    """What each column adds to the totals of `score`: weight times its normalised values, [0, weight] or beyond for
    scorers that are not in tokens. Columns without an opinion, or of scorers the profile lacks, are left out.
    """
    opinions = [(scorer, weight, found) for scorer, weight in profile.scorers if (found := columns.get(scorer.name))]
    spreads = [max(found) - min(found) for scorer, _, found in opinions if scorer.in_tokens]
    scale = max([TOKEN_SCALE_FLOOR, *spreads])
    return {
        scorer.name: [weight * (value - min(found)) / scale if scorer.in_tokens else weight * value for value in found]
        for scorer, weight, found in opinions
    }
