"""Hot spots that users of other routers reported, as tests on the choice alone."""

import random
import tracemalloc
from collections import Counter

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.prefix_index.index import ENTRY_BYTES, PrefixIndex
from tonnage_core.scheduling import POLICIES, Candidate, Scheduler, SchedulingRequest

SEED = seed_hash("m", None, None)


def fleet(count: int, policy: str = "prefix") -> Scheduler:
    scheduler = Scheduler(POLICIES[policy], random.Random(2))
    for slot in range(count):
        scheduler.add(Candidate(f"e{slot}", slot), 1 << 20)
    return scheduler


def choose(scheduler: Scheduler, text: str, tokens: int, per_block: float) -> Candidate:
    chain = hash_bytes(SEED, text.encode(), 1)
    found = scheduler.choose(SchedulingRequest("m", tokens), chain, per_block)
    assert found is not None
    return found[0].chosen


def test_a_cold_prompt_goes_to_the_least_loaded_not_to_the_least_used_or_emptiest() -> None:
    scheduler = fleet(3)
    busy, middle, idle = scheduler.candidates
    busy.prefill_tokens, middle.prefill_tokens = 50_000, 9_000
    scheduler.index.insert(hash_bytes(SEED, b"much is cached here", 1), idle.slot)
    assert choose(scheduler, "cold", 2000, 500) is idle


def test_near_ties_are_broken_at_random() -> None:
    scheduler, seen = fleet(4, "least_load"), Counter[str]()
    for _ in range(400):
        found = scheduler.choose(SchedulingRequest("m", 100), [], 1)
        assert found is not None
        found[1].release()
        seen[found[0].chosen.id] += 1
    assert len(seen) == 4 and min(seen.values()) > 60


def test_the_first_holder_of_a_prefix_loses_it_when_busy() -> None:
    scheduler = fleet(2)
    home = choose(scheduler, "shared", 6000, 1000)
    home.prefill_tokens += 20_000
    assert choose(scheduler, "shared", 6000, 1000) is not home


def test_a_cold_burst_during_slow_prefill_is_spread_before_any_answer_starts() -> None:
    scheduler = fleet(4)
    seen = Counter(choose(scheduler, f"{n:03d}"[::-1], 4000, 10).id for n in range(40))
    assert set(seen.values()) == {10}


def test_an_unhealthy_idle_endpoint_changes_nothing() -> None:
    with_dead, without = fleet(3), fleet(2)
    dead = list(with_dead.candidates)[2]
    dead.healthy = False
    with_dead.changed()
    for scheduler in (with_dead, without):
        for candidate in list(scheduler.candidates)[:2]:
            candidate.prefill_tokens = 30_000
    for text in ("first", "second", "third"):
        assert choose(with_dead, text, 3000, 600).id == choose(without, text, 3000, 600).id


def test_a_short_prompt_that_is_wholly_cached_makes_no_hot_spot() -> None:
    scheduler = fleet(4)
    seen = Counter[str]()
    for _ in range(80):
        candidate = choose(scheduler, "hi", 30, 15)
        seen[candidate.id] += 1
        candidate.prefill_tokens = candidate.requests = 0
    assert len(seen) == 4


def test_prompts_that_never_repeat_leave_memory_flat() -> None:
    index = PrefixIndex()
    for slot in range(4):
        index.add_slot(slot, 2000 * ENTRY_BYTES)

    def churn(first: int, count: int) -> None:
        for number in range(first, first + count):
            if number % 997 == 0:
                index.remove_slot(number % 4)
                index.add_slot(number % 4, 2000 * ENTRY_BYTES)
            index.insert(hash_bytes(SEED, b"%08d" % number * 8, 8), number % 4)

    churn(0, 3000)
    tracemalloc.start()
    try:
        churn(3000, 3000)
        before = tracemalloc.get_traced_memory()[0]
        churn(6000, 9000)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after < before + 1_000_000
    assert index.memory_bytes <= 4 * 2000 * ENTRY_BYTES


def test_the_estimate_of_an_entrys_memory_is_not_below_what_it_takes() -> None:
    tracemalloc.start()
    try:
        index = PrefixIndex()
        index.add_slot(0, 1 << 30)
        for number in range(20_000):
            index.insert(hash_bytes(SEED, b"%08d" % number, 8), 0)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 * index.memory_bytes < used < 1.1 * index.memory_bytes


def test_a_long_cold_prompt_keeps_away_from_many_decoding_requests_of_equal_load() -> None:
    scheduler = fleet(2)
    crowded, calm = scheduler.candidates
    crowded.requests, calm.requests = 12, 2
    crowded.decode_tokens = calm.decode_tokens = 24_000
    assert choose(scheduler, "long and cold", 6000, 6000 / 13) is calm


def test_a_prompt_that_is_wholly_cached_holds_nobody_up_and_returns_to_its_crowded_home() -> None:
    scheduler = fleet(2)
    home = choose(scheduler, "the same conversation", 6000, 6000 / 21)
    home.prefill_tokens, home.requests = 0, 40
    assert choose(scheduler, "the same conversation", 6000, 6000 / 21) is home
