from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.prefix_index.index import ENTRY_BYTES, PrefixIndex, matched_blocks, slots_of

SEED = seed_hash("m", None, None)


def chain_of(text: bytes) -> list[bytes]:
    return hash_bytes(SEED, text, 1)


def index_with(slots: int, blocks: int = 100) -> PrefixIndex:
    index = PrefixIndex()
    for slot in range(slots):
        index.add_slot(slot, blocks * ENTRY_BYTES)
    return index


def test_each_slot_matches_as_far_as_it_was_routed() -> None:
    index = index_with(3)
    index.insert(chain_of(b"abcdef"), 0)
    index.insert(chain_of(b"abcxyz"), 1)
    steps = index.match(chain_of(b"abcdzz"))
    assert [matched_blocks(steps, slot) for slot in range(3)] == [4, 3, 0]


def test_an_unknown_prefix_matches_nowhere() -> None:
    index = index_with(2)
    index.insert(chain_of(b"abc"), 0)
    assert index.match(chain_of(b"zbc")) == []
    assert index.match([]) == []


def test_text_in_the_middle_of_a_prompt_does_not_match() -> None:
    index = index_with(1)
    index.insert(chain_of(b"xxhello"), 0)
    assert index.match(chain_of(b"hello")) == []


def test_the_bound_drops_the_end_of_the_oldest_chain_first() -> None:
    index = index_with(1, blocks=6)
    index.insert(chain_of(b"old123"), 0)
    index.insert(chain_of(b"new"), 0)
    assert index.blocks(0) == 6
    assert matched_blocks(index.match(chain_of(b"old123")), 0) == 3
    assert matched_blocks(index.match(chain_of(b"new")), 0) == 3


def test_a_removed_slot_is_forgotten_and_others_keep_theirs() -> None:
    index = index_with(2)
    index.insert(chain_of(b"abc"), 0)
    index.insert(chain_of(b"abc"), 1)
    index.remove_slot(0)
    assert index.match(chain_of(b"abc")) == [(3, 2)]
    index.remove_slot(1)
    assert index.memory_bytes == 0
    assert index.match(chain_of(b"abc")) == []


def test_a_restarted_engine_starts_empty() -> None:
    index = index_with(1)
    index.insert(chain_of(b"abc"), 0)
    index.clear_slot(0)
    assert index.match(chain_of(b"abc")) == []
    index.insert(chain_of(b"ab"), 0)
    assert index.blocks(0) == 2


def test_an_engines_removal_event_ends_the_match_before_the_block() -> None:
    index = index_with(1)
    chain = chain_of(b"abc")
    index.insert(chain, 0)
    index.discard([chain[1], b"never held"], 0)
    assert matched_blocks(index.match(chain), 0) == 1


def test_holders_come_longest_match_first_and_wrap_around() -> None:
    steps = [(4, 0b0100), (2, 0b1011)]
    assert slots_of(steps, 4) == [2, 0, 1, 3]
    assert slots_of(steps, 3, start=1) == [2, 1, 3]
