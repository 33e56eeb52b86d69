"""Worked numbers of the LLM inference guide, sections 1, 2, 4 and 9."""

import pytest

from tonnage_core import latency, roofline


def test_decode_gemm_intensity_is_about_the_batch_size() -> None:
    assert roofline.gemm_intensity(32, 8192, 8192, 2) == pytest.approx(32, rel=0.01)


def test_ridge_point_of_an_h200_is_hundreds_of_flop_a_byte() -> None:
    assert roofline.ridge_point(989, 4800) == pytest.approx(206, abs=0.1)


def test_attainable_speed_is_bandwidth_times_intensity_below_the_ridge_and_the_peak_above_it() -> None:
    assert roofline.attainable_tflops(989, 4800, 1) == pytest.approx(4.8)
    assert roofline.attainable_tflops(989, 4800, 500) == 989


def test_decode_floor_scales_with_bandwidth_so_an_l4_is_six_times_slower() -> None:
    weights = 8e9 * 2
    ratio = roofline.decode_floor_seconds(weights, 0, 300) / roofline.decode_floor_seconds(weights, 0, 1792)
    assert ratio == pytest.approx(6, rel=0.01)


def test_an_8b_model_prefills_2000_tokens_in_80_ms_at_400_tflops_and_160_at_200() -> None:
    assert roofline.prefill_seconds(8e9, 2000, 400) == pytest.approx(0.080)
    assert roofline.prefill_seconds(8e9, 2000, 200) == pytest.approx(0.160)


def test_a_70b_model_prefills_2000_tokens_in_700_ms_at_400_tflops() -> None:
    assert roofline.prefill_seconds(70e9, 2000, 400) == pytest.approx(0.700)


def test_an_8000_token_prompt_takes_5_steps_at_budget_2048_beside_100_decodes() -> None:
    assert roofline.prefill_chunks(8000, 2048, 100) == 5


def test_a_budget_that_decodes_use_up_never_prefills() -> None:
    with pytest.raises(ValueError, match="a budget of 100 tokens leaves nothing beside 100 decodes"):
        roofline.prefill_chunks(8000, 100, 100)


def test_1800_shared_tokens_reuse_112_blocks_of_16() -> None:
    assert roofline.reused_blocks(1800, 16) == 112


def test_200_tokens_at_25_ms_after_300_ms_take_5275_ms() -> None:
    assert latency.end_to_end_ms(300, 25, 200) == 5275


def test_of_100_calls_at_p99_63_percent_of_users_see_a_slow_one() -> None:
    assert latency.share_with_any_slow(0.01, 100) == pytest.approx(0.634, abs=0.0005)


def test_262_mb_of_kv_take_5_ms_at_55_gb_a_second() -> None:
    assert roofline.memory_seconds(131072 * 2000, 55) * 1e3 == pytest.approx(4.8, abs=0.05)
