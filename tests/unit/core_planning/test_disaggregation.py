"""When moving KV pays: long prompts beside busy decodes over quick links, and never on an idle endpoint."""

from dataclasses import replace

import pytest

from tonnage_core import moe
from tonnage_core.disaggregation import Handover, handover, shortest_paying_prompt, transfer_s

CASE = Handover(
    prompt_tokens=16000,
    uncached_decode=16000,
    uncached_prefill=16000,
    decode_rows=40,
    prefill_s_per_token=25e-6,
    kv_bytes_per_token=131072,
    link_gbps=50,
)
"""An 8B model: 0.4 s of prefill, 2.1 GB to move."""


def test_a_long_prompt_beside_forty_decodes_pays_and_says_why() -> None:
    verdict = handover(CASE)
    assert verdict.pays
    assert verdict.aggregated_s == pytest.approx(0.4 + 40 * 25e-6 * (16000 - 256))
    assert verdict.transfer_s == pytest.approx(0.001 + 16000 * 131072 / 50e9)
    assert "40 decodes" in verdict.reason


@pytest.mark.parametrize(
    "change",
    [
        {"decode_rows": 0},
        {"link_gbps": 0.1},
        {"uncached_decode": 0, "uncached_prefill": 0},
        {"waiting_prefill_s": 60.0},
        {"prompt_tokens": 100, "uncached_decode": 1, "uncached_prefill": 1},
    ],
)
def test_it_does_not_pay(change: dict[str, float]) -> None:
    verdict = handover(replace(CASE, **change))  # type: ignore[arg-type]
    assert not verdict.pays
    assert "does not pay" in verdict.reason


def test_the_shortest_paying_prompt_is_where_the_rule_turns() -> None:
    for rows, link in ((1, 50.0), (8, 3.125), (40, 50.0)):
        shortest = shortest_paying_prompt(rows, 25e-6, 131072, link)
        if shortest is None:
            pays = [handover(replace(CASE, decode_rows=rows, link_gbps=link)).pays]
            assert pays == [False]
            continue
        for tokens, expected in ((shortest, True), (shortest - 1, False)):
            case = replace(CASE, uncached_decode=tokens, uncached_prefill=tokens, decode_rows=rows, link_gbps=link)
            assert handover(case).pays is expected


def test_a_prefill_pool_that_cannot_keep_up_is_left_alone() -> None:
    patient, late = replace(CASE, waiting_prefill_s=1.59), replace(CASE, waiting_prefill_s=1.61)
    assert handover(patient).pays
    verdict = handover(late)
    assert verdict.disaggregated_s < verdict.aggregated_s
    assert not verdict.pays
    assert "queue 1.610 s longer" in verdict.reason
    assert handover(replace(late, waiting_decode_s=0.1)).pays


def test_the_decode_endpoints_queue_is_met_either_way() -> None:
    short = replace(CASE, prompt_tokens=200, uncached_decode=200, uncached_prefill=200)
    for waiting in (0.0, 0.5, 5.0):
        verdict = handover(replace(short, waiting_decode_s=waiting))
        assert verdict.disaggregated_s >= waiting
        assert not verdict.pays


def test_overlap_hides_the_transfer_but_not_the_latency() -> None:
    assert transfer_s(50e9, 50, 0.002, overlap=1.0) == pytest.approx(0.002)
    assert transfer_s(50e9, 50, 0.0, overlap=0.75) == pytest.approx(0.25)


def test_the_busiest_rank_evens_out_as_the_batch_grows() -> None:
    assert moe.imbalance(1000, 8, 1) == 1.0
    few, many = moe.imbalance(8, 8, 8), moe.imbalance(4096, 8, 8)
    assert 1 < many < few <= 8
    assert many < 1.05


def test_all_to_all_moves_each_token_once_to_every_rank_it_needs() -> None:
    assert moe.all_to_all_bytes(32, 7168, 8, 1, 2) == 0
    one = moe.all_to_all_bytes(32, 7168, 1, 8, 2)
    assert one == pytest.approx(32 * 7168 * 2 * 7 / 8)
    assert one < moe.all_to_all_bytes(32, 7168, 8, 8, 2) < 8 * one
    assert moe.redundant_experts(256, 72) == 32
