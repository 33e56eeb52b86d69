"""Every registered filter, scorer, picker and policy keeps the rules of its kind."""

import random

import pytest

from tonnage_core.scheduling import POLICIES, Candidate, SchedulingRequest, schedule
from tonnage_core.scheduling.filters import FILTERS, STATIC
from tonnage_core.scheduling.pickers import PICKERS
from tonnage_core.scheduling.scorers import SCORERS

REQUESTS = [
    SchedulingRequest("m", 100),
    SchedulingRequest("m", 0),
    SchedulingRequest("m", 20_000, adapter="lora", matched={0: 30_000, 2: 16}),
    SchedulingRequest("m", 10, session=b"s", prefix_key=b"k"),
]
REQUESTS[-1].sequence = 7


def candidates() -> list[Candidate]:
    found = _candidates()
    found[1].answers.begin(9000, 2)
    return found


def _candidates() -> list[Candidate]:
    return [
        Candidate("unknown", 0),
        Candidate("busy", 1, requests=4, prefill_tokens=9000, decode_tokens=70_000, kv_utilisation=1.0, waiting=9),
        Candidate("idle", 2, kv_utilisation=0.0, waiting=0, gpu_speed=1.0, cost=0.0, pressure=0.5),
        Candidate("lora", 3, adapters={"lora"}, adapter_slots=1, max_model_len=8192, length_class="short"),
        Candidate("down", 4, frozenset({"other"}), healthy=False, draining=True, pressure=1.0, role="prefill"),
    ]


@pytest.mark.parametrize("request_", REQUESTS, ids=range(4))
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_a_subset_in_order(name: str, request_: SchedulingRequest) -> None:
    given = candidates()
    kept = FILTERS[name](request_, given)
    assert list(kept) == [c for c in given if c in kept]
    assert list(FILTERS[name](request_, [])) == []


@pytest.mark.parametrize("name", sorted(STATIC))
def test_a_static_filter_depends_on_the_model_alone(name: str) -> None:
    results = [[c.id for c in FILTERS[name](request, candidates())] for request in REQUESTS]
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("request_", REQUESTS, ids=range(4))
@pytest.mark.parametrize("name", SCORERS)
def test_a_scorer_gives_each_candidate_a_value_of_its_unit(name: str, request_: SchedulingRequest) -> None:
    scorer = SCORERS[name]
    values = scorer.score(request_, candidates())
    assert scorer.name == name
    assert not scorer.score(request_, [])
    if values is not None:
        assert len(values) == 5
        assert all(value <= 0 for value in values) if scorer.unit == "tokens" else all(0 <= v <= 1 for v in values)


@pytest.mark.parametrize("request_", REQUESTS, ids=range(4))
@pytest.mark.parametrize("name", PICKERS)
def test_a_picker_returns_one_of_two_or_more(name: str, request_: SchedulingRequest) -> None:
    rng = random.Random(5)
    for count in range(2, 6):
        totals = [rng.random() for _ in range(count)]
        index, _ = PICKERS[name].pick(request_, candidates()[:count], totals, rng)
        assert 0 <= index < count


@pytest.mark.parametrize("request_", REQUESTS, ids=range(4))
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_never_chooses_a_dead_draining_or_foreign_endpoint(name: str, request_: SchedulingRequest) -> None:
    for seed in range(20):
        decision = schedule(request_, candidates(), POLICIES[name], random.Random(seed))
        assert decision is not None
        assert decision.chosen.id != "down"


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_over_nobody_decides_nothing(name: str) -> None:
    assert schedule(REQUESTS[0], [], POLICIES[name], random.Random(1)) is None
