"""Filters: which candidates may take a request. Each returns those kept; a name in `FILTERS` makes it usable.

`STATIC` filters read nothing of the request but its model, so an owner may apply them once per change of the fleet.
Those `BY_LENGTH` read the prompt's length, and of a candidate its context limit and length class alone: they go before
a large fleet's shortlist is drawn, which else may hold nobody that takes the prompt.
"""

from collections.abc import Callable
from typing import Final

from tonnage_core.scheduling.types import Candidate, SchedulingRequest

Filter = Callable[[SchedulingRequest, list[Candidate]], list[Candidate]]

LONG_PROMPT_TOKENS: Final = 8192
"""Prompts from here on belong to `long` candidates, where there are any."""


def healthy(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates that answer."""
    return [c for c in candidates if c.healthy]


def model(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates that serve the request's model, or any model."""
    return [c for c in candidates if not c.models or request.model in c.models]


def not_draining(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates that take new work."""
    return [c for c in candidates if not c.draining]


def decodes(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates whose role lets them generate."""
    return [c for c in candidates if c.role != "prefill"]


def prefills(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates whose role lets them compute prompts for others."""
    return [c for c in candidates if c.role != "decode"]


def context_fits(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates whose context limit holds the prompt; all of them when none does, so that an engine words the error.

    Prompt tokens are an estimate, so a tenth of slack is left.
    """
    needed = int(request.prompt_tokens * 0.9)
    for c in candidates:
        if c.max_model_len is not None and c.max_model_len <= needed:
            return [c for c in candidates if c.max_model_len is None or c.max_model_len > needed] or candidates
    return candidates


def prompt_class(prompt_tokens: int) -> str:
    """The length class of a prompt."""
    return "long" if prompt_tokens >= LONG_PROMPT_TOKENS else "short"


def length_class(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Long prompts to candidates for long ones, short to short; all when the class has no candidate."""
    for c in candidates:
        if c.length_class is not None:
            wanted = (None, prompt_class(request.prompt_tokens))
            return [c for c in candidates if c.length_class in wanted] or candidates
    return candidates


def has_room(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates that the request's `room` is on, and those with less ahead than their cached prefix saves; all when
    there is none.

    Whoever lets requests go as soon as some endpoint has room relies on it: scorers may prefer a full one, and then
    the one with room would let the whole queue out.
    """
    room = request.room
    return candidates if room is None else room.within(candidates, request.matched) or candidates


def not_refusing(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates that did not refuse work lately; all when every one did."""
    for c in candidates:
        if c.pressure >= 1.0:
            return [c for c in candidates if c.pressure < 1.0] or candidates
    return candidates


def not_answering(request: SchedulingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Candidates that generate no answers of their own; all when every one does."""
    return [c for c in candidates if not c.answers] or candidates


FILTERS: dict[str, Filter] = {
    "healthy": healthy,
    "model": model,
    "not_draining": not_draining,
    "decodes": decodes,
    "prefills": prefills,
    "context_fits": context_fits,
    "length_class": length_class,
    "has_room": has_room,
    "not_refusing": not_refusing,
    "not_answering": not_answering,
}
STATIC = frozenset({"healthy", "model", "not_draining", "decodes", "prefills"})
BY_LENGTH = frozenset({"context_fits", "length_class"})
