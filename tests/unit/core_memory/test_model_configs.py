"""Any published config.json becomes a shape; what cannot be read is one named error."""

import json
import math
from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.memory import MemoryRequest, plan_memory
from tonnage_core.models import ConfigError, UnknownArchitectureError, shape_from_config
from tonnage_core.models.layers import Attention, Dense, Experts, RecurrentState
from tonnage_runtime.catalogue import catalogue, load_model, model_names

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 1_000,
    "max_position_embeddings": 2_048,
    "torch_dtype": "bfloat16",
}


def shape(**changes: Any) -> Any:
    return shape_from_config({**PLAIN, **changes}, "m")


def test_every_config_of_the_catalogue_is_read_without_an_assumption() -> None:
    names = [name for name in model_names() if "/" in name]
    assert len(names) > 130
    assert {name: load_model(name).notes for name in names if load_model(name).notes} == {}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-0.6B", 0.596),
        ("meta-llama/Llama-3.1-405B", 405.85),
        ("deepseek-ai/DeepSeek-V3", 671.03),
        ("mistralai/Mixtral-8x7B-v0.1", 46.70),
        ("openai/gpt-oss-120b", 116.83),
        ("moonshotai/Kimi-K2-Instruct", 1026.4),
        ("microsoft/phi-2", 2.780),
        ("google/gemma-2-9b-it", 9.242),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120.67),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 549.3),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 49.87),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108.64),
        ("Qwen/Qwen3.5-397B-A17B", 396.8),
    ],
)
def test_parameters_are_those_of_the_checkpoint(name: str, billions: float) -> None:
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("deepseek-ai/DeepSeek-V3", 36.6), ("Qwen/Qwen3-30B-A3B", 3.04), ("openai/gpt-oss-120b", 5.17)],
)
def test_active_parameters_leave_idle_experts_and_unread_embeddings_out(name: str, billions: float) -> None:
    assert load_model(name).active_parameters / 1e9 == pytest.approx(billions, rel=5e-3)


def test_a_nested_language_section_is_read() -> None:
    nested = shape_from_config({"model_type": "llava", "text_config": PLAIN}, "m")
    assert (nested.layers, nested.hidden, nested.dtype) == (4, 64, "bfloat16")


def test_multi_query_and_missing_key_value_heads() -> None:
    assert shape(multi_query=True).kv_heads == 1
    assert shape(num_key_value_heads=None).kv_heads == 8


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"sliding_window": 128}, "ssss"),
        ({"sliding_window": 128, "sliding_window_pattern": 2}, "sfsf"),
        ({"sliding_window": 128, "use_sliding_window": False}, "ffff"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 128}, "sfsf"),
        ({"attention_chunk_size": 512}, "cccf"),
        ({"hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window": 128}, "fssf"),
    ],
)
def test_windows_and_chunks_by_any_of_their_spellings(changes: dict[str, Any], kinds: str) -> None:
    found = [layer.mixer for layer in shape(**changes).stack]
    assert "".join("s" if one.window else "c" if one.chunk else "f" for one in found) == kinds


@pytest.mark.parametrize(
    "changes",
    [
        {"hybrid_override_pattern": "M-M*", "mamba_num_heads": 4, "ssm_state_size": 16},
        {"layers_block_type": ["mamba", "mlp", "mamba", "attention"], "mamba_num_heads": 4, "ssm_state_size": 16},
    ],
)
def test_stacks_of_one_part_a_layer(changes: dict[str, Any]) -> None:
    found = shape(model_type="nemotron_h", **changes).stack
    assert isinstance(found[0].mixer, RecurrentState) and found[0].network is None
    assert found[1].mixer is None and isinstance(found[1].network, Dense)
    assert isinstance(found[3].mixer, Attention)


def test_experts_after_dense_layers_with_shared_ones() -> None:
    moe = {"n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2}
    found = shape(first_k_dense_replace=1, **moe).stack
    assert isinstance(found[0].network, Dense)
    assert found[1].network == Experts(count=16, top_k=2, intermediate=32, shared=64)


def test_an_architecture_that_is_not_listed_is_counted_and_said_so() -> None:
    assert "brand_new" in shape(model_type="brand_new").notes[0]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"num_hidden_layers": None}, ConfigError, "num_hidden_layers"),
        ({"num_hidden_layers": -3}, ConfigError, "-3"),
        ({"num_hidden_layers": 10**7}, ConfigError, "10000000"),
        ({"hidden_size": math.nan}, ConfigError, "hidden_size"),
        ({"hidden_size": True}, ConfigError, "hidden_size"),
        ({"hidden_size": "64"}, ConfigError, "hidden_size"),
        ({"vocab_size": math.inf}, ConfigError, "vocab_size"),
        ({"num_attention_heads": 7}, ConfigError, "multiple"),
        ({"num_key_value_heads": 3}, ConfigError, "multiple"),
        ({"intermediate_size": None}, ConfigError, "intermediate_size"),
        ({"layer_types": ["full_attention"]}, ConfigError, "layer_types"),
        ({"layer_types": ["quantum_attention"] * 4}, UnknownArchitectureError, "quantum_attention"),
        ({"layer_types": ["linear_attention"] * 4}, UnknownArchitectureError, "state"),
        ({"hybrid_override_pattern": "MX-*"}, UnknownArchitectureError, "X"),
        ({"num_experts": 4, "num_experts_per_tok": 9, "moe_intermediate_size": 8}, ConfigError, "9 experts"),
        ({"quantization_config": {"quant_method": "magic"}}, BadInputError, "magic"),
    ],
)
def test_impossible_configs_are_one_clear_error(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        shape(**changes)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("config", [[], "text", 3, None])
def test_a_config_that_is_no_object_is_an_error(config: Any) -> None:
    with pytest.raises(ConfigError, match="JSON object"):
        shape_from_config(config, "m")


def test_no_formula_depends_on_a_models_name() -> None:
    for file in ("openai--gpt-oss-20b.json", "moonshotai--Kimi-K3.json", "google--gemma-4-31B-it.json"):
        config = json.loads((catalogue() / file).read_text(encoding="utf-8"))
        one, other = shape_from_config(config, "a"), shape_from_config(config, "b")
        assert (one.weight_bytes(), one.kv_bytes_per_token()) == (other.weight_bytes(), other.kv_bytes_per_token())


def test_scaled_positions_set_the_longest_sequence_and_the_rotary_table() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2_048}
    assert shape(rope_scaling=yarn).longest == 8_192
    assert shape(rope_scaling=yarn).rotary_elements == 8_192 * 8
    assert shape(rope_scaling={"rope_type": "llama3", "factor": 8.0}).longest == 2_048


def test_a_32_bit_checkpoint_is_loaded_in_16_bits_unless_32_are_asked_for() -> None:
    plain, wide = shape(), shape(torch_dtype="float32")
    assert wide.weight_bytes() == plain.weight_bytes()
    assert "32-bit" in wide.notes[0]
    two, four = (plan_memory(MemoryRequest(wide, dtype=dtype, pool_gib=1)) for dtype in ("auto", "fp32"))
    assert four.stages[0].weights == 2 * two.stages[0].weights
    assert four.capacity is not None and two.capacity is not None
    assert four.capacity.block_bytes == 2 * two.capacity.block_bytes
