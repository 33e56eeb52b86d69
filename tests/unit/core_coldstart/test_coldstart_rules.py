"""The pure rules: names, selection, cache policy, phases, the brake."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_core.coldstart.brake import Brake, may_start, refused, succeeded
from tonnage_core.coldstart.cache_policy import Entry, admit
from tonnage_core.coldstart.errors import UnsafeNameError
from tonnage_core.coldstart.fetch_plan import chunk_count, chunks_of, fetch_order
from tonnage_core.coldstart.file_names import safe_name, slug
from tonnage_core.coldstart.phases import Span, phase_seconds, timeline
from tonnage_core.coldstart.snapshot import select


@pytest.mark.parametrize("name", ["", "/a", "..", "a/../b", "a//b", "./a", "a\\b", "a\0b", "x" * 201, "a/" * 20 + "b"])
def test_an_unsafe_name_is_refused(name: str) -> None:
    with pytest.raises(UnsafeNameError):
        safe_name(name)


@given(st.text(max_size=40))
def test_a_slug_can_stand_in_a_path(text: str) -> None:
    assert slug(text) not in ("", ".", "..")
    assert "/" not in slug(text)


def test_other_formats_of_the_same_weights_are_not_staged() -> None:
    names = ["model.safetensors", "pytorch_model.bin", "original/x.pth", ".git/config", "config.json", "a.lock"]
    assert select(names) == ("config.json", "model.safetensors")


@given(st.integers(0, 10_000), st.integers(1, 700))
def test_chunks_hold_each_byte_once(size: int, chunk_bytes: int) -> None:
    chunks = list(chunks_of(0, size, chunk_bytes))
    assert len(chunks) == chunk_count(size, chunk_bytes)
    assert sum(chunk.length for chunk in chunks) == size
    assert all(a.start + a.length == b.start for a, b in pairwise(chunks))


def test_small_files_come_first() -> None:
    assert fetch_order(["b.safetensors", "config.json", "a.safetensors"], [1 << 30, 100, 1 << 30]) == (1, 2, 0)


ENTRIES = st.lists(
    st.builds(Entry, st.uuids().map(str), st.integers(0, 100), st.floats(0, 9), st.booleans(), st.booleans()),
    max_size=8,
)


@given(ENTRIES, st.integers(0, 300), st.integers(1, 400), st.integers(0, 50))
def test_an_admission_keeps_the_quota_and_never_evicts_what_is_held(
    entries: list[Entry], needed: int, quota: int, reserved: int
) -> None:
    decision = admit(needed, entries, quota_bytes=quota, reserved_bytes=reserved, free_bytes=1 << 40, keep_free_bytes=0)
    left = [entry for entry in entries if entry.key not in decision.evict]
    assert all(entry in left for entry in entries if entry.pinned or entry.in_use)
    if decision.refused is None:
        assert sum(entry.size_bytes for entry in left) + reserved + needed <= quota
    else:
        assert decision.evict == ()


def test_a_timeline_accounts_for_the_whole_and_leaves_the_unknown_unknown() -> None:
    spans = [Span("load", 30, 35), Span("fetch", 10, 25), Span("pull", None, 10), Span("init", 35, 50)]
    found = timeline(spans)
    assert (found.total_s, found.unexplained_s) == (40, 5)
    assert found.unknown == ("provision", "pull")
    assert phase_seconds(spans)["fetch"] == 15
    assert phase_seconds(spans)["pull"] is None


@pytest.mark.parametrize("span", [Span("sleep", 0, 1), Span("load", 2, 1)])
def test_an_impossible_span_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match=span.phase):
        timeline([span])


def test_a_storm_of_refusals_halves_once_and_recovers_by_one_a_window() -> None:
    rng = Random(1)
    brake = Brake(8, 8)
    for _ in range(8):
        brake = refused(brake, 0.0, rng)
    assert brake.limit == 4
    assert not may_start(brake, 0, 0.0)
    assert may_start(brake, 0, brake.paused_until_s)
    for _ in range(4):
        brake = succeeded(brake)
    assert brake.limit == 5


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 5))
def test_the_brake_stays_between_one_and_its_ceiling(outcomes: list[bool], seed: int) -> None:
    rng, brake, now = Random(seed), Brake(8, 8), 0.0
    for good in outcomes:
        now = max(now, brake.paused_until_s)
        brake = succeeded(brake) if good else refused(brake, now, rng)
        assert 1 <= brake.limit <= 8
        assert brake.paused_until_s - now <= 90
