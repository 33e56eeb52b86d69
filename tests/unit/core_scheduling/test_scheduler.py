import random
import sys
from collections import Counter

import pytest

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.scheduling import (
    POLICIES,
    Candidate,
    Reason,
    Room,
    Scheduler,
    SchedulingError,
    SchedulingRequest,
    make_profile,
)
from tonnage_core.scheduling.decide import contributions, score
from tonnage_core.scheduling.scheduler import Reservation

SEED = seed_hash("m", None, None)


def fleet(count: int, policy: str = "prefix", seed: int = 1) -> Scheduler:
    scheduler = Scheduler(POLICIES[policy], random.Random(seed))
    for slot in range(count):
        scheduler.add(Candidate(f"e{slot}", slot), 1 << 20)
    return scheduler


def chain_of(text: str) -> list[bytes]:
    return hash_bytes(SEED, text.encode(), 1)


def choose(scheduler: Scheduler, text: str, tokens_per_block: float = 64) -> tuple[str, Reservation]:
    request = SchedulingRequest("m", int(len(text) * tokens_per_block))
    found = scheduler.choose(request, chain_of(text), tokens_per_block)
    assert found is not None
    return found[0].chosen.id, found[1]


def test_a_returning_conversation_goes_where_its_prefix_is() -> None:
    scheduler = fleet(4)
    home, reservation = choose(scheduler, "hello " * 10)
    reservation.release()
    for turn in range(1, 5):
        again, reservation = choose(scheduler, "hello " * 10 + "more " * turn)
        reservation.release()
        assert again == home


def test_unrelated_conversations_at_idle_spread_over_the_fleet() -> None:
    scheduler, seen = fleet(4), Counter[str]()
    for number in range(200):
        home, reservation = choose(scheduler, f"{number:05d} unrelated words", 16)
        reservation.release()
        seen[home] += 1
    assert len(seen) == 4
    assert max(seen.values()) < 100


def test_a_shared_system_prompt_does_not_beat_load() -> None:
    scheduler, seen = fleet(4), Counter[str]()
    for number in range(256):
        home, _ = choose(scheduler, "s" * 12 + f"user {number:04d}")
        seen[home] += 1
    assert len(seen) == 4
    assert max(seen.values()) <= 1.25 * min(seen.values()), seen


def test_a_burst_of_equal_prompts_counts_each_choice_at_once() -> None:
    scheduler = fleet(4, "least_load")
    seen = Counter(choose(scheduler, "same")[0] for _ in range(40))
    assert set(seen.values()) == {10}


def test_every_reservation_released_leaves_counters_at_exactly_zero() -> None:
    scheduler, rng = fleet(4), random.Random(3)
    held = [choose(scheduler, f"{rng.random()}" * 3)[1] for _ in range(300)]
    for reservation in held[::2]:
        reservation.first_token()
    for reservation in held + held:
        reservation.release()
    for candidate in scheduler.candidates:
        assert (candidate.requests, candidate.prefill_tokens, candidate.decode_tokens) == (0, 0, 0)


def test_a_first_token_after_release_counts_nothing() -> None:
    scheduler = fleet(1)
    _, reservation = choose(scheduler, "x")
    reservation.release()
    reservation.first_token()
    assert [c.decode_tokens for c in scheduler.candidates] == [0]


def test_an_endpoint_that_left_is_not_chosen_and_its_prefixes_are_gone() -> None:
    scheduler = fleet(2)
    home, reservation = choose(scheduler, "conversation")
    reservation.release()
    leaving = next(c for c in scheduler.candidates if c.id == home)
    scheduler.remove(leaving)
    assert choose(scheduler, "conversation")[0] != home
    returned = Candidate(home, leaving.slot)
    scheduler.add(returned, 1 << 20)
    assert scheduler.index.blocks(returned.slot) == 0


def test_no_candidate_that_serves_the_model_is_no_decision() -> None:
    scheduler = Scheduler(POLICIES["prefix"], random.Random(1))
    scheduler.add(Candidate("a", 0, frozenset({"other"})), 1000)
    assert scheduler.choose(SchedulingRequest("m", 10), [], 1) is None


