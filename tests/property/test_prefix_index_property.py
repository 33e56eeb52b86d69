"""The index against a model that keeps a list of blocks a slot."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.prefix_index.index import ENTRY_BYTES, PrefixIndex, matched_blocks

SEED = seed_hash("m", None, None)
CHAINS = st.text("ab", max_size=8).map(lambda text: hash_bytes(SEED, text.encode(), 1))
SLOTS = st.integers(0, 3)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), SLOTS, CHAINS),
        st.tuples(st.just("clear"), SLOTS, CHAINS),
        st.tuples(st.just("discard"), SLOTS, CHAINS),
    ),
    max_size=30,
)


class Model:
    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.held: dict[int, list[bytes]] = {slot: [] for slot in range(4)}

    def apply(self, name: str, slot: int, chain: list[bytes]) -> None:
        held = self.held[slot]
        if name == "clear":
            held.clear()
        elif name == "discard":
            self.held[slot] = [block for block in held if block not in chain]
        else:
            kept = [block for block in held if block not in chain]
            self.held[slot] = (kept + chain[::-1])[-self.bound :]

    def match(self, slot: int, chain: list[bytes]) -> int:
        count = 0
        while count < len(chain) and chain[count] in self.held[slot]:
            count += 1
        return count


@settings(deadline=None, max_examples=60)
@given(OPERATIONS, CHAINS, st.integers(1, 12))
def test_the_index_agrees_with_a_list_a_slot(
    operations: list[tuple[str, int, list[bytes]]], probe: list[bytes], bound: int
) -> None:
    index, model = PrefixIndex(), Model(bound)
    for slot in range(4):
        index.add_slot(slot, bound * ENTRY_BYTES)

    def clear(_: list[bytes], slot: int) -> None:
        index.clear_slot(slot)

    for name, slot, chain in operations:
        actions = {"insert": index.insert, "discard": index.discard, "clear": clear}
        actions[name](chain, slot)
        model.apply(name, slot, chain)
    steps = index.match(probe)
    for slot in range(4):
        assert index.blocks(slot) == len(model.held[slot]) <= bound
        assert matched_blocks(steps, slot) == model.match(slot, probe)
