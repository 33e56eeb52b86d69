"""Engine events become our hashes: tokens, parents, adapters and salts count; the engine's own hashes do not."""

import tracemalloc

import pytest

from tonnage_core.prefix_index.block_hash import hash_blocks
from tonnage_core.prefix_index.exact_index import ExactIndex
from tonnage_core.prefix_index.index import matched_blocks
from tonnage_core.prefix_index.kv_events import (
    VIEW_ENTRY_BYTES,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    KvView,
    Outcome,
    exact_seed,
)

SIZE = 4
TOKENS = list(range(100, 112))


class Engine:
    """A view with the index it writes to."""

    def __init__(self, blocks: int = 1000) -> None:
        self.index = ExactIndex()
        self.index.add_slot(3)
        self.view = KvView(self.index, 3, blocks * VIEW_ENTRY_BYTES)
        self.view.reset(complete=True)

    def hits(self, tokens: list[int], adapter: str | None = None, salt: str | None = None) -> int:
        chain = hash_blocks(exact_seed(adapter, salt), tokens, SIZE)
        return matched_blocks(self.index.match(chain), 3) * SIZE

    def store(
        self, names: list[bytes | int], tokens: list[int], parent: bytes | int | None = None, **more: object
    ) -> Outcome:
        return self.view.apply(BlocksStored(names, parent, tokens, SIZE, **more))  # type: ignore[arg-type]


def test_a_prompts_blocks_are_found_by_their_tokens() -> None:
    engine = Engine()
    assert engine.store([b"x", b"y"], TOKENS[:8]) is Outcome.STORED
    assert engine.store([b"z"], TOKENS[8:], parent=b"y") is Outcome.STORED
    assert engine.hits([*TOKENS, 7, 7]) == 12
    assert engine.hits([*TOKENS[:8], 7, 7, 7, 7]) == 8
    assert engine.hits([1, *TOKENS]) == 0
    assert engine.view.block_size == SIZE


def test_a_removed_block_ends_the_match_where_it_stood() -> None:
    engine = Engine()
    engine.store([1, 2, 3], TOKENS)
    assert engine.view.apply(BlocksRemoved([3])) is Outcome.REMOVED
    assert engine.hits(TOKENS) == 8
    engine.view.apply(BlocksRemoved([1]))
    assert engine.hits(TOKENS) == 0
    assert engine.store([1], TOKENS[:4]) is Outcome.STORED
    assert engine.hits(TOKENS) == 8


def test_a_cleared_cache_is_empty_and_wholly_known() -> None:
    engine = Engine()
    engine.view.reset(complete=False)
    engine.store([1], TOKENS[:4])
    assert engine.view.apply(CacheCleared()) is Outcome.CLEARED
    assert engine.hits(TOKENS) == 0 and len(engine.view) == 0 and engine.view.complete


def test_an_adapter_and_its_base_share_nothing() -> None:
    engine = Engine()
    engine.store([1], TOKENS[:4], adapter="lora-a", extra=[("lora-a",)])
    assert engine.hits(TOKENS, adapter="lora-a") == 4
    assert engine.hits(TOKENS) == engine.hits(TOKENS, adapter="lora-b") == 0


def test_a_salt_stands_on_the_first_block_and_keeps_what_follows_apart() -> None:
    engine = Engine()
    engine.store([1, 2], TOKENS[:8], extra=[("tenant-a",), None])
    engine.store([3], TOKENS[8:], parent=2, extra=[None])
    assert engine.hits(TOKENS, salt="tenant-a") == 12
    assert engine.hits(TOKENS) == engine.hits(TOKENS, salt="tenant-b") == 0


def test_adapter_x_and_salt_x_differ() -> None:
    engine = Engine()
    engine.store([1], TOKENS[:4], adapter="x", extra=[("x",)])
    engine.store([2], TOKENS[:4], extra=[("x",)])
    engine.store([3], TOKENS[4:8], parent=1, adapter="x", extra=[("x",)])
    assert (engine.hits(TOKENS, adapter="x"), engine.hits(TOKENS, salt="x")) == (8, 4)
    engine.store([4], TOKENS[:4], adapter="x", extra=[("x", "x")])
    assert engine.hits(TOKENS, adapter="x", salt="x") == 4


