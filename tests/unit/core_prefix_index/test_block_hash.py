import pytest

from tonnage_core.prefix_index.block_hash import DIGEST_BYTES, chain, hash_blocks, hash_bytes, seed_hash


def test_an_adapter_and_a_salt_of_one_name_give_different_seeds() -> None:
    assert seed_hash("m", "x", None) != seed_hash("m", None, "x")


def test_an_absent_salt_differs_from_an_empty_one() -> None:
    assert seed_hash("m", None, None) != seed_hash("m", None, "")


def test_fields_do_not_run_into_each_other() -> None:
    assert seed_hash("ma", "b", None) != seed_hash("m", "ab", None)


def test_a_lone_surrogate_in_a_salt_is_hashed() -> None:
    assert len(seed_hash("m", None, "\ud800")) == DIGEST_BYTES


def test_only_full_blocks_are_hashed() -> None:
    seed = seed_hash("m", None, None)
    assert len(hash_blocks(seed, range(33), 16)) == 2
    assert hash_blocks(seed, range(15), 16) == []


def test_a_block_in_the_middle_hashes_by_its_parent() -> None:
    seed = seed_hash("m", None, None)
    first, second = hash_blocks(seed, [7] * 32, 16)
    assert first != second


def test_a_chain_by_hand_equals_hash_bytes() -> None:
    seed = seed_hash("m", None, None)
    first = chain(seed, b"abcd")
    assert hash_bytes(seed, b"abcdefghi", 4) == [first, chain(first, b"efgh")]


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size is 0"):
        hash_blocks(b"", [1], 0)