def test_a_drained_endpoint_gets_nothing_new() -> None:
    scheduler = fleet(2)
    first = next(iter(scheduler.candidates))
    first.draining = True
    scheduler.changed()
    assert {choose(scheduler, f"{n}")[0] for n in range(20)} == {"e1"}


def test_round_robin_takes_turns_for_each_model_apart() -> None:
    scheduler = Scheduler(POLICIES["round_robin"], random.Random(1))
    for slot in range(2):
        scheduler.add(Candidate(f"e{slot}", slot), 1000)
    order = []
    for model in ("a", "b") * 4:
        found = scheduler.choose(SchedulingRequest(model, 1), [], 1)
        assert found is not None
        order.append((model, found[0].chosen.id))
    assert [e for m, e in order if m == "a"] == ["e0", "e1", "e0", "e1"]
    assert [e for m, e in order if m == "b"] == ["e0", "e1", "e0", "e1"]


def test_a_session_stays_until_its_home_is_overloaded() -> None:
    scheduler = fleet(4, "session")
    request = SchedulingRequest("m", 1000, session=b"alice")
    found = scheduler.choose(request, [], 1)
    assert found is not None
    home = found[0].chosen
    found[1].release()
    again = scheduler.choose(request, [], 1)
    assert again is not None
    assert (again[0].chosen, again[0].reason) == (home, Reason.SESSION)
    home.prefill_tokens += 100_000
    moved = scheduler.choose(request, [], 1)
    assert moved is not None
    assert moved[0].chosen is not home
    assert moved[0].reason is Reason.OVERLOADED_HOME


@pytest.mark.parametrize("full", [{"requests": 4}, {"pressure": 1.0}])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("policy", "reason"), [("session", Reason.SESSION), ("consistent_hash", Reason.HASH)])
def test_a_key_whose_home_is_full_is_said_to_have_left_it(
    policy: str, reason: Reason, count: int, full: dict[str, float]
) -> None:
    """The picker never sees it: filters take out what has no room or refuses work."""
    scheduler = fleet(count, policy)
    for number in range(20):
        request = SchedulingRequest("m", 1000, session=b"%d" % number, room=Room(sys.maxsize, 4))
        found = scheduler.decide(request, [], 1)
        assert found is not None and found.reason is reason
        home = found.chosen
        usual = {name: getattr(home, name) for name in full}
        for name, value in full.items():
            setattr(home, name, value)
        moved = scheduler.decide(request, [], 1)
        assert moved is not None
        assert (moved.chosen is home, moved.reason) == (False, Reason.OVERLOADED_HOME)
        keyless = scheduler.decide(SchedulingRequest("m", 1000, room=request.room), [], 1)
        assert keyless is not None and keyless.reason in (Reason.LOAD, Reason.ONLY)
        for name, value in usual.items():
            setattr(home, name, value)


def test_a_key_has_its_home_among_those_that_take_prompts_so_long() -> None:
    scheduler = fleet(4, "session")
    for candidate in scheduler.candidates:
        candidate.length_class = "long" if candidate.id in ("e0", "e1") else "short"
    scheduler.changed()
    for number in range(20):
        request = SchedulingRequest("m", 1000, session=b"%d" % number)
        found = scheduler.decide(request, [], 1)
        assert found is not None and found.chosen.id in ("e2", "e3")
        assert found.reason is Reason.SESSION
        found.chosen.pressure = 1.0
        moved = scheduler.decide(request, [], 1)
        assert moved is not None and moved.chosen.id in ("e2", "e3")
        assert moved.reason is Reason.OVERLOADED_HOME
        found.chosen.pressure = 0.0


