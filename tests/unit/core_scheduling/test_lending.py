"""Endpoints that compute prompts for others and serve whole requests: one at a time."""

from math import log
from random import Random

from tonnage_core.scheduling import POLICIES, Candidate, Reservation, Scheduler, SchedulingRequest
from tonnage_core.scheduling.prefill import LENT_SHARE, MEMORY, Lending, Link, choose_prefill, judge

FLEET = [Candidate("b", 0, role="both"), Candidate("d", 1, role="decode"), Candidate("e", 2, role="decode")]


def test_rare_long_prompts_keep_an_endpoint_for_prompts_as_many_short_ones_do() -> None:
    lending = Lending()
    assert lending.kept_free(FLEET, ()) == []
    for number in range(3 * MEMORY):
        lending.note(30_000 if number % 20 == 0 else 100, apart=number % 20 == 0)
    assert lending.kept_free(FLEET, ()) == ["b"]


def test_it_serves_whole_requests_again_once_little_is_worth_computing_apart() -> None:
    lending = Lending()
    for _ in range(2 * MEMORY):
        lending.note(8000, apart=True)
    noted = 0
    while lending.kept_free(FLEET, ()):
        lending.note(8000, apart=False)
        noted += 1
    ends = log(LENT_SHARE) / log(1 - 1 / MEMORY)
    assert ends - 10 < noted < ends + 1


def test_nobody_is_kept_free_when_no_decode_endpoint_is_left_to_try() -> None:
    lending = Lending()
    lending.note(8000, apart=True)
    assert lending.kept_free(FLEET, ("d",)) == ["b"]
    assert lending.kept_free(FLEET, ("d", "e")) == []
    assert lending.kept_free(FLEET[:1], ()) == []
    busy, short = Candidate("d", 1, role="decode", pressure=1.0), Candidate("e", 2, role="decode", max_model_len=4096)
    assert lending.kept_free([FLEET[0], busy], ()) == [], "it refuses work"
    assert lending.kept_free([FLEET[0], busy, short], (), 4000) == ["b"]
    assert lending.kept_free([FLEET[0], busy, short], (), 8000) == [], "its context does not hold the prompt"
    assert lending.kept_free(FLEET, (), 8000, {"b"}) == [], "it computes no prompts for others"


def test_of_those_that_generate_only_the_one_with_the_fewest_answers_is_waited_for() -> None:
    lending = Lending()
    lending.note(8000, apart=True)
    fleet = [Candidate(name, slot, role="both") for slot, name in enumerate("abc")] + [FLEET[1]]
    held = [Reservation.on(fleet[slot], 10, 20).answers(0, 10) for slot in (0, 0, 1)]
    assert lending.kept_free(fleet, ()) == ["b", "c"]
    held[2].release()
    assert lending.kept_free(fleet, ()) == ["a", "b", "c"]


def test_a_prompt_goes_to_the_endpoint_that_generates_nothing_and_to_none_that_does() -> None:
    scheduler = Scheduler(POLICIES["prefix"], Random(1))
    fleet = [Candidate("a", 0, role="both"), Candidate("b", 1, role="both"), Candidate("d", 2, role="decode")]
    for candidate in fleet:
        scheduler.add(candidate, 1 << 16)
    own = Reservation.on(fleet[0], 10, 20).answers(0, 10)
    Reservation.on(fleet[1], 9000, 9000)
    request = SchedulingRequest("m", 8000, 300)
    found = choose_prefill(scheduler, request, [], 0, Random(1))
    assert found is not None and found.chosen is fleet[1]
    assert choose_prefill(scheduler, request, [], 0, Random(1), ["a", "b"]) is None
    fleet[2].decoding = 50
    decision, held = scheduler.choose(request, [], 0, ["a", "b"]) or (None, None)
    assert decision is not None and held is not None
    busy = choose_prefill(scheduler, request, [], 0, Random(1), ["b"])
    assert busy is not None and busy.chosen is fleet[0]
    verdict = judge(decision, held, busy, 8000, Link(131072), 40_000)
    assert verdict.pays_unshared and not verdict.pays
    assert verdict.reason.startswith("does not pay") and "1 answers are generated" in verdict.reason
    own.release()
    assert judge(decision, held, busy, 8000, Link(131072), 40_000).pays
