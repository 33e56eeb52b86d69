"""Tensor-parallel parts: every byte of a file on exactly the ranks that should have it, every chunk checked."""

import json
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.coldstart.fetch_plan import chunks_of
from tonnage_core.coldstart.safetensors_header import Header, parse_header
from tonnage_core.coldstart.shard_layout import ShardArena, clip
from tonnage_core.coldstart.shard_plan import Runs, ShardError, TensorParallel, kv_heads_of, replicas

KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "input_norm", "lm_head")


def header_of(shapes: list[tuple[str, tuple[int, ...]]]) -> tuple[Header, int]:
    at, entries = 0, {}
    for number, (kind, shape) in enumerate(shapes):
        size = 2
        for one in shape:
            size *= one
        entries[f"l.{number}.{kind}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries).encode()
    return parse_header(raw, 8 + len(raw) + at, "f"), 8 + len(raw) + at


shapes = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 6), st.integers(1, 5)).map(
        lambda one: (one[0], (one[1] * 12,) if one[0].endswith("norm") else (one[1] * 12, one[2] * 12))
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(shapes, st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([1, 2, 12]), st.integers(1, 400))
def test_ranks_keep_each_byte_as_often_as_the_plan_says(
    made: list[tuple[str, tuple[int, ...]]], size: int, kv_heads: int, step: int
) -> None:
    header, file_bytes = header_of(made)
    if kv_heads < size and size % kv_heads:
        return
    counts: Counter[int] = Counter()
    for rank in range(size):
        arena = ShardArena(header, TensorParallel(rank, size, kv_heads))
        memory: dict[int, int] = {}
        for start in range(0, file_bytes, step):
            for piece in arena.pieces(start, min(step, file_bytes - start)):
                at = piece.arena_start
                for run in range(piece.runs.count):
                    first = piece.runs.start + run * piece.runs.stride
                    for byte in range(first, first + piece.runs.length):
                        assert at not in memory
                        memory[at], at = byte, at + 1
        assert len(memory) == arena.kept_bytes
        for part, offset in zip(arena.parts, arena.offsets, strict=True):
            expected = [
                part.runs.start + run * part.runs.stride + byte
                for run in range(part.runs.count)
                for byte in range(part.runs.length)
            ]
            assert [memory[offset + number] for number in range(part.runs.size_bytes)] == expected
        counts.update(memory.values())
    for tensor in header.tensors:
        wanted = replicas(tensor, TensorParallel(0, size, kv_heads))
        assert all(counts[byte] == wanted for byte in range(tensor.start, tensor.end))


@settings(max_examples=25, deadline=None)
@given(shapes, st.sampled_from([1, 2, 4]), st.integers(16, 3000))
def test_together_the_ranks_check_every_chunk_and_a_chunk_that_is_read_whole_where_it_is_read(
    made: list[tuple[str, tuple[int, ...]]], size: int, chunk_bytes: int
) -> None:
    header, file_bytes = header_of(made)
    arenas = [ShardArena(header, TensorParallel(rank, size)) for rank in range(size)]
    for chunk in chunks_of(0, file_bytes, chunk_bytes):
        checkers = [arena.tp.rank for arena in arenas if arena.checks(chunk)]
        assert checkers
        whole = [
            arena.tp.rank
            for arena in arenas
            if sum(piece.runs.size_bytes for piece in arena.pieces(chunk.start, chunk.length)) == chunk.length
        ]
        assert checkers == whole or len(checkers) == 1


def test_clipped_runs_hold_the_same_bytes() -> None:
    rng = Random(1)
    for _ in range(500):
        length = rng.randrange(1, 6)
        runs = Runs(rng.randrange(20), length, length + rng.randrange(5), rng.randrange(1, 7))
        held = {runs.start + n * runs.stride + b for n in range(runs.count) for b in range(length)}
        start = rng.randrange(60)
        end = start + rng.randrange(1, 40)
        found = [
            one.start + n * one.stride + b
            for one in clip(runs, start, end)
            for n in range(one.count)
            for b in range(one.length)
        ]
        assert found == sorted(byte for byte in held if start <= byte < end)


def test_what_cannot_be_cut_is_refused_with_its_tensor() -> None:
    header, _ = header_of([("q_proj", (9, 4))])
    with pytest.raises(ShardError, match=r"'l.0.q_proj.weight'.*9 does not divide by 2"):
        ShardArena(header, TensorParallel(0, 2))
    header, _ = header_of([("qkv_proj", (8, 4))])
    with pytest.raises(ShardError, match="several projections"):
        ShardArena(header, TensorParallel(0, 2))
    with pytest.raises(ShardError, match="rank 2 of 2"):
        TensorParallel(2, 2)


def test_kv_heads_are_read_from_the_configuration() -> None:
    assert kv_heads_of({"num_key_value_heads": 8, "num_attention_heads": 32}) == 8
    assert kv_heads_of({"text_config": {"num_attention_heads": 16}}) == 16
    assert kv_heads_of({}) is None
