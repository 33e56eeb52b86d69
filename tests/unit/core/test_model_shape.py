"""A published config.json becomes a shape with the right sizes."""

import pytest

from tonnage_core.units import GIB
from tonnage_runtime.catalogue import load_model


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("meta-llama/Llama-3.1-8B", 8_030_261_248), ("meta-llama/Llama-3.1-70B-Instruct", 70_553_706_496)],
)
def test_llama_parameters_are_those_of_the_checkpoint(name: str, parameters: int) -> None:
    assert load_model(name).parameters == parameters


def test_guide_section_3_kv_bytes_per_token() -> None:
    assert load_model("meta-llama/Llama-3.1-8B").kv_bytes_per_token() == 131_072
    assert load_model("meta-llama/Llama-3.1-70B").kv_bytes_per_token() == 327_680
    assert load_model("meta-llama/Llama-3.1-70B").kv_bytes_per_token() * 8192 == 2.5 * GIB


def test_weights_of_llama_8b_hold_parameters_and_the_rotary_table() -> None:
    shape = load_model("meta-llama/Llama-3.1-8B")
    assert shape.weight_bytes() == shape.parameters * 2 + 131_072 * 128 * 2
