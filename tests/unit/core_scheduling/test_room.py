"""Requests go where there is room, whatever scorers prefer."""

import random

import pytest

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.scheduling import POLICIES, Candidate, Room, Scheduler, SchedulingRequest
from tonnage_core.scheduling.filters import has_room

ROOM = Room(prefill_tokens=2048, requests=4)
CHAIN = hash_bytes(seed_hash("m", None, None), b"a long conversation that one endpoint knows", 1)
SAVED = len(CHAIN) * 512
"""Tokens that a cache of the whole chain saves."""
FULL = [{"prefill_tokens": SAVED}, {"requests": 4}, {"pressure": 1.0}]


def request(room: Room | None) -> SchedulingRequest:
    return SchedulingRequest("m", SAVED, room=room)


@pytest.mark.parametrize("full", FULL)
def test_only_candidates_with_room_are_kept(full: dict[str, float]) -> None:
    busy, free = Candidate("busy", 0), Candidate("free", 1, prefill_tokens=2047, requests=3, pressure=0.9)
    for name, value in full.items():
        setattr(busy, name, value)
    assert has_room(request(ROOM), [busy, free]) == [free]
    assert has_room(request(None), [busy, free]) == [busy, free]
    assert has_room(request(ROOM), [busy]) == [busy], "somebody must take it"


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("count", [2, 8, 40])
def test_a_cached_prefix_does_not_lead_to_a_full_endpoint(count: int, full: dict[str, float]) -> None:
    scheduler = Scheduler(POLICIES["prefix"], random.Random(1))
    for slot in range(count):
        scheduler.add(Candidate(f"e{slot}", slot), 1 << 20)
    holder, *others = scheduler.candidates
    scheduler.index.insert(CHAIN, holder.slot)
    for name, value in full.items():
        setattr(holder, name, value)
    for _ in range(20):
        decision = scheduler.decide(request(ROOM), CHAIN, 512)
        assert decision is not None and decision.chosen in others


def test_a_prompt_may_wait_behind_less_than_its_cached_prefix_saves() -> None:
    scheduler = Scheduler(POLICIES["prefix"], random.Random(1))
    for slot in range(4):
        scheduler.add(Candidate(f"e{slot}", slot), 1 << 20)
    holder = next(iter(scheduler.candidates))
    scheduler.index.insert(CHAIN, holder.slot)
    chosen = []
    for ahead in (SAVED // 2, SAVED - 1, SAVED):
        holder.prefill_tokens = ahead
        kept = has_room(SchedulingRequest("m", SAVED, matched={holder.slot: SAVED}, room=ROOM), [*scheduler.candidates])
        decision = scheduler.decide(request(ROOM), CHAIN, 512)
        assert decision is not None
        chosen.append((holder in kept, decision.chosen is holder))
    assert chosen == [(True, True), (True, True), (False, False)]
    stranger = scheduler.decide(SchedulingRequest("m", SAVED, room=ROOM), CHAIN[::-1], 512)
    assert stranger is not None and stranger.chosen is not holder


def test_the_last_room_of_a_large_fleet_is_found() -> None:
    scheduler = Scheduler(POLICIES["prefix"], random.Random(1))
    for slot in range(64):
        scheduler.add(Candidate(f"e{slot}", slot, prefill_tokens=4000), 1 << 20)
    free = next(c for c in scheduler.candidates if c.slot == 41)
    free.prefill_tokens = 100
    for _ in range(50):
        decision = scheduler.decide(request(ROOM), CHAIN, 512)
        assert decision is not None and decision.chosen is free
    decision = scheduler.decide(request(ROOM), CHAIN, 512, exclude={free.id})
    assert decision is not None and decision.chosen is not free, "where none has room one is chosen all the same"


@pytest.mark.parametrize(("ahead", "waits"), [(SAVED - 1, True), (SAVED, False)])
def test_a_large_fleets_holder_is_waited_for_though_none_looked_at_first_has_room(ahead: int, waits: bool) -> None:
    scheduler = Scheduler(POLICIES["prefix"], random.Random(1))
    for slot in range(64):
        scheduler.add(Candidate(f"e{slot}", slot, prefill_tokens=SAVED), 1 << 20)
    holder, *others = scheduler.candidates
    scheduler.index.insert(CHAIN, holder.slot)
    holder.prefill_tokens = ahead
    others[40].prefill_tokens = 100
    for _ in range(20):
        decision = scheduler.decide(request(ROOM), CHAIN, 512)
        assert decision is not None and decision.chosen is (holder if waits else others[40])
