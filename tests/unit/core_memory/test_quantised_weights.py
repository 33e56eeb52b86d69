"""Bytes of quantised weights: formats, ignore lists, spellings, and what may not be matched."""

from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.quantization import formats
from tonnage_core.quantization.names import PatternError, compiled
from tonnage_core.quantization.parse import UnknownQuantizationError, parse_quantization
from tonnage_runtime.catalogue import load_model

Q, EXPERT, SHARED, GATE = (
    "layers.3.self_attn.q_proj",
    "layers.3.mlp.experts.gate_up_proj",
    "layers.3.mlp.shared_experts.up_proj",
    "layers.3.mlp.gate_proj",
)
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}


def stored(block: dict[str, Any], module: str) -> str:
    return parse_quantization(block).format_for(module).name


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        (formats.BF16, 256 * 512 * 2),
        (formats.FP8_TENSOR, 256 * 512 + 4),
        (formats.FP8_CHANNEL, 256 * 512 + 256 * 4),
        (formats.fp8_block(128, 128), 256 * 512 + 2 * 4 * 4),
        (formats.INT8_CHANNEL, 256 * 512 + 256 * 4),
        (formats.integer_groups(4, 128, zero_points=False), 256 * 512 / 2 + 256 * 4 * 2),
        (formats.integer_groups(4, 128, zero_points=True), 256 * 512 / 2 + 256 * 4 * 2.5),
        (formats.MXFP4, 256 * 512 / 2 + 256 * 512 / 32),
        (formats.NVFP4, 256 * 512 / 2 + 256 * 512 / 16),
    ],
)
def test_bytes_of_a_matrix_by_format(weights: formats.WeightFormat, size: float) -> None:
    assert weights.size(256, 512) == size
    assert weights.size(256, 512, copies=3) == 3 * size


def test_blocks_that_do_not_divide_still_have_a_scale() -> None:
    assert formats.fp8_block(128, 128).size(130, 130) == 130 * 130 + 4 * 4


@pytest.mark.parametrize(
    ("ignore", "module", "name"),
    [
        (["re:.*self_attn.*"], Q, "bf16"),
        (["re:.*self_attn.*"], EXPERT, "w4a16"),
        (["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], GATE, "bf16"),
        (["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], EXPERT, "w4a16"),
        (["re:.*shared_experts.*"], SHARED, "bf16"),
        (["model.layers.3.self_attn*"], Q, "bf16"),
        (["model.layers.3.self_attn*"], "layers.30.self_attn.q_proj", "w4a16"),
        (["language_model.model.layers.3.self_attn.q_proj"], Q, "bf16"),
        (["backbone.layers.3.mixer.q_proj"], Q, "bf16"),
        (["model.layers.3.block_sparse_moe"], EXPERT, "bf16"),
        (["*.ffn.shared_experts.*"], SHARED, "bf16"),
        (["lm_head"], Q, "w4a16"),
    ],
)
def test_ignore_lists_in_every_publishers_spelling(ignore: list[str], module: str, name: str) -> None:
    block = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": INT4}}, "ignore": ignore}
    assert stored(block, module) == name


def test_targets_that_name_modules_reach_only_those() -> None:
    groups = {"a": {"weights": NVFP4, "targets": ["model.layers.3.mlp.experts"]}}
    block = {"quant_method": "modelopt", "config_groups": groups}
    assert (stored(block, EXPERT), stored(block, Q)) == ("nvfp4", "bf16")


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "w4a16"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, "w4a16"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb8"),
        ({"quant_method": "x", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}}, "w8a16"),
    ],
)
def test_methods_by_name(block: dict[str, Any], name: str) -> None:
    assert stored(block, Q) == name


def test_int8_weights_with_8_bit_activations_are_w8a8() -> None:
    group = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}, "input_activations": {"num_bits": 8}}
    assert stored({"quant_method": "compressed-tensors", "config_groups": {"g": group}}, Q) == "w8a8"


def test_mxfp4_reaches_experts_only() -> None:
    assert (stored({"quant_method": "mxfp4"}, EXPERT), stored({"quant_method": "mxfp4"}, Q)) == ("mxfp4", "bf16")


def test_a_checkpoint_names_its_cache_type() -> None:
    block = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    assert parse_quantization(block).kv_cache == "fp8"
    assert load_model("nvidia/Llama-3.1-8B-Instruct-FP8").kv_bytes_per_token() == 65_536


@pytest.mark.parametrize("pattern", ["re:(a+)+$", "re:" + "x" * 400, "re:(", "re:(.*)*y"])
def test_patterns_that_may_never_end_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compiled(pattern[3:])


@pytest.mark.parametrize(
    "block",
    [
        {"quant_method": "modelopt", "quant_algo": "FP3"},
        {"quant_method": "gptq", "bits": -4},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "x", "config_groups": {"g": {"weights": {"num_bits": 5, "type": "int"}}}},
        {"quant_method": "x", "config_groups": {"g": {}}},
    ],
)
def test_schemes_no_formula_covers_are_named_errors(block: dict[str, Any]) -> None:
    with pytest.raises(UnknownQuantizationError) as caught:
        parse_quantization(block)
    assert isinstance(caught.value, BadInputError)
