"""What must hold for any pool, length and layout."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from tonnage_core.kv_cache import SequenceRules, engine_facts, group_layers, pool_capacity
from tonnage_core.kv_cache.capacity import longest_sequence, stage_bounds
from tonnage_core.kv_cache.specs import CachedLayer, PageSpec
from tonnage_core.memory import MemoryRequest, plan_memory
from tonnage_core.models import shape_from_config
from tonnage_core.models.weights import stage_weights
from tonnage_core.parallelism import Layout, pipeline_stages

VLLM, _ = engine_facts("vllm", "0.19.0")
KINDS = st.sampled_from(["full", "sliding", "chunked"])


@st.composite
def stacks(draw: st.DrawFn) -> list[CachedLayer]:
    windows = {"full": 0, "sliding": draw(st.integers(1, 4096)), "chunked": draw(st.integers(1, 4096))}
    page = draw(st.sampled_from([4096, 8192, 65536]))
    kinds = draw(st.lists(KINDS, min_size=1, max_size=60))
    return [CachedLayer(index, PageSpec(kind, 16, page, windows[kind])) for index, kind in enumerate(kinds)]


@given(stacks())
def test_every_layer_is_in_one_group_and_groups_are_padded_only_at_the_end(stack: list[CachedLayer]) -> None:
    grouping = group_layers(stack, VLLM)
    assert sorted(layer for group in grouping.groups for layer in group.layers) == [one.layer for one in stack]
    largest = max(len(group.layers) for group in grouping.groups)
    page = stack[0].spec.page
    if not grouping.uniform_pages:
        assert grouping.bytes_per_block(0, len(stack)) == largest * page


@given(stacks(), st.integers(0, 1 << 36), st.integers(1, 1 << 20), st.integers(1, 1 << 14))
def test_a_larger_pool_never_holds_less(stack: list[CachedLayer], pool: int, length: int, in_flight: int) -> None:
    grouping, rules = group_layers(stack, VLLM), SequenceRules(length, in_flight, 1)
    bounds = stage_bounds(len(stack), 1)
    small, large = (pool_capacity(grouping, [size], bounds, rules, VLLM) for size in (pool, 2 * pool + 1))
    assert small.blocks <= large.blocks and small.tokens <= large.tokens and small.concurrency <= large.concurrency
    assert small.blocks * small.block_bytes <= pool


@given(stacks(), st.integers(0, 1 << 22), st.integers(1, 1 << 20), st.integers(1, 1 << 14))
def test_the_longest_sequence_fits_and_one_more_token_does_not(
    stack: list[CachedLayer], blocks: int, limit: int, in_flight: int
) -> None:
    grouping, rules = group_layers(stack, VLLM), SequenceRules(limit, in_flight, 1)
    longest = longest_sequence(grouping, blocks, rules, limit)
    assert longest == 0 or rules.blocks(grouping, longest) <= blocks
    assert longest == limit or rules.blocks(grouping, longest + 1) > blocks


@given(st.integers(1, 500), st.integers(1, 500))
def test_pipeline_stages_keep_every_layer_and_differ_by_one_at_most(layers: int, pp: int) -> None:
    if pp <= layers:
        stages = pipeline_stages(layers, pp)
        assert (sum(stages), len(stages)) == (layers, pp)
        assert max(stages) - min(stages) <= 1


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 8),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.booleans(),
)
def test_ranks_together_hold_every_weight(heads_log: int, layers: int, tp: int, tied: bool) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": 128,
        "num_attention_heads": 16,
        "num_key_value_heads": heads_log,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
    }
    shape = shape_from_config(config, "m")
    for pp in range(1, layers + 1):
        stages = stage_weights(shape, Layout(tp=tp, pp=pp))
        assert sum(stage.total for stage in stages) * tp >= shape.parameters * 2
        assert sum(stage.layers for stage in stages) == layers


@given(st.integers(1, 1 << 17), st.floats(0.1, 200), st.sampled_from(["0.6.4", "0.11.0", "0.19.0", "0.24.0"]))
def test_the_document_agrees_with_itself(length: int, pool: float, version: str) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 8,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 4096,
        "vocab_size": 32000,
        "max_position_embeddings": 1 << 17,
    }
    request = MemoryRequest(shape_from_config(config, "m"), engine_version=version, max_model_len=length, pool_gib=pool)
    capacity = plan_memory(request).capacity
    assert capacity is not None
    assert capacity.blocks == int(pool * (1 << 30) // capacity.block_bytes)
    assert capacity.sequence_blocks == ceil(length / 16)
    assert round(capacity.concurrency * capacity.sequence_blocks) == capacity.blocks
