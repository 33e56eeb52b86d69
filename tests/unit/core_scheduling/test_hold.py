"""Prompts that wait for answers they would make too slow."""

import random

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.scheduling import POLICIES, Candidate, HeldPrompts, HoldRule, Scheduler, SchedulingRequest
from tonnage_core.scheduling.answers import PATIENCE
from tonnage_core.scheduling.hold import MOST_HELD, RETRY_S, breaks_answers
from tonnage_core.scheduling.scheduler import Reservation
from tonnage_core.slo import Slo

LONG = 40_000


def busy(*answers: int) -> Candidate:
    """An endpoint with answers in flight of these lengths."""
    candidate = Candidate("e0", 0)
    for tokens in answers:
        Reservation.on(candidate, 100, 100 + tokens).answers(0, tokens)
    return candidate


def test_a_long_prompt_breaks_short_answers_alone_and_a_short_prompt_none() -> None:
    assert breaks_answers(SchedulingRequest("m", LONG), busy(10))
    assert not breaks_answers(SchedulingRequest("m", LONG), busy(2_000))
    assert not breaks_answers(SchedulingRequest("m", LONG), busy())
    assert not breaks_answers(SchedulingRequest("m", PATIENCE), busy(2))
    cached = SchedulingRequest("m", LONG)
    cached.matched = {0: LONG - 10}
    assert not breaks_answers(cached, busy(10))


def test_a_prompt_waits_for_its_share_of_the_limit_and_what_is_ahead_counts_as_waiting() -> None:
    rule = HoldRule(Slo(2000, 50, ttft_ms_per_prompt_token=0.1), share=0.5)
    free, full = Candidate("free", 0), Candidate("full", 1, prefill_tokens=10_000)
    assert rule.has_time(10_000, free, 1.4, 8_000, 9_000)
    assert not rule.has_time(10_000, free, 1.5, 8_000, 9_000)
    assert rule.has_time(10_000, full, 0.2, 8_000, 9_000)
    assert not rule.has_time(10_000, full, 0.3, 8_000, 9_000)
    assert not HoldRule(rule.slo, share=0).has_time(LONG, free, 0.0, 8_000)


def test_nothing_is_held_until_it_is_late_by_its_own_length() -> None:
    """10,000 tokens at 8,000 a second, of 2 s: a share of 0.6 would leave 0.8 s for 1.25."""
    rule, free = HoldRule(Slo(2000, 50)), Candidate("free", 0)
    waits = [rule.has_time(10_000, free, waited_s, 8_000) for waited_s in (0.0, 0.35, 0.4, 0.7)]
    assert waits == [True, True, False, False]
    assert not rule.has_time(10_000, free, 0.8, 8_000), "a look came too late: it goes"
    assert rule.has_time(17_000, free, 0.8, 8_000), "it is late however soon it goes"
    assert rule.has_time(10_000, free, 0.7, 8_000, cached_tokens=9_000)
    assert not rule.has_time(10_000, Candidate("busy", 0, prefill_tokens=1_000), 0.35, 8_000)


def test_looks_that_come_late_make_no_prompt_late() -> None:
    rule, free, rng = HoldRule(Slo(2000, 50)), Candidate("free", 0), random.Random(1)
    for _ in range(2000):
        at = rng.random() * 0.3
        while rule.has_time(10_000, free, at, 8_000):
            at += RETRY_S + rng.random() * 0.02
        assert at + 10_000 / 8_000 <= 2.0


def test_a_tight_limit_leaves_no_time_to_look_again_and_nothing_waits() -> None:
    free = Candidate("free", 0)
    waits = [n for n in (1, 400, 500, 510, 2000) if HoldRule(Slo(n, 50)).has_time(LONG, free, 0.0, 8_000)]
    assert waits == [510, 2000]
    assert HoldRule(Slo(800, 50)).has_time(LONG, free, 0.29, 8_000)
    assert not HoldRule(Slo(800, 50)).has_time(LONG, free, 0.31, 8_000)


def test_held_prompts_come_back_by_the_answer_they_wait_for_the_earliest_deadline_first() -> None:
    held: HeldPrompts[str] = HeldPrompts()
    for name, slot, deadline in (("late", 1, 9.0), ("other", 2, 1.0), ("early", 1, 3.0), ("as early", 1, 3.0)):
        held.add(name, slot, deadline)
    assert (len(held), held.waits_for(1), held.waits_for(3)) == (4, True, False)
    assert held.take([1, 3]) == ["early", "as early", "late"]
    assert (len(held), held.waits_for(1)) == (1, False)
    assert held.take() == ["other"]
    assert held.take() == [] and not held.full
    for number in range(MOST_HELD):
        held.add(str(number), number, 0.0)
    assert held.full


def test_a_decision_that_is_not_taken_leaves_no_trace() -> None:
    scheduler = Scheduler(POLICIES["prefix"], random.Random(1))
    for slot in range(2):
        scheduler.add(Candidate(f"e{slot}", slot), 1 << 20)
    chain = hash_bytes(seed_hash("m", None, None), b"prompt", 1)
    request = SchedulingRequest("m", 6_000, 10)
    decision = scheduler.decide(request, chain, 1_000)
    assert decision is not None
    assert [(c.requests, c.prefill_tokens, len(c.answers)) for c in scheduler.candidates] == [(0, 0, 0)] * 2
    assert scheduler.index.blocks(decision.chosen.slot) == 0
    held = scheduler.take(request, decision, chain)
    assert scheduler.index.blocks(decision.chosen.slot) == len(chain)
    assert (held.candidate, decision.chosen.requests) == (decision.chosen, 1)


def test_a_prompt_that_nobody_computes_any_more_holds_no_answer_up() -> None:
    candidate = busy(100)
    reach = 99 * PATIENCE
    for reservation in (Reservation.on(candidate, LONG, LONG).answers(0, 5), Reservation.on(candidate, 1, 1)):
        reservation.relieve()
        reservation.burden()
        reservation.release()
        assert candidate.answers.spoilt_by(reach) == 1 and candidate.answers.spoilt_by(reach - 1) == 0
    moved = Reservation.on(candidate, LONG, LONG).answers(0, 5)
    moved.relieve()
    moved.release()
    assert candidate.answers.spoilt_by(reach) == 1 and candidate.answers.spoilt_by(reach - 1) == 0
    done = Reservation.on(candidate, LONG, LONG).answers(0, 5)
    done.first_token()
    done.release()
    assert candidate.answers.spoilt_by(reach - LONG) == 1  # it was computed, and has cost the answer its time
