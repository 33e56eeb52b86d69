"""Architectures outside the catalogue, as their published configs spell them."""

from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import find_gpu
from tonnage_core.kv_cache.versions import UnknownEngineError, version_key
from tonnage_core.memory import MemoryRequest, memory_report, plan_memory
from tonnage_core.models import ConfigError, ModelShape, UnknownArchitectureError, shape_from_config
from tonnage_core.models.layers import RecurrentState
from tonnage_core.parallelism import Layout
from tonnage_runtime.catalogue import load_model

CODESTRAL_MAMBA: dict[str, Any] = {
    "model_type": "mamba2",
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "num_hidden_layers": 64,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "expand": 2,
    "vocab_size": 32768,
    "tie_word_embeddings": False,
}
MAMBA: dict[str, Any] = {
    "model_type": "mamba",
    "hidden_size": 2560,
    "num_hidden_layers": 64,
    "state_size": 16,
    "intermediate_size": 5120,
    "time_step_rank": 160,
    "vocab_size": 50280,
}
BLOOM: dict[str, Any] = {
    "model_type": "bloom",
    "n_embed": 14336,
    "n_layer": 70,
    "num_attention_heads": 112,
    "vocab_size": 250880,
    "seq_length": 2048,
}
HUNYUAN: dict[str, Any] = {
    "model_type": "hunyuan_v1_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "moe_intermediate_size": [3072] * 32,
    "num_experts": 64,
    "moe_topk": [8] * 32,
    "num_shared_expert": [1] * 32,
    "vocab_size": 128167,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
}
MINICPM3: dict[str, Any] = {
    "model_type": "minicpm3",
    "hidden_size": 2560,
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "intermediate_size": 6400,
    "vocab_size": 73448,
    "max_position_embeddings": 32768,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
}
QWEN: dict[str, Any] = {
    "model_type": "qwen",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 22016,
    "vocab_size": 151936,
    "kv_channels": 128,
    "seq_length": 8192,
}
DBRX: dict[str, Any] = {
    "model_type": "dbrx",
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "max_seq_len": 32768,
    "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}


@pytest.mark.parametrize(
    ("config", "billions", "cached"),
    [
        (CODESTRAL_MAMBA, 7.285, 0),
        (MAMBA, 2.768, 0),
        (BLOOM, 176.247, 70 * 112 * 128 * 2 * 2),
        (HUNYUAN, 80.393, 32 * 8 * 128 * 2 * 2),
        (MINICPM3, 4.074, 62 * 40 * 2 * 96 * 2),
        (QWEN, 7.721, 32 * 4096 * 2 * 2),
        (DBRX, 131.597, 40 * 8 * 128 * 2 * 2),
    ],
)
def test_parameters_and_cache_are_those_of_the_published_model(
    config: dict[str, Any], billions: float, cached: int
) -> None:
    shape = shape_from_config(config, "model")
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=6e-4)
    assert shape.kv_bytes_per_token() == cached


def test_the_heads_of_a_pure_state_space_model_are_its_states() -> None:
    mixers = {layer.mixer for layer in shape_from_config(CODESTRAL_MAMBA, "model").stack}
    assert mixers == {RecurrentState("mamba2", 128, 64, 128, 10240, 4, groups=8, state_bytes=2)}


@pytest.mark.parametrize("version", ["0.19.0", "0.24.0"])
def test_a_page_of_a_pure_state_space_model_stands_for_a_whole_sequence(version: str) -> None:
    found = memory_report(
        MemoryRequest(shape_from_config(CODESTRAL_MAMBA, "model"), find_gpu("H200"), engine_version=version)
    )
    assert found["block_size"] == found["max_model_len"]
    assert found["kv_cache_tokens"] == pytest.approx(found["max_concurrency_x"] * found["max_model_len"], abs=1)


def test_sglang_caches_the_latent_that_vllm_expands() -> None:
    shape = shape_from_config(MINICPM3, "model")
    found = [_document(shape, engine)["kv_bytes_per_token"] for engine in ("vllm", "sglang")]
    assert found == [62 * 40 * 2 * 96 * 2, 62 * (256 + 32) * 2]


def test_embeddings_of_every_layer_are_counted() -> None:
    plain = {key: value for key, value in HUNYUAN.items() if "moe" not in key and "expert" not in key}
    grown = {**plain, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 1000}
    more = shape_from_config(grown, "model").parameters - shape_from_config(plain, "model").parameters
    assert more == 32 * 256 * (1000 + 3 * 4096)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bert"}, "is an encoder and keeps no KV cache"),
        ({"altup_num_inputs": 4}, "alternating updates"),
        ({"zero_expert_num": 256}, "two attentions"),
        ({"lru_width": 2560}, "gated linear recurrences"),
        ({"layers_block_type": ["mamba", "hybrid"] * 16}, "attention and a recurrent state in one layer"),
        ({"moe_topk": [8] * 31 + [4]}, "moe_topk differs between layers"),
    ],
)
def test_layers_that_no_formula_covers_are_a_named_error(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=words):
        shape_from_config({**HUNYUAN, **changes}, "model")


def test_cross_layer_attention_is_counted_in_full_and_said_so() -> None:
    assert any("cross-layer attention" in note for note in shape_from_config({**HUNYUAN, "use_cla": True}, "m").notes)


def test_a_state_space_layer_without_channels_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        shape_from_config({**MAMBA, "expand": 0}, "model")


def _document(shape: ModelShape, engine: str) -> dict[str, Any]:
    return memory_report(MemoryRequest(shape, find_gpu("H200"), engine=engine))


@pytest.mark.parametrize(
    ("model", "version", "gpu", "layout", "asked"),
    [
        ("nvidia/DeepSeek-V3.1-NVFP4", "0.19.0", "A10", Layout(8, 3), 512),
        ("nvidia/GLM-5.2-NVFP4", "0.24.0", "A100-SXM-80GB", Layout(4, 2), 4096),
        ("Qwen/Qwen3-32B-FP8", "0.5", "B300", Layout(4), None),
        ("Qwen/Qwen3-32B", "0.5", "A10", Layout(8), 512),
        ("meta-llama/Llama-3.1-8B", "0.19.0", "L4", Layout(), None),
    ],
)
def test_the_longest_model_len_fits_and_one_token_more_does_not(
    model: str, version: str, gpu: str, layout: Layout, asked: int | None
) -> None:
    def ask(length: int | None) -> MemoryRequest:
        return MemoryRequest(
            load_model(model), find_gpu(gpu), engine_version=version, layout=layout, max_model_len=length
        )

    longest = plan_memory(ask(asked)).longest
    assert longest
    assert memory_report(ask(longest))["fits"] is True
    if longest < load_model(model).longest:
        assert memory_report(ask(longest + 1))["fits"] is False


@pytest.mark.parametrize("version", ["0.19.0:1", "0.19.0; rm", "99999999999999999.1", "0.19.0 beta"])
def test_a_version_with_something_behind_it_is_an_error(version: str) -> None:
    with pytest.raises((UnknownEngineError, BadInputError), match="is not a release number"):
        version_key(version)


@pytest.mark.parametrize(
    "version", ["v0.19.0", "0.19", "0.19.0rc1.dev140", "0.19.0.post1", "0.19.0+cu128", "0.19.0-cu13"]
)
def test_builds_of_a_release_count_as_the_release(version: str) -> None:
    assert version_key(version) == (0, 19, 0)
