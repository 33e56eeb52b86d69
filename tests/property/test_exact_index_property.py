"""The exact index against lists of what was stored and what is expected."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.prefix_index.exact_index import ExactIndex
from tonnage_core.prefix_index.index import matched_blocks

SEED = seed_hash("", None, None)
CHAINS = st.text("ab", max_size=6).map(lambda text: hash_bytes(SEED, text.encode(), 1))
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(("store", "drop", "expect", "forget", "clear", "remove")), st.integers(0, 2), CHAINS),
    max_size=40,
)


class Model:
    def __init__(self) -> None:
        self.stored = {slot: Counter[bytes]() for slot in range(3)}
        self.expected = {slot: Counter[bytes]() for slot in range(3)}

    def apply(self, name: str, slot: int, chain: list[bytes]) -> None:
        if name == "store":
            self.stored[slot].update(chain)
        elif name == "drop":
            self.stored[slot] -= Counter(chain)
        elif name == "expect":
            self.expected[slot].update(chain)
        elif name == "forget":
            self.expected[slot] -= Counter(chain)
        else:
            self.stored[slot].clear()
            if name == "remove":
                self.expected[slot].clear()

    def match(self, slot: int, chain: list[bytes]) -> int:
        held = self.stored[slot] + self.expected[slot]
        count = 0
        while count < len(chain) and held[chain[count]]:
            count += 1
        return count


def apply(index: ExactIndex, name: str, slot: int, chain: list[bytes]) -> None:
    if name in ("store", "drop"):
        for block in chain:
            (index.store if name == "store" else index.drop)(block, slot)
    elif name in ("expect", "forget"):
        (index.expect if name == "expect" else index.forget)(chain, slot)
    elif name == "clear":
        index.clear_slot(slot)
    else:
        index.remove_slot(slot)
        index.add_slot(slot)


@settings(deadline=None, max_examples=80)
@given(OPERATIONS, CHAINS)
def test_the_exact_index_agrees_with_two_bags_a_slot(
    operations: list[tuple[str, int, list[bytes]]], probe: list[bytes]
) -> None:
    index, model = ExactIndex(), Model()
    for slot in range(3):
        index.add_slot(slot)
    for name, slot, chain in operations:
        apply(index, name, slot, chain)
        model.apply(name, slot, chain)
    steps = index.match(probe)
    for slot in range(3):
        assert matched_blocks(steps, slot) == model.match(slot, probe)
        assert index.blocks(slot) == len(model.stored[slot])


@settings(deadline=None, max_examples=40)
@given(OPERATIONS)
def test_slots_that_leave_leave_no_memory(operations: list[tuple[str, int, list[bytes]]]) -> None:
    index = ExactIndex()
    for slot in range(3):
        index.add_slot(slot)
    seen: set[bytes] = set()
    for name, slot, chain in operations:
        apply(index, name, slot, chain)
        seen.update(chain)
    for slot in range(3):
        index.remove_slot(slot)
    assert all(index.match([block]) == [] for block in seen)