@pytest.mark.parametrize("extra", [[("image", "salt")], [(("hash", 3),)], [(b"embedding",)]])
def test_a_key_that_cannot_be_computed_is_matched_by_nothing_nor_is_what_follows(extra: list[object]) -> None:
    engine = Engine()
    assert engine.store([1], TOKENS[:4], extra=extra) is Outcome.UNMATCHABLE
    assert engine.store([2], TOKENS[4:8], parent=1, extra=[None]) is Outcome.UNMATCHABLE
    assert engine.hits(TOKENS) == 0 and len(engine.view) == 2
    assert engine.view.apply(BlocksRemoved([1, 2])) is Outcome.REMOVED
    assert len(engine.view) == 0


def test_an_image_in_a_later_block_ends_the_match_there() -> None:
    engine = Engine()
    engine.store([1, 2, 3], TOKENS, extra=[None, ("image",), None])
    assert engine.hits(TOKENS) == 4


def test_an_adapter_without_a_name_is_matched_by_nothing() -> None:
    engine = Engine()
    assert engine.store([1], TOKENS[:4], adapter_unnamed=True) is Outcome.UNMATCHABLE
    assert engine.hits(TOKENS) == 0


def test_a_block_whose_parent_is_unknown_is_an_orphan() -> None:
    engine = Engine()
    assert engine.store([2], TOKENS[4:8], parent=1) is Outcome.ORPHAN
    assert engine.view.apply(BlocksRemoved([2])) is Outcome.ORPHAN
    assert len(engine.view) == 0


def test_twins_are_evicted_one_by_one() -> None:
    engine = Engine()
    engine.store([1], TOKENS[:4])
    engine.store([1], TOKENS[:4])
    engine.view.apply(BlocksRemoved([1]))
    assert engine.hits(TOKENS) == 4
    engine.view.apply(BlocksRemoved([1]))
    assert engine.hits(TOKENS) == 0


def test_a_block_in_another_tier_stays_found_when_the_gpu_evicts_it() -> None:
    engine = Engine()
    engine.store([1], TOKENS[:4])
    assert engine.view.apply(BlocksStored([1], None, [], 0)) is Outcome.STORED
    assert engine.view.apply(BlocksStored([9], None, [], 0)) is Outcome.ORPHAN
    engine.view.apply(BlocksRemoved([1]))
    assert engine.hits(TOKENS) == 4


def test_cache_groups_of_a_window_do_not_decide_hits() -> None:
    engine = Engine()
    engine.store([1], TOKENS[:4], group=0, kind="full_attention")
    assert engine.store([1], TOKENS[:4], group=1, kind="sliding_window") is Outcome.OTHER_GROUP
    assert engine.view.apply(BlocksRemoved([1], group=1)) is Outcome.OTHER_GROUP
    assert engine.hits(TOKENS) == 4
    engine.view.apply(BlocksRemoved([1], group=0))
    assert engine.hits(TOKENS) == 0


def test_a_part_of_a_block_does_not_change_the_block_size() -> None:
    engine = Engine()
    engine.store([1], TOKENS[:4])
    assert engine.view.apply(BlocksStored([2], 1, TOKENS[4:6], 2)) is Outcome.OTHER_GROUP
    assert engine.view.block_size == SIZE and engine.hits(TOKENS) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": TOKENS[:3]},
        {"tokens": [-1, 2, 3, 4]},
        {"tokens": [1, 2, 3, 1 << 40]},
        {"tokens": ["a", "b", "c", "d"]},
        {"tokens": TOKENS[:4], "extra": [None, None]},
    ],
)
def test_a_malformed_event_changes_nothing(wrong: dict[str, object]) -> None:
    engine = Engine()
    engine.store([1], TOKENS[:4])
    assert engine.store([2], parent=1, **wrong) is Outcome.MALFORMED  # type: ignore[arg-type]
    assert engine.hits(TOKENS) == 4 and len(engine.view) == 1


def test_a_view_over_its_bound_forgets_the_oldest_and_says_that_it_is_not_complete() -> None:
    engine = Engine(blocks=2)
    engine.store([1, 2, 3], TOKENS)
    assert len(engine.view) == 2 and engine.index.blocks(3) == 2
    assert not engine.view.complete and engine.hits(TOKENS) == 0


def test_the_estimate_of_an_entrys_memory_is_not_below_what_it_takes() -> None:
    tracemalloc.start()
    try:
        engine = Engine(blocks=1 << 20)
        for number in range(20_000):
            engine.store([number.to_bytes(32, "big")], [number, 0, 0, 0])
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used <= 20_000 * VIEW_ENTRY_BYTES
    assert used >= 20_000 * VIEW_ENTRY_BYTES / 2
