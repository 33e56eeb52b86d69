"""How the engines behind published rows were started: only where the scripts are known, and a row's own columns win."""

import pytest

from tonnage_core.hardware import find_gpu
from tonnage_core.memory.truth import truth_row
from tonnage_core.prediction.published import LaunchFlags, launch_flags
from tonnage_core.prediction.truth import request_of
from tonnage_runtime.catalogue import load_model

LLAMA = {
    "id": "r.ttft_ms",
    "metric": "ttft_ms",
    "value": "500",
    "source": "InferenceX via a sample (Apache-2.0)",
    "config": "nvidia--Llama-3.1-70B-Instruct-FP8",
    "engine": "trtllm",
    "gpu": "H200-SXM-141GB",
    "tp": "1",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "16",
}
QWEN = {**LLAMA, "engine": "sglang", "config": "Qwen--Qwen3.5-397B-A17B", "gpu": "B200-SXM-180GB", "tp": "8"}


def test_a_batching_delay_is_known_for_short_prompts_on_few_cards() -> None:
    assert launch_flags(LLAMA).hold_steps == 20
    assert launch_flags({**LLAMA, "tp": "8"}).hold_steps == launch_flags({**LLAMA, "osl": "8192"}).hold_steps == 0


@pytest.mark.parametrize(("clients", "hold"), [("4", 5), ("16", 15), ("64", 15)])
def test_an_interval_between_looks_grows_with_the_clients(clients: str, hold: float) -> None:
    assert launch_flags({**QWEN, "concurrency": clients}).hold_steps == hold


@pytest.mark.parametrize("changes", [{"source": "a colleague"}, {"engine": "nim"}, {"config": "org--other"}])
def test_nothing_is_made_up_for_other_runs(changes: dict[str, str]) -> None:
    assert launch_flags({**LLAMA, **changes}) == LaunchFlags()


def test_numbers_that_are_none_are_no_flags() -> None:
    assert launch_flags({**QWEN, "concurrency": "many"}).hold_steps == 5


def test_what_a_row_says_itself_wins() -> None:
    row = truth_row({**LLAMA, "kv_dtype": "bf16", "max_num_batched_tokens": "4096", "gpu_memory_utilization": "0.5"})
    request = request_of(row, load_model(LLAMA["config"]), find_gpu(LLAMA["gpu"]))
    assert (request.kv_dtype, request.max_num_batched_tokens, request.gpu_memory_utilization) == ("bf16", 4096, 0.5)
    assert request.hold_steps == 20
