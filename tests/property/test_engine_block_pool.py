"""The block pool under any sequence of operations: nothing lost, nothing freed twice, references and keys match."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tonnage_core.engine.block_pool import BlockPool

BLOCKS = 9


class PoolMachine(RuleBasedStateMachine):
    """Tables of blocks grow, share prefixes through the cache, and go; a plain model says what must be true."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, caching=True)
        self.tables: list[list[int]] = []
        self.content: dict[int, int] = {}

    @rule(keys=st.lists(st.integers(0, 6), max_size=5, unique=True))
    def admit(self, keys: list[int]) -> None:
        hits = self.pool.cache.longest_prefix(keys)
        assert [self.pool.key(block) for block in hits] == keys[: len(hits)]
        missing = len(keys) - len(hits)
        if missing + self.pool.unheld(hits) > self.pool.free:
            return
        self.pool.hold(hits)
        table = hits + self.pool.take(missing)
        self.pool.publish(table[len(hits) :], keys[len(hits) :])
        self.content.update(zip(table, keys, strict=True))
        self.tables.append(table)

    @rule(count=st.integers(1, 3))
    def take_without_content(self, count: int) -> None:
        if count <= self.pool.free:
            table = self.pool.take(count)
            for block in table:
                self.content.pop(block, None)
            self.tables.append(table)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        if self.tables:
            table = data.draw(st.sampled_from(self.tables))
            self.pool.hold(table)
            self.tables.append(list(table))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.tables:
            self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @invariant()
    def references_are_the_tables_that_hold_a_block(self) -> None:
        for block in range(BLOCKS):
            assert self.pool.references(block) == sum(table.count(block) for table in self.tables)

    @invariant()
    def every_block_is_held_or_free(self) -> None:
        held = {block for table in self.tables for block in table}
        assert 0 not in held
        assert self.pool.free == BLOCKS - 1 - len(held)
        assert self.pool.usage == 1 - self.pool.free / (BLOCKS - 1)

    @invariant()
    def a_cached_key_leads_to_blocks_with_that_content(self) -> None:
        keys = {key for block in range(BLOCKS) if (key := self.pool.key(block)) is not None}
        assert len(self.pool.cache) == len(keys)
        for key in keys:
            blocks = self.pool.cache.blocks_of(key)
            assert len(blocks) == len(set(blocks))
            assert set(blocks) == {block for block in range(BLOCKS) if self.pool.key(block) == key}
            assert all(self.content[block] == key for block in blocks)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBlockPool = PoolMachine.TestCase


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = BlockPool(5, caching=True)
    table = pool.take(4)
    pool.publish(table, [10, 11, 12, 13])
    pool.release(table)
    pool.take(2)
    assert [key in pool.cache for key in (10, 11, 12, 13)] == [True, True, False, False]


def test_blank_blocks_are_taken_before_cached_ones_are_evicted() -> None:
    pool = BlockPool(5, caching=True)
    cached, blank = pool.take(2), pool.take(2)
    pool.publish(cached, [10, 11])
    pool.release(cached)
    pool.release(blank)
    assert sorted(pool.take(2)) == sorted(blank)
    assert pool.evicted == 0


def test_blocks_with_the_same_content_serve_in_the_order_in_which_they_were_cached() -> None:
    pool = BlockPool(6, caching=True)
    tables = [pool.take(1) for _ in range(4)]
    for table in tables:
        pool.publish(table, [7])
    blank = pool.take(1)
    for gone in range(3):
        assert pool.cache.longest_prefix([7]) == tables[gone]
        pool.release(tables[gone])
        assert pool.take(1) == tables[gone]
    assert pool.cache.longest_prefix([7]) == tables[3]
    assert pool.references(blank[0]) == 1
