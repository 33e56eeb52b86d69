"""What users reported about KV cache and memory: each test is named after the report it answers."""

from typing import Any

import pytest

from tonnage_core.kv_cache import engine_facts
from tonnage_core.memory import MemoryPlan, MemoryRequest, RefusedError, Speculation, plan_memory, report_of
from tonnage_core.models import shape_from_config
from tonnage_core.models.caching import bytes_per_token
from tonnage_core.models.layers import LatentAttention
from tonnage_core.parallelism import Layout
from tonnage_core.units import GIB
from tonnage_runtime.catalogue import load_gpu, load_model

ONE = Layout()


def plan(model: str, engine: str = "0.19.0", layout: Layout = ONE, gpu: str = "H100", **flags: Any) -> MemoryPlan:
    shape, card = load_model(model), load_gpu(gpu)
    return plan_memory(MemoryRequest(shape, card, engine_version=engine, layout=layout, **flags))


def test_configiq_112_tokens_blocks_and_bytes_agree_with_each_other() -> None:
    found = plan("google/gemma-4-31B-it", pool_gib=24.54)
    capacity = found.capacity
    assert capacity is not None
    assert capacity.blocks * capacity.block_bytes <= 24.54 * GIB < (capacity.blocks + 1) * capacity.block_bytes
    assert capacity.concurrency == capacity.blocks / capacity.sequence_blocks


def test_hf_mem_61_sliding_layers_are_grouped_and_full_pages_doubled() -> None:
    found = plan("google/gemma-4-31B-it", "0.20.0", pool_gib=24.54)
    assert [(group.spec.kind, len(group.layers)) for group in found.grouping.groups] == [("sliding", 10)] * 5 + [
        ("full", 10)
    ]
    assert {group.spec.block for group in found.grouping.groups} == {16, 32}
    assert found.capacity is not None and found.capacity.tokens == 26_800


def test_vllm_40691_logged_tokens_and_concurrency_are_two_different_quantities() -> None:
    flags: dict[str, Any] = {"max_model_len": 32_768, "max_num_seqs": 16, "max_num_batched_tokens": 16_384}
    blocks = 1_487
    size = plan("Qwen/Qwen3.5-27B", pool_gib=10.0, **flags).capacity
    assert size is not None and size.sequence_blocks == 45
    found = plan("Qwen/Qwen3.5-27B", pool_gib=(blocks + 0.5) * size.block_bytes / GIB, **flags).capacity
    assert found is not None
    assert (found.tokens, round(found.concurrency, 2)) == (290_864, 33.04)


def test_vllm_54662_newer_releases_log_concurrency_times_max_model_len() -> None:
    found = plan(
        "nvidia/Qwen3.6-35B-A3B-NVFP4", "0.24.0", gpu="RTX-5090", max_model_len=131_072, pool_gib=5.98, kv_dtype="fp8"
    )
    assert found.capacity is not None
    assert found.capacity.tokens == int(found.capacity.concurrency * 131_072)


def test_vllm_51041_a_request_costs_a_fixed_part_and_a_part_by_token() -> None:
    short = plan("deepseek-ai/DeepSeek-V4-Flash", max_model_len=4_096, pool_gib=8).capacity
    long = plan("deepseek-ai/DeepSeek-V4-Flash", max_model_len=400_000, pool_gib=8).capacity
    assert short is not None and long is not None
    by_token = (long.sequence_blocks - short.sequence_blocks) / (400_000 - 4_096)
    assert short.sequence_blocks > 4_096 * by_token + 1


def test_vllm_54458_a_short_prompt_on_a_hybrid_model_takes_whole_pages() -> None:
    document = report_of(plan("Qwen/Qwen3.5-27B", max_model_len=32_768, pool_gib=10))
    assert document["fixed_gib_per_request"] > 100 * document["kv_bytes_per_token"] / GIB


def test_vllm_24280_attention_pages_of_nemotron_take_672_tokens() -> None:
    assert plan("nvidia/NVIDIA-Nemotron-Nano-9B-v2", pool_gib=10).grouping.smallest_block == 672


