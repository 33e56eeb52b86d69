"""Answers in flight, and prompts that would make them too slow."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.scheduling import POLICIES, Candidate, Scheduler, SchedulingRequest
from tonnage_core.scheduling.answers import ATTENTION_TOKENS, PATIENCE, Answers, prompt_work
from tonnage_core.scheduling.scheduler import Reservation

SENT = st.tuples(st.integers(0, 100_000), st.integers(0, 2_000))


def send(scheduler: Scheduler, name: str, prompt: int, output: int) -> tuple[Candidate, Reservation]:
    chain = hash_bytes(seed_hash("m", None, None), name.encode(), 1)
    found = scheduler.choose(SchedulingRequest("m", prompt, output), chain, 1)
    assert found is not None
    return found[0].chosen, found[1]


def fleet(count: int) -> Scheduler:
    scheduler = Scheduler(POLICIES["prefix"], random.Random(3))
    for slot in range(count):
        scheduler.add(Candidate(f"e{slot}", slot), 1 << 20)
    return scheduler


def test_a_prompt_s_work_grows_with_the_context_of_its_tokens() -> None:
    assert prompt_work(100, 0) == 100
    assert prompt_work(1000, ATTENTION_TOKENS) - prompt_work(1000, 0) == 1000
    assert prompt_work(2 * ATTENTION_TOKENS, 0) == 4 * ATTENTION_TOKENS
    assert prompt_work(0, 100_000) == 0


def test_an_answer_of_one_token_is_never_too_slow_and_a_longer_one_stands_more() -> None:
    answers = Answers()
    for output in (1, 11, 101):
        answers.begin(500, output)
    assert answers.spoilt_by(10 * PATIENCE - 501) == 0
    assert answers.spoilt_by(10 * PATIENCE) == 1
    assert answers.spoilt_by(100 * PATIENCE) == 2


def test_what_came_since_has_used_up_patience_and_what_is_lost_does_not_count_again() -> None:
    answers = Answers()
    answers.begin(0, 11)
    assert answers.spoilt_by(6 * PATIENCE) == 0
    second = answers.begin(6 * PATIENCE, 1000)
    assert answers.spoilt_by(6 * PATIENCE) == 1
    answers.begin(6 * PATIENCE, 1000)
    assert answers.spoilt_by(6 * PATIENCE) == 0
    answers.end(second)
    assert answers.spoilt_by(1000 * PATIENCE) == 1


@settings(deadline=None)
@given(st.lists(SENT, max_size=30), st.randoms(use_true_random=False), st.integers(0, 400_000))
def test_it_counts_what_a_list_of_all_answers_counts(
    sent: list[tuple[int, int]], rng: random.Random, work: int
) -> None:
    answers, total, kept = Answers(), 0, []
    for more, output in sent:
        total += more
        limit = answers.begin(more, output)
        assert limit == total + PATIENCE * max(0, output - 1)
        kept.append(limit)
        if rng.random() < 0.4:
            answers.end(kept.pop(rng.randrange(len(kept))))
    assert answers.spoilt_by(work) == sum(total < limit <= total + work for limit in kept)
    for limit in kept:
        answers.end(limit)
    assert answers.spoilt_by(1 << 40) == 0


def test_a_long_prompt_keeps_away_from_short_answers_wherever_its_home_is() -> None:
    for name in range(8):
        scheduler = fleet(2)
        patient, short = scheduler.candidates
        for candidate, output in ((patient, 2_000), (short, 20)):
            Reservation.on(candidate, 2_000, 4_000).answers(0, output)
        assert send(scheduler, f"long {name}", 60_000, 100)[0] is patient


def test_a_slower_gpu_s_answers_stand_less() -> None:
    slow = Candidate("slow", 0, gpu_speed=0.5)
    Reservation.on(slow, 1000, 1010).answers(0, 11)
    assert slow.answers.spoilt_by(10 * PATIENCE) == 1
    scheduler = Scheduler(POLICIES["prefix"], random.Random(3))
    scheduler.add(slow, 1 << 20)
    _, held = send(scheduler, "x", 3_000, 500)
    assert held.work == prompt_work(3_000, 0) * 2


def test_released_reservations_leave_no_answers_and_a_prompt_computed_elsewhere_is_no_work() -> None:
    scheduler = fleet(1)
    (only,) = scheduler.candidates
    held = [send(scheduler, str(n), 4_000, 40)[1] for n in range(20)]
    before = only.answers.spoilt_by(20 * PATIENCE)
    _, moved = send(scheduler, "moved", 50_000, 400)
    assert only.answers.spoilt_by(20 * PATIENCE) != before
    moved.relieve()
    assert only.answers.spoilt_by(20 * PATIENCE) == before
    moved.burden()
    assert only.answers.spoilt_by(20 * PATIENCE) != before
    for reservation in [*held, moved, moved]:
        reservation.release()
    assert only.answers.spoilt_by(1 << 40) == 0
