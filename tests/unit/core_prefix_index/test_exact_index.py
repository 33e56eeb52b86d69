"""What engines say they hold, and what requests on their way will add."""

from tonnage_core.prefix_index.exact_index import ExactIndex
from tonnage_core.prefix_index.index import matched_blocks

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def index(*slots: int) -> ExactIndex:
    made = ExactIndex()
    for slot in slots:
        made.add_slot(slot)
    return made


def depth(made: ExactIndex, slot: int, *chain: bytes) -> int:
    return matched_blocks(made.match(list(chain)), slot)


def test_a_stored_block_is_matched_until_it_is_dropped() -> None:
    made = index(0, 1)
    for block in (A, B):
        made.store(block, 0)
    assert (depth(made, 0, A, B, C), depth(made, 1, A, B, C)) == (2, 0)
    made.drop(A, 0)
    assert depth(made, 0, A, B) == 0
    assert made.blocks(0) == 1


def test_a_block_held_twice_survives_one_eviction() -> None:
    made = index(0)
    made.store(A, 0)
    made.store(A, 0)
    made.drop(A, 0)
    assert depth(made, 0, A) == 1
    made.drop(A, 0)
    assert depth(made, 0, A) == 0


def test_a_request_on_its_way_counts_until_it_ends() -> None:
    made = index(0)
    made.expect([A, B], 0)
    made.expect([A], 0)
    made.forget([A, B], 0)
    assert depth(made, 0, A, B) == 1
    made.forget([A], 0)
    assert depth(made, 0, A) == 0


def test_what_the_engine_stored_outlives_the_request_that_brought_it() -> None:
    made = index(0)
    made.expect([A], 0)
    made.store(A, 0)
    made.forget([A], 0)
    assert depth(made, 0, A) == 1


def test_a_reset_keeps_expectations_and_an_old_forget_takes_nothing_of_the_new_cache() -> None:
    made = index(0)
    made.store(A, 0)
    made.expect([A, B], 0)
    made.clear_slot(0)
    assert depth(made, 0, A, B) == 2
    made.store(A, 0)
    made.forget([A, B], 0)
    assert depth(made, 0, A, B) == 1


def test_a_removed_slot_leaves_nothing_behind() -> None:
    made = index(0, 1)
    made.store(A, 0)
    made.expect([B], 0)
    made.store(A, 1)
    made.remove_slot(0)
    made.add_slot(0)
    assert (depth(made, 0, A), depth(made, 1, A), made.blocks(0)) == (0, 1, 0)
    assert made.match([B]) == []


def test_unknown_blocks_and_slots_are_ignored() -> None:
    made = index(0)
    made.drop(A, 0)
    made.drop(A, 7)
    made.forget([A], 7)
    made.clear_slot(7)
    made.remove_slot(7)
    assert made.match([A]) == []
