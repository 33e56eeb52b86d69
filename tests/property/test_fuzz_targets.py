"""The targets of `make fuzz` in every run: their seeds, what was found, and what hypothesis makes of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property import fuzz_parser, fuzz_router, fuzz_upstream

TARGETS = fuzz_router.TARGETS | fuzz_parser.TARGETS | fuzz_upstream.TARGETS
SEEDS = fuzz_router.SEEDS | fuzz_parser.SEEDS | fuzz_upstream.SEEDS
FOUND = fuzz_parser.FOUND | fuzz_upstream.FOUND
SPLICES = st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=6)), max_size=4)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_its_seeds_and_for_what_was_found(name: str) -> None:
    for data in SEEDS[name] + FOUND.get(name, []):
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_target_holds_for_any_bytes(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from([b"", *SEEDS[name]]))
    for at, insert in data.draw(SPLICES):
        seed = seed[:at] + insert + seed[at + data.draw(st.integers(0, 3)) :]
    TARGETS[name](seed if seed else data.draw(st.binary(max_size=200)))
