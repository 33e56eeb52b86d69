"""Engine releases: one dated table, facts that add up, and engines that share nothing but the question."""

from typing import Any

import pytest

from tonnage_core.kv_cache import UnknownEngineError, engine_facts, parse_engine
from tonnage_core.kv_cache.versions import RELEASES
from tonnage_core.memory import MemoryRequest, plan_memory
from tonnage_core.parallelism import Layout
from tonnage_core.units import GIB
from tonnage_runtime.catalogue import load_gpu, load_model


def test_every_row_is_dated_sourced_and_in_order() -> None:
    for engine in {row.engine for row in RELEASES}:
        rows = [row for row in RELEASES if row.engine == engine]
        assert [row.date for row in rows] == sorted(row.date for row in rows)
        assert all(row.source for row in rows)


@pytest.mark.parametrize(
    ("version", "fraction", "sampler", "groups", "from_concurrency", "graphs"),
    [
        ("0.6.4", 0.90, 0, False, False, False),
        ("0.9.0", 0.90, 38, False, False, False),
        ("0.15.1", 0.90, 38, True, False, False),
        ("0.19.0", 0.90, 14, True, False, False),
        ("0.21.0", 0.90, 14, True, True, True),
        ("0.33.0", 0.92, 14, True, True, True),
        ("nightly-20260424", 0.90, 14, True, False, False),
        ("gpt-oss-dev", 0.90, 38, True, False, False),
        ("0.11.2rc1.post3", 0.90, 38, True, False, False),
    ],
)
def test_vllm_facts_by_release(
    version: str, fraction: float, sampler: float, groups: bool, from_concurrency: bool, graphs: bool
) -> None:
    facts, notes = engine_facts("vllm", version)
    found = (facts.default_fraction, facts.sampler_bytes, facts.hybrid_groups, facts.tokens_from_concurrency)
    assert (*found, facts.graphs_in_pool) == (fraction, sampler, groups, from_concurrency, graphs)
    assert notes == ()


def test_an_open_version_uses_the_newest_row_and_says_so() -> None:
    assert "not given" in engine_facts("vllm")[1][0]
    assert "older than the table" in engine_facts("sglang", "0.1.0")[1][0]


@pytest.mark.parametrize(("engine", "version"), [("ollama", "1.0.0"), ("vllm", "main"), ("vllm", "v")])
def test_unknown_engines_and_versions_are_named(engine: str, version: str) -> None:
    with pytest.raises(UnknownEngineError):
        engine_facts(engine, version)


def test_an_engine_reference_has_a_version_or_not() -> None:
    assert parse_engine("vLLM:0.19.0") == ("vllm", "0.19.0")
    assert parse_engine("sglang") == ("sglang", "")


def pool(engine: str, version: str) -> float:
    request = MemoryRequest(
        load_model("meta-llama/Llama-3.1-8B"),
        load_gpu("H100"),
        engine=engine,
        engine_version=version,
        gpu_memory_utilization=0.9,
    )
    return plan_memory(request).stages[0].pool or 0.0


def test_the_same_fraction_means_three_things() -> None:
    weights = load_model("meta-llama/Llama-3.1-8B").weight_bytes()
    total = 79.19 * GIB
    assert pool("vllm", "0.19.0") < 0.9 * total - weights
    assert pool("sglang", "0.5.5") == pytest.approx(0.9 * (total - 0.6 * GIB) - weights)
    assert pool("trtllm", "1.1.0") < 0.9 * (total - weights)


def test_sglang_sizes_windows_and_states_in_pools_of_their_own() -> None:
    flags: dict[str, Any] = {"engine": "sglang", "engine_version": "0.5.9"}
    windows = plan_memory(MemoryRequest(load_model("openai/gpt-oss-20b"), pool_gib=10, **flags))
    assert windows.capacity is not None
    assert windows.capacity.tokens == int(10 * GIB // (24_576 * 1.8))
    states = plan_memory(MemoryRequest(load_model("Qwen/Qwen3.5-35B-A3B"), pool_gib=19, **flags))
    assert states.capacity is not None
    assert states.capacity.tokens == pytest.approx(10 * GIB / 20_480, rel=1e-4)


def test_sglang_11309_sparse_latent_pools_come_in_pages_of_64_tokens() -> None:
    shape = load_model("deepseek-ai/DeepSeek-V3.2")
    request = MemoryRequest(
        shape, engine="sglang", engine_version="0.5.3", kv_dtype="fp8_ds_mla", pool_gib=43.67, layout=Layout(dp=8)
    )
    capacity = plan_memory(request).capacity
    assert capacity is not None and capacity.tokens % 64 == 0
    assert capacity.tokens == pytest.approx(975_424, rel=3e-3)


def test_trtllm_sets_states_aside_for_every_sequence() -> None:
    shape = load_model("nvidia/Nemotron-H-56B-Base-8K")
    flags: dict[str, Any] = {"engine": "trtllm", "engine_version": "1.1.0", "pool_gib": 40.0}
    few = plan_memory(MemoryRequest(shape, max_num_seqs=8, **flags)).capacity
    many = plan_memory(MemoryRequest(shape, max_num_seqs=64, **flags)).capacity
    assert few is not None and many is not None
    assert few.tokens > many.tokens and many.concurrency <= 64
