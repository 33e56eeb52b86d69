"""Numbers of the inference guide about KV cache, blocks and adapters (sections 3 to 5 and 8)."""

from math import ceil

import pytest

from tonnage_core.kv_cache import cached_layers, engine_facts
from tonnage_core.memory.overheads import adapter_parameters
from tonnage_core.units import GIB, KIB
from tonnage_runtime.catalogue import load_model


@pytest.mark.parametrize(("size", "gib"), [("8B", 1.0), ("70B", 2.5)])
def test_one_sequence_of_8k_tokens(size: str, gib: float) -> None:
    assert load_model(f"meta-llama/Llama-3.1-{size}").kv_bytes_per_token() * 8192 / GIB == gib


def test_lab_3_four_sequences_of_4096_tokens_take_2_gib() -> None:
    shape = load_model("meta-llama/Llama-3.1-8B")
    assert shape.kv_bytes_per_token() == 128 * KIB
    assert shape.kv_bytes_per_token() * 4 * 4096 == 2_147_483_648


def test_grouped_queries_shrink_the_cache_by_the_group_factor() -> None:
    shape = load_model("meta-llama/Llama-3.1-8B")
    assert shape.heads // shape.kv_heads == 4
    assert shape.kv_bytes_per_token() * 4 == 2 * 32 * 32 * 128 * 2


def test_2000_tokens_of_an_8b_model_are_262144000_bytes() -> None:
    assert load_model("meta-llama/Llama-3.1-8B").kv_bytes_per_token() * 2000 == 262_144_000


def test_a_block_of_16_tokens_is_2_mib_over_all_layers_of_an_8b_model() -> None:
    layers = cached_layers(load_model("meta-llama/Llama-3.1-8B"), engine_facts("vllm", "0.19.0")[0])
    assert sum(one.spec.page for one in layers) == 2 << 20
    assert layers[0].spec.pages(2_000, 8_192, 1) == ceil(2_000 / 16)


def test_a_rank_16_adapter_on_all_projections_of_an_8b_model_has_41_9_million_parameters() -> None:
    assert adapter_parameters(load_model("meta-llama/Llama-3.1-8B"), 16) / 1e6 == pytest.approx(41.9, abs=0.05)
