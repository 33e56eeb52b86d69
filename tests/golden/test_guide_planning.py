"""Worked numbers of the LLM inference guide, sections 1, 7 to 9, 11 and 12: cost, fan-out, drafts, links, queues."""

from random import Random

import pytest

from tonnage_core import cost, disaggregation, latency, moe, queueing, roofline, speculative
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.hardware import find_gpu
from tonnage_runtime.catalogue import load_model


def test_a_3_dollar_gpu_at_5000_tokens_a_second_costs_167_thousandths_of_a_dollar_a_million() -> None:
    assert cost.usd_per_million_tokens(3.0, 5000) == pytest.approx(0.167, abs=0.0005)


def test_100_calls_need_a_99_99th_percentile_each_for_a_99th_of_users() -> None:
    each = latency.percentile_of_calls(99, 100)
    assert each == pytest.approx(99.99, abs=0.0005)
    assert 1 - latency.share_with_any_slow(1 - each / 100, 100) == pytest.approx(0.99)


TABLE = {
    (0.5, 3): (1.873, 1.875, 1.44),
    (0.5, 5): (1.966, 1.969, 1.31),
    (0.7, 3): (2.534, 2.533, 1.95),
    (0.7, 5): (2.948, 2.941, 1.96),
    (0.8, 3): (2.949, 2.952, 2.27),
    (0.8, 5): (3.692, 3.689, 2.46),
    (0.9, 3): (3.436, 3.439, 2.65),
    (0.9, 5): (4.691, 4.686, 3.12),
}
"""(acceptance, drafted) -> simulated tokens, tokens by the formula, speed-up at a draft cost of 0.1."""


@pytest.mark.parametrize(("acceptance", "drafted"), TABLE)
def test_the_speculative_table(acceptance: float, drafted: int) -> None:
    _, tokens, gain = TABLE[acceptance, drafted]
    assert speculative.expected_tokens(acceptance, drafted) == pytest.approx(tokens, abs=0.0006)
    assert speculative.speedup(acceptance, drafted, 0.1) == pytest.approx(gain, abs=0.006)


@pytest.mark.parametrize(("acceptance", "drafted"), TABLE)
def test_drawn_acceptances_agree_with_the_formula(acceptance: float, drafted: int) -> None:
    rng, trials, total = Random(1), 20_000, 0
    for _ in range(trials):
        run = 0
        while run < drafted and rng.random() < acceptance:
            run += 1
        total += run + 1
    assert total / trials == pytest.approx(speculative.expected_tokens(acceptance, drafted), rel=0.02)
    assert total / trials == pytest.approx(TABLE[acceptance, drafted][0], rel=0.02)


def test_at_half_acceptance_five_drafted_tokens_are_worse_than_three() -> None:
    assert speculative.speedup(0.5, 5, 0.1) < speculative.speedup(0.5, 3, 0.1)


def test_an_80_layer_model_makes_160_all_reduces_of_512_kib_at_batch_32() -> None:
    time = step_time_for(load_model("meta-llama/Llama-3.1-70B"), find_gpu("H100"), tp=8)
    assert time.all_reduces == 160
    # A ring moves 2 (n - 1) / n of the message over each rank's link.
    assert 32 * time.row_bytes == pytest.approx(2 * 7 / 8 * 512 * 1024)
    assert time.all_reduces * time.efficiency.all_reduce_s > 0.5 * 2e-3, "milliseconds a token beside a floor of 2 to 5"


def test_at_one_row_only_the_chosen_experts_are_read_and_at_a_batch_nearly_all() -> None:
    assert moe.expert_coverage(8, 2, 1) == pytest.approx(0.25)
    assert moe.expert_coverage(8, 2, 32) > 0.999
    assert moe.expert_coverage(256, 8, 256) > 0.999


def test_262_mb_of_kv_take_84_ms_at_25_gbit_and_5_ms_at_400_and_at_pcie_speed() -> None:
    size = disaggregation.kv_bytes(2000, 131072)
    assert size == 262_144_000
    times = [disaggregation.transfer_s(size, link) * 1e3 for link in (25 * disaggregation.GBIT, 50.0, 55.0)]
    assert times == pytest.approx([83.9, 5.2, 4.8], abs=0.05)


def test_weights_load_in_a_third_of_a_second_over_pcie_and_in_many_from_a_slow_source() -> None:
    assert roofline.memory_seconds(16e9, 55) == pytest.approx(0.29, abs=0.005)
    assert roofline.memory_seconds(16e9, 1) == pytest.approx(16)
    assert roofline.memory_seconds(70e9, 2) == pytest.approx(35)


def test_a_rank_16_adapter_of_an_8b_model_has_41_9_million_parameters_and_84_mb() -> None:
    hidden, kv, intermediate, layers, rank = 4096, 1024, 14336, 32, 16
    pairs = [(hidden, hidden), (hidden, kv), (hidden, kv), (hidden, hidden)]
    pairs += [(hidden, intermediate), (hidden, intermediate), (intermediate, hidden)]
    parameters = layers * rank * sum(a + b for a, b in pairs)
    assert parameters / 1e6 == pytest.approx(41.9, abs=0.05)
    assert parameters * 2 / 1e6 == pytest.approx(84, abs=0.2)


@pytest.mark.parametrize(("load", "factor"), [(0.5, 2), (0.8, 5), (0.9, 10), (0.95, 20)])
def test_the_queueing_factors(load: float, factor: float) -> None:
    assert queueing.stretch(load) == pytest.approx(factor)
    assert queueing.utilisation_for(factor) == pytest.approx(load)