def test_vllm_48401_attention_pages_of_a_float32_state_and_8_bit_cache_take_8320_tokens() -> None:
    found = plan("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "0.23.0", kv_dtype="fp8", pool_gib=10)
    assert found.grouping.smallest_block == 8_320


def test_vllm_28228_latent_and_linear_layers_share_padded_groups() -> None:
    groups = plan("moonshotai/Kimi-K3", layout=Layout(tp=8), pool_gib=20).grouping.groups
    assert sorted((group.spec.kind, len(group.layers)) for group in groups) == [("full", 24)] + [("state", 23)] * 3


def test_sglang_11309_the_sparse_indexer_caches_132_bytes_beside_656() -> None:
    assert bytes_per_token(load_model("deepseek-ai/DeepSeek-V3.2"), "fp8_ds_mla", 1) == 61 * (656 + 132)


def test_vllm_44376_and_lmdeploy_4366_latent_attention_is_never_counted_as_multi_head() -> None:
    shape = load_model("deepseek-ai/DeepSeek-V3")
    assert bytes_per_token(shape, "bf16", 1) == 61 * (512 + 64) * 2
    assert bytes_per_token(shape, "bf16", 1) < 61 * 2 * 128 * 128 * 2 / 50


def test_vllm_51454_data_parallel_attention_holds_more_latent_tokens_than_tensor_parallel() -> None:
    one = plan("deepseek-ai/DeepSeek-V3", layout=Layout(tp=8, ep=8), gpu="H200", max_model_len=32_768).capacity
    eight = plan("deepseek-ai/DeepSeek-V3", layout=Layout(dp=8, ep=8), gpu="H200", max_model_len=32_768).capacity
    assert one is not None and eight is not None
    assert 8 * eight.tokens > 4 * one.tokens


def test_recipes_115_decode_context_parallelism_multiplies_latent_tokens() -> None:
    flags: dict[str, Any] = {"layout": Layout(tp=8), "gpu": "H200", "max_model_len": 262_144, "pool_gib": 46.8}
    one = plan("moonshotai/Kimi-K2-Thinking", "0.11.0", **flags).capacity
    eight = plan("moonshotai/Kimi-K2-Thinking", "0.11.0", decode_context_parallel=8, **flags).capacity
    assert one is not None and eight is not None
    assert one.tokens == pytest.approx(715_072, rel=3e-3)
    assert eight.tokens == 8 * one.tokens


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_sglang_19086_and_transformers_48566_heads_are_sharded_down_to_one_a_rank(tp: int, heads: int) -> None:
    assert bytes_per_token(load_model("meta-llama/Llama-3.1-70B"), "bf16", tp) == 80 * 2 * heads * 128 * 2


def test_vllm_34076_a_pipeline_stage_is_compared_with_its_own_layers() -> None:
    whole = plan("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", pool_gib=5, max_model_len=65_536).capacity
    halves = plan(
        "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", layout=Layout(pp=2), pool_gib=5, max_model_len=65_536
    ).capacity
    assert whole is not None and halves is not None
    assert halves.block_bytes * 2 == whole.block_bytes
    assert whole.blocks < whole.sequence_blocks <= halves.blocks


def test_vllm_13061_the_tightest_stage_sets_the_blocks() -> None:
    found = plan("meta-llama/Llama-3.1-70B", layout=Layout(tp=2, pp=2))
    pools = [stage.pool or 0.0 for stage in found.stages]
    assert found.capacity is not None
    assert found.capacity.stage == pools.index(min(pools)) == 1
    assert found.capacity.blocks == int(min(pools) // found.capacity.block_bytes)


def test_aiconfigurator_1390_experts_divide_by_ep_and_shared_parts_by_tp() -> None:
    one = plan("deepseek-ai/DeepSeek-V3", gpu="H200", pool_gib=1).stages[0].weights
    spread = plan("deepseek-ai/DeepSeek-V3", layout=Layout(tp=8, ep=8), gpu="H200", pool_gib=1).stages[0].weights
    data = plan("deepseek-ai/DeepSeek-V3", layout=Layout(dp=8, ep=8), gpu="H200", pool_gib=1).stages[0].weights
    assert one / 8 < spread < one / 8 * 1.06
    assert spread < data < spread + 20 * GIB


def test_aiconfigurator_1442_redundant_experts_are_sized_by_slots() -> None:
    flags: dict[str, Any] = {"layout": Layout(tp=8, ep=8), "gpu": "H200", "pool_gib": 1.0}
    plain = plan("deepseek-ai/DeepSeek-V3", **flags).stages[0].weights
    slots = plan("deepseek-ai/DeepSeek-V3", redundant_experts=32, **flags).stages[0].weights
    assert slots > plain * 1.10


def test_vllm_25350_the_pool_shrinks_as_max_model_len_grows_where_prompts_are_not_chunked() -> None:
    short, long = (plan("meta-llama/Llama-3.1-8B", "0.6.4", gpu="RTX-3090", max_model_len=n) for n in (20_000, 29_000))
    assert (short.stages[0].pool or 0) - (long.stages[0].pool or 0) == pytest.approx(0.92 * GIB, rel=0.05)


def test_vllm_22291_bytes_of_a_token_come_from_heads_times_head_dim_not_from_hidden_size() -> None:
    shape = load_model("Qwen/Qwen3-32B")
    assert shape.head_dim * shape.heads != shape.hidden
    assert bytes_per_token(shape, "bf16", 1) == 64 * 2 * 8 * 128 * 2


def test_llmservingsim_59_the_pool_is_smaller_than_fraction_times_memory_minus_weights() -> None:
    stage = plan("meta-llama/Llama-3.1-8B").stages[0]
    naive = 0.9 * 79.19 * GIB - stage.weights
    assert stage.pool is not None and stage.pool == pytest.approx(naive - stage.activation - stage.non_torch)


def test_vllm_33155_an_upgrade_changes_the_pool_of_the_same_flags() -> None:
    pools = {
        version: plan("openai/gpt-oss-120b", version).stages[0].pool or 0.0
        for version in ("0.11.2", "0.14.1", "0.17.0")
    }
    assert pools["0.17.0"] - pools["0.14.1"] > 4 * GIB


def test_aiconfigurator_1396_the_default_fraction_is_the_releases_own() -> None:
    assert plan("meta-llama/Llama-3.1-8B", "0.20.0").flags.fraction == 0.90
    assert plan("meta-llama/Llama-3.1-8B", "0.22.0").flags.fraction == 0.92
    assert plan("meta-llama/Llama-3.1-8B", "0.22.0", gpu_memory_utilization=1.0).flags.fraction == 1.0


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-70B", "google/gemma-3-27b-it", "Qwen/Qwen3.5-27B"])
def test_dynamo_10104_and_vllm_39734_the_longest_length_it_names_passes_its_own_check(model: str) -> None:
    layout = Layout(tp=2)
    full = plan(model, layout=layout, pool_gib=3.0)
    assert full.longest is not None and full.capacity is not None and 0 < full.longest < full.flags.max_model_len
    assert report_of(full)["fits"] is False
    assert report_of(plan(model, layout=layout, pool_gib=3.0, max_model_len=full.longest))["fits"] is True
    beyond = full.longest + full.grouping.smallest_block
    assert report_of(plan(model, layout=layout, pool_gib=3.0, max_model_len=beyond))["fits"] is False


def test_recipes_381_a_documented_800k_context_does_not_start_on_eight_h200() -> None:
    layout = Layout(dp=8, ep=8)
    found = plan(
        "deepseek-ai/DeepSeek-V4-Pro", "nightly-20260424", layout, gpu="H200", max_model_len=800_000, kv_dtype="fp8"
    )
    assert report_of(found)["fits"] is False


def test_trtllm_5371_only_attention_layers_of_nemotron_h_cache_by_token() -> None:
    shape = load_model("nvidia/Nemotron-H-56B-Base-8K")
    assert (shape.layers, bytes_per_token(shape, "fp16", 1)) == (118, 10 * 2 * 8 * 128 * 2)
    assert {group.spec.kind for group in plan("nvidia/Nemotron-H-56B-Base-8K", pool_gib=9).grouping.groups} == {
        "full",
        "state",
    }


def test_mlx_lm_790_kv_lora_rank_alone_makes_a_model_latent() -> None:
    config = {
        "model_type": "glm4_moe_lite",
        "num_hidden_layers": 4,
        "hidden_size": 2048,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "kv_lora_rank": 512,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "intermediate_size": 10240,
        "vocab_size": 154880,
        "max_position_embeddings": 202752,
    }
    shape = shape_from_config(config, "latent")
    assert all(isinstance(layer.mixer, LatentAttention) for layer in shape.stack)
    assert shape.kv_bytes_per_token() == 4 * 576 * 2


def test_lmstudio_1862_linear_layers_add_no_bytes_by_token() -> None:
    assert bytes_per_token(load_model("Qwen/Qwen3.5-35B-A3B"), "bf16", 1) == 10 * 2 * 2 * 256 * 2


def test_llm_d_planner_tp_5_of_a_40_head_model_is_refused() -> None:
    with pytest.raises(RefusedError, match="tp 5 does not divide"):
        plan("Qwen/Qwen3-14B", layout=Layout(tp=5))


def test_a_release_newer_than_the_table_uses_the_newest_row_and_says_so() -> None:
    facts, notes = engine_facts("vllm", "9.9.9")
    assert facts.default_fraction == 0.92
    assert any("newer than the table" in note for note in notes)


def test_speculative_tokens_add_state_pages_and_a_layer_of_cache() -> None:
    found = plan(
        "Lorbus/Qwen3.6-27B-int4-AutoRound",
        "0.22.0",
        Layout(tp=2),
        gpu="RTX-3090",
        kv_dtype="fp8_e5m2",
        max_model_len=262_144,
        pool_gib=11.1,
        speculation=Speculation(3, layers=1),
    )
    # club-3090#295 logs 620,944 tokens with three drafted tokens: 424 blocks of 179 a sequence.
    assert found.capacity is not None
    assert (found.grouping.smallest_block, found.capacity.sequence_blocks) == (1_600, 179)
    assert int(424 / 179 * 262_144) == 620_944


def test_with_stages_bytes_of_a_token_are_those_of_one_gpu_and_the_tightest_stage_is_derived() -> None:
    found = plan("meta-llama/Llama-3.1-70B", layout=Layout(tp=2, pp=2))
    document = report_of(found)
    assert document["kv_bytes_per_token"] == 80 * 2 * 8 * 128 * 2 // 4
    assert [stage["stage"] for stage in document["stages"]] == [0, 1]
    names = [step["name"] for step in document["steps"]]
    assert "weights" in names and "stage_1_sampler" in names and "sampler" not in names


def test_vllm_8185_where_the_profile_grows_with_the_length_the_longest_is_searched_with_it() -> None:
    longest = plan("meta-llama/Llama-3.1-8B", "0.6.4", gpu="RTX-3090", max_model_len=29_000).longest
    assert longest is not None and 23_648 < longest < 29_000
    assert report_of(plan("meta-llama/Llama-3.1-8B", "0.6.4", gpu="RTX-3090", max_model_len=longest))["fits"] is True
    beyond = plan("meta-llama/Llama-3.1-8B", "0.6.4", gpu="RTX-3090", max_model_len=longest + 1)
    assert report_of(beyond)["fits"] is False


@pytest.mark.parametrize("kv_dtype", ["fp8", "fp8_e4m3", "fp8_ds_mla"])
def test_8_bit_caches_of_sparse_latent_attention_are_packed_and_of_dense_ones_are_not(kv_dtype: str) -> None:
    assert load_model("deepseek-ai/DeepSeek-V3.2").kv_bytes_per_token(kv_dtype) == 48_068
    if kv_dtype != "fp8_ds_mla":
        assert load_model("deepseek-ai/DeepSeek-V3").kv_bytes_per_token(kv_dtype) == 61 * 576
