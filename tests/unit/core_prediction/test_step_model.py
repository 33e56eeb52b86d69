"""The step model: what every operator costs, and how steps grow."""

import pytest

from tonnage_core.hardware import find_gpu
from tonnage_core.parallelism import Layout
from tonnage_core.prediction import StepModel, step_model
from tonnage_runtime.catalogue import load_model


def llama(**options: object) -> StepModel:
    return step_model(load_model("meta-llama/Llama-3.1-8B"), find_gpu("H100"), **options)  # type: ignore[arg-type]


def test_a_decode_step_is_never_faster_than_reading_the_weights_once() -> None:
    weights = load_model("meta-llama/Llama-3.1-8B").weight_bytes() - 128256 * 4096 * 2
    assert llama().decode_step_s(1, 1) > weights / 3350e9


def test_steps_grow_with_rows_context_and_prompt_tokens() -> None:
    model = llama()
    base = model.mixed_step_s(8, 8 * 1000, 512, 0)
    assert model.mixed_step_s(64, 64 * 1000, 512, 0) > base
    assert model.mixed_step_s(8, 8 * 8000, 512, 0) > base
    assert model.mixed_step_s(8, 8 * 1000, 4096, 0) > base
    assert model.mixed_step_s(8, 8 * 1000, 512, 8192) > base


def test_two_gpus_are_faster_than_one_but_not_twice() -> None:
    one, two = llama().decode_step_s(32, 2000), llama(layout=Layout(2)).decode_step_s(32, 2000)
    assert one / 2 < two < one


def test_a_prompt_in_chunks_takes_longer_than_in_one_step() -> None:
    assert llama(max_num_batched_tokens=512).prefill_s(8192) > llama(max_num_batched_tokens=8192).prefill_s(8192)


@pytest.mark.parametrize("tokens", [0, -1])
def test_nothing_to_prefill_takes_no_time(tokens: int) -> None:
    assert llama().prefill_s(tokens) == 0
