"""The step model: what every operator costs, and how steps grow."""

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.hardware import find_gpu
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.prediction import StepModel, step_model
from tonnage_core.prediction.operators import AttentionWork, operators_of
from tonnage_core.prediction.step_model import all_reduce_bytes, in_precision
from tonnage_runtime.catalogue import load_model

LLAMA = "meta-llama/Llama-3.1-8B"


def model(name: str = LLAMA, gpu: str = "H100", **options: object) -> StepModel:
    return step_model(load_model(name), find_gpu(gpu), **options)  # type: ignore[arg-type]


def shape(name: str = LLAMA) -> ModelShape:
    return load_model(name)


def test_a_decode_step_is_never_faster_than_reading_the_weights_once() -> None:
    weights = shape().weight_bytes() - 128256 * 4096 * 2
    assert model().decode_step_s(1, 1) > weights / 3350e9


def test_products_count_the_parameters_a_token_passes() -> None:
    work = operators_of(shape())
    flops = sum(part.flops_per_row for part in work.products) + work.head.flops_per_row
    assert flops == pytest.approx(2 * shape().active_parameters, rel=1e-3)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"])
def test_experts_count_only_the_chosen_ones(name: str) -> None:
    work = operators_of(shape(name))
    flops = sum(part.flops_per_row for part in work.products) + work.head.flops_per_row
    flops += sum(part.top_k * part.flops_per_choice for part in work.experts)
    assert flops == pytest.approx(2 * shape(name).active_parameters, rel=0.02)


def test_steps_grow_with_rows_context_and_prompt_tokens() -> None:
    one = model()
    base = one.mixed_step_s(8, 8 * 1000, 512, 0)
    assert one.mixed_step_s(64, 64 * 1000, 512, 0) > base
    assert one.mixed_step_s(8, 8 * 8000, 512, 0) > base
    assert one.mixed_step_s(8, 8 * 1000, 4096, 0) > base
    assert one.mixed_step_s(8, 8 * 1000, 512, 8192) > base


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        (LLAMA, Layout()),
        ("deepseek-ai/DeepSeek-V3", Layout(8)),
        ("deepseek-ai/DeepSeek-V3", Layout(1, 1, 8, 8)),
        ("openai/gpt-oss-120b", Layout(2, 2, 2)),
        ("Qwen/Qwen3.5-397B-A17B", Layout(8)),
        ("deepseek-ai/DeepSeek-V3.2", Layout(8)),
    ],
)
def test_the_parts_of_a_step_add_up_to_it(name: str, layout: Layout) -> None:
    one = model(name, "B200", layout=layout)
    for case in ((32, 32 * 4000, 0, 0), (0, 0, 2048, 4096), (32, 32 * 4000, 2048, 4096)):
        assert sum(one.parts(*case).values()) == pytest.approx(one.mixed_step_s(*case), rel=1e-9)


def test_two_gpus_are_faster_than_one_but_not_twice() -> None:
    one, two = model().decode_step_s(32, 2000), model(layout=Layout(2)).decode_step_s(32, 2000)
    assert one / 2 < two < one


def test_a_prompt_in_chunks_takes_longer_than_in_one_step() -> None:
    assert model(max_num_batched_tokens=512).prefill_s(8192) > model(max_num_batched_tokens=8192).prefill_s(8192)


@pytest.mark.parametrize("tokens", [0, -1])
def test_nothing_to_prefill_takes_no_time(tokens: int) -> None:
    assert model().prefill_s(tokens) == 0


def test_chunks_of_a_prompt_fill_pipeline_stages() -> None:
    """With n chunks over p stages a prompt takes 1 + (n - 1) / p passes, not n."""
    staged = model(layout=Layout(1, 4), max_num_batched_tokens=1024)
    chunk = staged.mixed_step_s(0, 0, 1024, 3584)
    assert staged.prefill_s(8192) == pytest.approx(chunk * (1 + 7 / 4))


def test_a_cached_prefix_saves_its_products_but_not_its_attention() -> None:
    whole, rest, fresh = model().prefill_s(8192), model().prefill_s(2048, 6144), model().prefill_s(2048)
    assert fresh < rest < whole / 2


