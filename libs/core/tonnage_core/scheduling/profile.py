"""Profiles: named filters, weighted scorers and a picker; and the built-in policies as profiles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tonnage_core.scheduling.filters import BY_LENGTH, FILTERS, STATIC, Filter
from tonnage_core.scheduling.pickers import PICKERS, Picker
from tonnage_core.scheduling.scorers import SCORERS, Scorer
from tonnage_core.scheduling.types import SchedulingError

DEFAULT_FILTERS = (
    "healthy",
    "model",
    "not_draining",
    "decodes",
    "context_fits",
    "length_class",
    "has_room",
    "not_refusing",
)


@dataclass(frozen=True, slots=True)
class Profile:
    """How to choose. `shortlist`: most candidates scored for one request when the picker allows a shortlist."""

    name: str
    static_filters: tuple[Filter, ...]
    request_filters: tuple[Filter, ...]
    scorers: tuple[tuple[Scorer, float], ...]
    picker: Picker
    shortlist: int = 8
    length_filters: tuple[Filter, ...] = ()
    """Those of the request's filters that read the prompt's length alone."""

    @property
    def hashes_prompts(self) -> bool:
        """Whether a decision depends on the prompt's block hashes."""
        return self.picker.name == "consistent_hash" or any(s.name == "uncached_prefix" for s, _ in self.scorers)

    @property
    def spares_answers(self) -> bool:
        """Whether it counts the answers that a prompt would make too slow, so that a prompt may wait for them."""
        return any(s.name == "spoilt_answers" for s, _ in self.scorers)


def make_profile(
    name: str, filters: Sequence[str], scorers: Mapping[str, float], picker: str, shortlist: int = 8
) -> Profile:
    """A profile from registry names; `SchedulingError` names an unknown plugin and the known ones."""
    unknown = [n for n in filters if n not in FILTERS]
    unknown += [n for n in scorers if n not in SCORERS]
    unknown += [picker] if picker not in PICKERS else []
    if unknown:
        known = ", ".join([*FILTERS, *SCORERS, *PICKERS])
        raise SchedulingError(f"profile {name}: no plugin named {', '.join(unknown)}; known: {known}")
    return Profile(
        name,
        tuple(FILTERS[n] for n in filters if n in STATIC),
        tuple(FILTERS[n] for n in filters if n not in STATIC),
        tuple((SCORERS[n], weight) for n, weight in scorers.items() if weight),
        PICKERS[picker],
        shortlist,
        tuple(FILTERS[n] for n in filters if n in BY_LENGTH),
    )


_LOAD = {"token_load": 1.0, "requests_in_flight": 0.05}
_PREFIX = {
    "uncached_prefix": 4.0,
    "token_load": 1.0,
    "prefill_interference": 1.0,
    "spoilt_answers": 1.0,
    "kv_utilisation": 0.3,
    "adapter": 0.5,
    "gpu_speed": 0.2,
}
"""A token to compute is waited for by its own request and by those that queue behind it: at utilisation r that is
1 / (1 - r) waits, four at the 75 % load where routing begins to matter, while a token of load on the endpoint is one.
Requests in flight on the endpoint wait for it too, which `prefill_interference` counts at its own weight.

In simulation (benchmarks/results/2026-11-29-router-weights.json: the Mooncake trace's first 4,000 requests on 8 H200
engine models, SLO TTFT 2 s + 1 s per 8k prompt tokens and TPOT 50 ms) that scorer, with the decode weight that goes
with it, raises goodput by 23 % at 0.95 of capacity and attainment from 0.922 to 0.940 at 0.85; half or double of a
token weight stays within 4 %. `spoilt_answers` counts those that would miss their TPOT for it: the means of the other
scorers hide that a short answer is broken by one long prompt, and these were nearly all of the misses.
"""

POLICIES: dict[str, Profile] = {
    "prefix": make_profile("prefix", DEFAULT_FILTERS, _PREFIX, "content_home"),
    "round_robin": make_profile("round_robin", DEFAULT_FILTERS, {}, "round_robin"),
    "least_load": make_profile("least_load", DEFAULT_FILTERS, _LOAD, "max_random_ties"),
    "power_of_two": make_profile("power_of_two", DEFAULT_FILTERS, _LOAD, "power_of_two"),
    "session": make_profile("session", DEFAULT_FILTERS, _LOAD, "session"),
    "consistent_hash": make_profile("consistent_hash", DEFAULT_FILTERS, _LOAD, "consistent_hash"),
}
