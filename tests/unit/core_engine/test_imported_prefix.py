"""KV blocks that came from another engine."""

from tonnage_core.engine.kv_blocks import KvBlocks
from tonnage_core.engine.types import BlockKey, EngineConfig

KEYS: list[BlockKey] = [b"a", b"b", b"c", b"d"]


def blocks(num_blocks: int, *, caching: bool = True) -> KvBlocks:
    return KvBlocks(EngineConfig(num_blocks=num_blocks, max_model_len=1024, enable_prefix_caching=caching), "m")


def test_imported_blocks_are_cached_and_held_by_nobody() -> None:
    kv = blocks(9)
    assert kv.import_prefix(KEYS) == 4
    assert kv.import_prefix(KEYS) == 0
    assert (len(kv.pool.cache), kv.pool.free, kv.pool.usage) == (4, 8, 0.0)


def test_only_the_missing_tail_is_new_and_what_is_there_is_not_evicted_for_it() -> None:
    kv = blocks(4)
    kv.import_prefix(KEYS[:2])
    assert kv.import_prefix(KEYS) == 1
    assert [key in kv.pool.cache for key in KEYS] == [True, True, True, False]


def test_older_contents_make_room() -> None:
    kv = blocks(4)
    kv.import_prefix([b"x", b"y", b"z"])
    assert kv.import_prefix(KEYS) == 3
    assert kv.pool.evicted == 3


def test_without_prefix_caching_nothing_is_kept() -> None:
    assert blocks(9, caching=False).import_prefix(KEYS) == 0
