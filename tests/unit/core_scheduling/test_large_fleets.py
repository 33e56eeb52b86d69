"""Beyond the shortlist's size: whoever a request needs is among those that are looked at."""

import random

import pytest

from tonnage_core.scheduling import POLICIES, Candidate, Room, Scheduler, SchedulingRequest

ROOM = Room(prefill_tokens=2048, requests=4)


def fleet(count: int, first: int, *, special: dict[str, object], others: dict[str, object]) -> Scheduler:
    """The first `first` of `count` endpoints have the fields `special`."""
    scheduler = Scheduler(POLICIES["prefix"], random.Random(1))
    for slot in range(count):
        candidate = Candidate(f"e{slot}", slot)
        for name, value in (special if slot < first else others).items():
            setattr(candidate, name, value)
        scheduler.add(candidate, 1 << 20)
    return scheduler


def chosen(scheduler: Scheduler, request: SchedulingRequest, exclude: tuple[str, ...] = ()) -> set[int]:
    found = set()
    for _ in range(60):
        decision = scheduler.decide(request, [], 512, exclude)
        assert decision is not None
        found.add(decision.chosen.slot)
    return found


@pytest.mark.parametrize("room", [None, ROOM])
@pytest.mark.parametrize("count", [9, 64])
def test_a_long_prompt_goes_to_endpoints_for_long_ones(count: int, room: Room | None) -> None:
    scheduler = fleet(count, 2, special={"length_class": "long"}, others={"length_class": "short"})
    assert chosen(scheduler, SchedulingRequest("m", 20_000, room=room)) == {0, 1}
    assert chosen(scheduler, SchedulingRequest("m", 100, room=room)).isdisjoint({0, 1})


def test_a_prompt_goes_where_the_context_holds_it_also_when_that_changes() -> None:
    scheduler = fleet(64, 10, special={"max_model_len": 100_000}, others={"max_model_len": 8192})
    request = SchedulingRequest("m", 20_000)
    assert chosen(scheduler, request) <= set(range(10))
    for candidate in scheduler.candidates:
        candidate.max_model_len = 100_000 if candidate.slot == 63 else 8192
    scheduler.changed()
    assert chosen(scheduler, request) == {63}
    assert len(chosen(scheduler, SchedulingRequest("m", 200_000))) > 10, "fits nowhere: an engine words the error"


def test_once_all_that_take_its_length_were_tried_another_endpoint_is() -> None:
    scheduler = fleet(64, 2, special={"length_class": "long"}, others={"length_class": "short"})
    request = SchedulingRequest("m", 20_000)
    assert chosen(scheduler, request, exclude=("e0",)) == {1}
    assert chosen(scheduler, request, exclude=("e0", "e1")).isdisjoint({0, 1})


@pytest.mark.parametrize("count", [9, 64])
def test_a_holder_of_the_adapter_is_among_those_looked_at(count: int) -> None:
    scheduler = fleet(count, 2, special={"adapters": {"tuned"}, "adapter_slots": 4}, others={"adapter_slots": 4})
    assert chosen(scheduler, SchedulingRequest("m", 1000, adapter="tuned")) == {0, 1}
    assert len(chosen(scheduler, SchedulingRequest("m", 1000))) > 5
    assert chosen(scheduler, SchedulingRequest("m", 1000, adapter="tuned"), exclude=("e0",)) == {1}
