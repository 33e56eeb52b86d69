"""Prefill and decode apart: who computes a prompt, and whether the planner's rule says so."""

from random import Random

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.scheduling import POLICIES, Candidate, Reservation, Scheduler, SchedulingRequest
from tonnage_core.scheduling.prefill import Link, choose_prefill, judge

CHAIN = hash_bytes(seed_hash("m", None, None), b"x" * 4096, 512)
LINK = Link(kv_bytes_per_token=131072)
PACE = 20_000.0


def fleet(*roles: str) -> tuple[Scheduler, list[Candidate]]:
    scheduler = Scheduler(POLICIES["least_load"], Random(1))
    made = [Candidate(f"{role}-{slot}", slot, frozenset({"m"}), role=role) for slot, role in enumerate(roles)]
    for candidate in made:
        scheduler.add(candidate, 1 << 20)
    return scheduler, made


def test_only_healthy_prefill_endpoints_of_the_model_are_asked() -> None:
    scheduler, made = fleet("decode", "prefill", "prefill", "prefill", "both")
    made[1].healthy, made[2].models = False, frozenset({"other"})
    found = choose_prefill(scheduler, SchedulingRequest("m", 1000), CHAIN, 100, Random(1))
    assert found is not None and found.chosen is made[3]
    made[3].draining = True
    found = choose_prefill(scheduler, SchedulingRequest("m", 1000), CHAIN, 100, Random(1))
    assert found is not None and found.chosen is made[4], "one that does both computes prompts too"
    made[4].draining = True
    assert choose_prefill(scheduler, SchedulingRequest("m", 1000), CHAIN, 100, Random(1)) is None


def test_the_endpoint_that_holds_the_prompt_is_chosen_until_its_queue_is_longer() -> None:
    scheduler, made = fleet("prefill", "prefill")
    scheduler.index.insert(CHAIN, 1)
    request = SchedulingRequest("m", 1024)
    first = choose_prefill(scheduler, request, CHAIN, 128, Random(1))
    assert first is not None and first.chosen is made[1] and first.matched_tokens == 1024
    made[1].prefill_tokens = 50_000
    second = choose_prefill(scheduler, request, CHAIN, 128, Random(1))
    assert second is not None and second.chosen is made[0]


def pays(tokens: int, rows: int, *, waiting_prefill: int = 0, link: Link = LINK) -> bool:
    scheduler, (decode, prefill) = fleet("decode", "prefill")
    decode.decoding, prefill.prefill_tokens = rows, waiting_prefill
    chosen = scheduler.choose(SchedulingRequest("m", tokens), [], 0)
    found = choose_prefill(scheduler, SchedulingRequest("m", tokens), [], 0, Random(1))
    assert chosen is not None and found is not None
    decision, reservation = chosen
    return judge(decision, reservation, found, tokens, link, PACE).pays


def test_a_long_prompt_pays_beside_busy_decodes_and_not_on_an_idle_endpoint() -> None:
    assert pays(8000, rows=20)
    assert not pays(8000, rows=0)
    assert not pays(200, rows=20)


def test_a_slow_link_or_a_long_prefill_queue_takes_the_gain_away() -> None:
    assert not pays(8000, rows=2, link=Link(131072, link_gbps=0.5))
    assert not pays(8000, rows=2, waiting_prefill=100_000)


def test_a_relieved_reservation_gives_back_exactly_what_it_took() -> None:
    _, (decode,) = fleet("decode")
    held = Reservation.on(decode, 5000, 6000)
    held.relieve()
    assert decode.prefill_tokens == 1
    held.burden()
    assert decode.prefill_tokens == 5000
    held.relieve()
    held.first_token()
    assert (decode.prefill_tokens, decode.decode_tokens, decode.decoding) == (0, 6000, 1)
    held.burden()
    held.release()
    assert (decode.requests, decode.prefill_tokens, decode.decode_tokens, decode.decoding) == (0, 0, 0, 0)
