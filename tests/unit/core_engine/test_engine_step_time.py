"""Step times: what limits which batch, against the guide's range for real systems."""

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.defaults import batch_limits, pool_blocks
from tonnage_core.engine.errors import BadEngineConfigError
from tonnage_core.engine.step_time import StepTime, step_time_for
from tonnage_core.hardware import GpuSpec, find_gpu
from tonnage_core.hardware.profile import gpu_from_profile
from tonnage_core.models import ModelShape
from tonnage_core.roofline import decode_floor_seconds
from tonnage_runtime.catalogue import load_model

LLAMA_8B = "meta-llama/Llama-3.1-8B"


def _shape(name: str = LLAMA_8B) -> ModelShape:
    return load_model(name)


def _time(gpu: str = "H200", name: str = LLAMA_8B, tp: int = 1) -> StepTime:
    return step_time_for(_shape(name), find_gpu(gpu), tp=tp)


def _decode(rows: int, context: int) -> Batch:
    batch = Batch()
    for _ in range(rows):
        batch.add_decode(context)
    return batch


def _prefill(tokens: int, before: int = 0) -> Batch:
    batch = Batch()
    batch.add_prefill(tokens, before, sampled=True)
    return batch


def test_a_lone_decode_reads_at_60_to_85_percent_of_peak_bandwidth_and_pays_launches_besides() -> None:
    shape, clock = _shape(), _time()
    read = shape.weight_bytes() - shape.vocab * shape.hidden * shape.element_bytes
    floor = decode_floor_seconds(read, 1000 * 131072, 4800)
    launches = clock.efficiency.step_s + 32 * 9 * clock.efficiency.kernel_s
    seconds = clock.seconds(_decode(1, 1000))
    assert 0.60 <= floor / (seconds - launches) <= 0.85
    assert floor / seconds >= 0.50


def test_a_step_is_never_quicker_than_its_floors() -> None:
    clock = _time()
    for batch in (_decode(1, 100), _decode(256, 4000), _prefill(8192), _prefill(512, 60000)):
        flops = (batch.decode_rows + batch.prefill_tokens) * clock.flops_per_token
        assert clock.seconds(batch) > flops / clock.peak_flops
        assert clock.seconds(batch) > clock.weight_bytes / clock.hbm_bytes_s


def test_more_decodes_share_the_weights_so_a_hundred_cost_far_less_than_a_hundred_times_one() -> None:
    assert _time().seconds(_decode(100, 500)) < 2 * _time().seconds(_decode(1, 500))


def test_decode_time_grows_with_context_by_the_kv_bytes_read() -> None:
    clock = _time()
    grown = clock.seconds(_decode(64, 4000)) - clock.seconds(_decode(64, 2000))
    assert grown == pytest.approx(64 * 2000 * 131072 / (4800e9 * 0.75))


def test_prefill_attention_grows_with_the_square_of_the_prompt() -> None:
    clock = _time()
    short, long = clock.seconds(_prefill(16384)), clock.seconds(_prefill(32768))
    assert long > 2.05 * short


def test_splitting_over_two_gpus_pays_less_than_twofold_for_the_all_reduces() -> None:
    one, two = _time().seconds(_decode(8, 1000)), _time(tp=2).seconds(_decode(8, 1000))
    assert one / 2 < two < one


def test_a_larger_batch_reads_more_experts() -> None:
    clock = _time("H100", "openai/gpt-oss-120b")
    assert clock.experts == 128
    assert clock.seconds(_decode(64, 1)) > 3 * clock.seconds(_decode(1, 1))


def test_fp8_weights_halve_the_read_and_double_the_compute_peak() -> None:
    plain, small = _time(), _time(name="nvidia/Llama-3.1-8B-Instruct-FP8")
    assert small.peak_flops == pytest.approx(2 * plain.peak_flops, rel=0.01)
    assert small.seconds(_decode(1, 100)) < 0.75 * plain.seconds(_decode(1, 100))


def _measured(**ceilings: float) -> GpuSpec:
    healthy = {"hbm_read_gbps": 4196, "hbm_copy_gbps": 4227, "bf16_tflops": 767, "h2d_pinned_gbps": 54.5}
    return gpu_from_profile({"name": "H200-SXM-141GB", "ceilings": healthy | ceilings})


def test_a_healthy_card_gives_the_same_step_times_from_its_profile_as_from_the_catalogue() -> None:
    printed, measured = _time(), step_time_for(_shape(), _measured())
    for batch in (_decode(1, 100), _decode(64, 4000), _prefill(8192), _prefill(512, 60000)):
        assert measured.seconds(batch) == pytest.approx(printed.seconds(batch))
    assert measured.swap_seconds(1000) == pytest.approx(printed.swap_seconds(1000), rel=0.01)


def test_a_card_that_measured_half_the_bandwidth_decodes_at_nearly_half_the_speed() -> None:
    slow = step_time_for(_shape(), _measured(hbm_read_gbps=2100, hbm_copy_gbps=2113))
    assert slow.seconds(_decode(64, 4000)) > 1.8 * _time().seconds(_decode(64, 4000))


def test_swapping_moves_kv_over_pcie() -> None:
    assert _time().swap_seconds(1000) == pytest.approx(1000 * 131072 / 54.4e9)


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ("B200", (16384, 1024)),
        ("H200", (8192, 1024)),
        ("H100", (8192, 1024)),
        ("A100", (2048, 256)),
        ("L4", (2048, 256)),
    ],
)
def test_batch_limits_are_vllms_for_the_gpu(gpu: str, limits: tuple[int, int]) -> None:
    assert batch_limits(find_gpu(gpu)) == limits


def test_blocks_are_what_the_gpu_has_left_after_weights_and_activations() -> None:
    blocks = pool_blocks(_shape(), find_gpu("H100"))
    assert 50 < blocks * 16 * 131072 / 2**30 < 57


def test_a_model_that_leaves_no_room_is_refused_with_the_fix() -> None:
    with pytest.raises(BadEngineConfigError, match=r"use more GPUs \(--tp\) or a smaller model"):
        pool_blocks(_shape("meta-llama/Llama-3.1-70B"), find_gpu("H200"))