def test_a_hashed_key_moves_only_when_its_own_endpoint_goes() -> None:
    scheduler = fleet(5, "consistent_hash")

    def homes() -> dict[int, str]:
        found = {}
        for key in range(50):
            request = SchedulingRequest("m", 1, prefix_key=b"%d" % key)
            chosen = scheduler.choose(request, [], 1)
            assert chosen is not None
            chosen[1].release()
            found[key] = chosen[0].chosen.id
        return found

    before = homes()
    scheduler.remove(next(c for c in scheduler.candidates if c.id == "e2"))
    after = homes()
    assert all(after[key] == home for key, home in before.items() if home != "e2")


def test_a_large_fleet_is_scored_on_a_shortlist_that_holds_the_prefix_holder() -> None:
    scheduler = fleet(256)
    home, reservation = choose(scheduler, "a long conversation")
    reservation.release()
    found = scheduler.choose(SchedulingRequest("m", 1200), chain_of("a long conversation, longer"), 64)
    assert found is not None
    assert found[0].chosen.id == home
    assert len(found[0].candidates) == 8


@pytest.mark.parametrize("count", [9, 12, 16, 60])
def test_a_shortlist_is_full_whatever_the_fleets_size(count: int) -> None:
    scheduler = fleet(count)
    for number in range(100):
        found = scheduler.choose(SchedulingRequest("m", 100), chain_of(f"{number:05d} prompt"), 16)
        assert found is not None
        assert len({candidate.id for candidate in found[0].candidates}) == 8


@pytest.mark.parametrize("unfit", [{"role": "prefill"}, {"models": frozenset({"other"})}])
def test_a_large_fleets_shortlist_holds_no_prefix_holder_that_may_not_serve(unfit: dict[str, object]) -> None:
    scheduler = fleet(12)
    holder = next(iter(scheduler.candidates))
    scheduler.index.insert(chain_of("a long conversation"), holder.slot)
    for name, value in unfit.items():
        setattr(holder, name, value)
    scheduler.changed()
    for _ in range(20):
        assert choose(scheduler, "a long conversation")[0] != holder.id


def test_a_large_fleet_spreads_cold_requests() -> None:
    scheduler = fleet(64)
    seen = Counter(choose(scheduler, f"{n:05d} cold", 16)[0] for n in range(640))
    assert len(seen) >= 60
    assert max(seen.values()) <= 20


def test_a_half_speed_engine_under_load_gets_about_half_a_peers_tokens() -> None:
    scheduler = fleet(2)
    slow, fast = scheduler.candidates
    slow.gpu_speed, fast.gpu_speed = 0.5, 1.0
    taken = Counter(choose(scheduler, f"{n:05d} cold and long prompt", 16)[0] for n in range(300))
    assert 0.4 <= taken["e0"] / taken["e1"] <= 0.6


def test_the_full_cache_loses_to_the_empty_one_when_tokens_are_equal() -> None:
    scheduler = fleet(2)
    full, empty = scheduler.candidates
    full.kv_utilisation, empty.kv_utilisation = 0.95, 0.05
    assert choose(scheduler, "cold")[0] == "e1"


def test_unknown_utilisation_is_neutral_not_zero() -> None:
    scheduler = fleet(2)
    unknown, busy = scheduler.candidates
    busy.kv_utilisation = 0.4
    assert choose(scheduler, "cold")[0] == "e1"
    assert unknown.kv_utilisation is None


def test_a_retry_excludes_what_was_tried() -> None:
    scheduler = fleet(3)
    found = scheduler.choose(SchedulingRequest("m", 10), [], 1, exclude={"e0", "e2"})
    assert found is not None
    assert found[0].chosen.id == "e1"


def test_equal_seeds_make_equal_decisions() -> None:
    runs = [[choose(fleet_, f"{n}")[0] for n in range(50)] for fleet_ in (fleet(4, seed=9), fleet(4, seed=9))]
    assert runs[0] == runs[1]


def test_an_unknown_plugin_is_named_with_the_known_ones() -> None:
    with pytest.raises(SchedulingError, match="no plugin named speed; known: healthy"):
        make_profile("p", ["healthy"], {"speed": 1}, "max_random_ties")