def test_fewer_bits_are_read_faster_on_small_batches() -> None:
    plain = model("meta-llama/Llama-3.1-70B").decode_step_s(4, 1000)
    eight = model("meta-llama/Llama-3.1-70B", precision="fp8").decode_step_s(4, 1000)
    four = model("meta-llama/Llama-3.1-70B", precision="w4a16").decode_step_s(4, 1000)
    assert four < eight < 0.7 * plain


def test_a_quantised_checkpoint_keeps_its_own_format() -> None:
    quantised = shape("Qwen/Qwen3-8B-FP8")
    assert in_precision(quantised, "w4a16") is quantised


def test_a_small_batch_touches_few_experts() -> None:
    """60 experts of which a token takes 4: eight rows read more of them than one, and never all."""
    one = model("Qwen/Qwen1.5-MoE-A2.7B")
    few, more, most = (one.parts(rows, rows * 100, 0, 0)["experts"] for rows in (1, 8, 256))
    assert few < more < most
    assert few < 0.2 * most


def test_a_window_bounds_what_decoding_reads() -> None:
    windowed = AttentionWork(1, "full", 100.0, 1.0, 1.0, reach=128)
    assert windowed.keys(64) == 64
    assert windowed.keys(100_000) == 128


@pytest.mark.parametrize(("tokens", "before"), [(100, 0), (100, 1000), (300, 0), (300, 64), (64, 64)])
def test_pairs_of_a_window_are_counted_one_by_one(tokens: int, before: int) -> None:
    windowed = AttentionWork(1, "full", 100.0, 1.0, 1.0, reach=128)
    counted = sum(min(before + index + 0.5, 128) for index in range(tokens))
    assert windowed.pairs(tokens, before) == pytest.approx(counted, rel=0.01)


def test_an_all_reduce_moves_the_guides_bytes() -> None:
    """Guide, section 8: 32 rows of 8,192 in 16 bits are 512 KiB; 80 layers send 160 of them, and latency decides."""
    assert 32 * 8192 * 2 == 512 * 1024
    assert all_reduce_bytes(512 * 1024, 4) == 1.5 * 512 * 1024
    assert all_reduce_bytes(512 * 1024, 1) == 0
    split = model("meta-llama/Llama-3.1-70B", layout=Layout(4))
    sent = 160 * all_reduce_bytes(512 * 1024, 4) / (450e9 * split.coefficients.link)
    found = split.parts(32, 32 * 1000, 0, 0)["collectives"]
    assert found == pytest.approx(160 * split.coefficients.collective_s * 1.2 + sent)
    assert found > 0.001


def test_the_engine_model_can_run_on_it() -> None:
    one, batch = model(), Batch()
    for _ in range(16):
        batch.add_decode(1000)
    assert one.seconds(batch) == pytest.approx(one.decode_step_s(16, 1000))
    batch.add_prefill(512, 1024, 0)
    assert one.seconds(batch) == pytest.approx(one.mixed_step_s(16, 16000, 512, 1024), rel=1e-6)
    assert one.swap_seconds(1000) == pytest.approx(1000 * 131072 / (64e9 * 0.85))


def test_attention_over_data_parallel_ranks_sends_tokens_to_experts() -> None:
    spread = model("deepseek-ai/DeepSeek-V3", "H200", layout=Layout(1, 1, 8, 8))
    assert spread.parts(64, 64 * 1000, 0, 0)["collectives"] > 0
    assert model("deepseek-ai/DeepSeek-V3", "H200").parts(64, 64 * 1000, 0, 0)["collectives"] == 0


def test_a_card_measured_slow_is_predicted_slow() -> None:
    from tonnage_core.hardware.profile import gpu_from_profile

    healthy = {"name": "H200-SXM-141GB", "ceilings": {"hbm_read_gbps": 4227, "bf16_tflops": 767}}
    slow = {"name": "H200-SXM-141GB", "ceilings": {"hbm_read_gbps": 3000, "bf16_tflops": 500}}
    catalogue = model(gpu="H200").decode_step_s(16, 4000)
    assert step_model(shape(), gpu_from_profile(healthy)).decode_step_s(16, 4000) == pytest.approx(catalogue, rel=0.01)
    assert step_model(shape(), gpu_from_profile(slow)).decode_step_s(16, 4000) > 1.2 * catalogue