def told(scheduler: Scheduler, *, complete: bool = True) -> list[bytes]:
    """Endpoint 1 tells that it holds four blocks of 64 tokens; the others tell that they hold nothing."""
    blocks = chain_of("engine-told-" * 8)[:4]
    for candidate in scheduler.candidates:
        candidate.kv_block_size, candidate.kv_complete = 64, complete
    for block in blocks:
        scheduler.exact.store(block, 1)
    return blocks


def test_what_an_engine_tells_decides_over_what_was_routed() -> None:
    scheduler = fleet(3)
    blocks = told(scheduler)
    routed = chain_of("routed elsewhere" * 8)
    scheduler.index.insert(routed, 2)
    found = scheduler.choose(SchedulingRequest("m", 300), routed, 64, exact={64: blocks})
    assert found is not None
    assert (found[0].chosen.slot, found[0].matched_tokens) == (1, 256)


def test_an_engine_whose_history_is_incomplete_is_credited_with_what_was_routed_too() -> None:
    scheduler = fleet(3)
    blocks = told(scheduler, complete=False)
    routed = chain_of("routed elsewhere" * 8)
    scheduler.index.insert(routed, 2)
    found = scheduler.choose(SchedulingRequest("m", 2000), routed, 64, exact={64: blocks})
    assert found is not None
    assert found[0].chosen.slot == 2 and found[0].matched_tokens > 256


def test_a_short_exact_match_is_told_but_pulls_nobody() -> None:
    scheduler = fleet(4)
    blocks = told(scheduler)[:1]
    seen = Counter[int]()
    for _ in range(60):
        found = scheduler.choose(SchedulingRequest("m", 90), [], 64, exact={64: blocks})
        assert found is not None
        seen[found[0].chosen.slot] += 1
        assert found[0].matched_tokens == (64 if found[0].chosen.slot == 1 else 0)
        found[1].release()
    assert len(seen) == 4


def test_a_burst_of_equal_prompts_follows_the_first_before_its_engine_has_told() -> None:
    scheduler = fleet(3)
    for candidate in scheduler.candidates:
        candidate.kv_block_size = 64
    blocks = chain_of("burst" * 40)
    first = scheduler.choose(SchedulingRequest("m", 640), [], 64, exact={64: blocks})
    second = scheduler.choose(SchedulingRequest("m", 640), [], 64, exact={64: blocks})
    assert first is not None and second is not None
    assert second[0].chosen is first[0].chosen
    assert second[0].matched_tokens == len(blocks) * 64
    for _, reservation in (first, second):
        reservation.release()
    assert scheduler.exact.match(blocks) == []


def test_a_reservation_that_outlives_its_endpoint_takes_nothing_from_the_next_in_its_slot() -> None:
    scheduler = fleet(1)
    old = next(iter(scheduler.candidates))
    old.kv_block_size = 64
    blocks = chain_of("slot" * 40)
    first = scheduler.choose(SchedulingRequest("m", 640), [], 64, exact={64: blocks})
    scheduler.remove(old)
    scheduler.add(Candidate("new", old.slot, frozenset({"m"}), kv_block_size=64), 1 << 20)
    second = scheduler.choose(SchedulingRequest("m", 640), [], 64, exact={64: blocks})
    assert first is not None and second is not None
    first[1].release()
    assert scheduler.exact.match(blocks) != []


def test_what_each_scorer_adds_makes_up_the_total() -> None:
    rng = random.Random(7)
    profile = POLICIES["prefix"]
    for _ in range(50):
        candidates = [
            Candidate(f"e{i}", i, kv_utilisation=rng.choice([None, rng.random()]), prefill_tokens=rng.randrange(9000))
            for i in range(rng.randrange(2, 6))
        ]
        request = SchedulingRequest("m", rng.randrange(1, 9000), matched={0: rng.randrange(500)})
        columns, totals = score(request, candidates, profile)
        added = contributions(columns, profile)
        for i, total in enumerate(totals):
            assert sum(column[i] for column in added.values()) == pytest.approx(total, abs=1e-9)
