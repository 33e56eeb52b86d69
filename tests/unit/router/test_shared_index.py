"""What replicas tell of prefixes, and how it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_core.flow_control.peers import Load, Report, Use
from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.prefix_index.index import PrefixIndex
from tonnage_router.errors import PeerEntryError
from tonnage_router.share_codec import Entry, decode, encode
from tonnage_router.shared_index import MAX_PENDING, SharedIndex

SEED = seed_hash("m", None, None)


def chain(text: str) -> list[bytes]:
    return hash_bytes(SEED, text.encode(), 1)


def shared(slots: int = 2) -> SharedIndex:
    plain = PrefixIndex()
    for slot in range(slots):
        plain.add_slot(slot, 1 << 20)
    return SharedIndex(plain)


texts = st.lists(st.tuples(st.integers(0, 1), st.text("ab", min_size=1, max_size=8)), max_size=30)


@given(texts)
def test_a_peer_that_hears_all_pieces_matches_as_the_teller_does(requests: list[tuple[int, str]]) -> None:
    teller, hearer = shared(), shared()
    for slot, text in requests:
        teller.insert(chain(text), slot)
        for to, blocks in teller.drain(1):
            hearer.learn(list(blocks), to)
    for to, blocks in teller.drain(10_000):
        hearer.learn(list(blocks), to)
    for _, text in requests:
        assert hearer.match(chain(text + "ab")) == teller.match(chain(text + "ab"))
    assert hearer.drain(10_000) == [] and teller.pending_blocks == 0


def test_a_longer_turn_tells_only_its_new_blocks() -> None:
    index = shared()
    index.insert(chain("abab"), 0)
    index.drain(100)
    index.insert(chain("ababba"), 0)
    assert index.drain(100) == [(0, chain("ababba")[4:])]
    index.insert(chain("ababba"), 0)
    assert index.drain(100) == []


def test_pieces_put_back_come_first_again_and_what_waits_is_bounded() -> None:
    index = shared()
    index.insert(chain("a"), 0)
    first = index.drain(100)
    index.insert(chain("b"), 1)
    index.put_back(first)
    assert [slot for slot, _ in index.drain(100)] == [0, 1]
    index.pending_blocks = MAX_PENDING
    index.insert(chain("bb"), 0)
    assert index.drain(100) == [] and index.untold == 2


def test_what_was_known_before_stays_known() -> None:
    plain = PrefixIndex()
    plain.add_slot(0, 1 << 20)
    plain.insert(chain("abc"), 0)
    assert SharedIndex(plain).match(chain("abc")) == [(3, 1)]


def test_an_entry_is_read_as_it_was_written() -> None:
    report = Report("r1", {"e": Load(1, 2, 3)}, {"t": Use(-4, 5, 6)})
    entry = Entry(report, {"e": chain("abc")})
    assert decode(encode(entry)) == entry


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"v":2,"r":"x","l":{},"u":{},"p":{}}',
        b'{"v":1,"r":7,"l":{},"u":{},"p":{}}',
        b'{"v":1,"r":"x","l":{"e":[1,2]},"u":{},"p":{}}',
        b'{"v":1,"r":"x","l":{"e":[1,2,true]},"u":{},"p":{}}',
        b'{"v":1,"r":"x","l":{},"u":{},"p":{"e":"YQ=="}}',
        b'{"v":1,"r":"x","l":[],"u":{},"p":{}}',
        b"\xff" * (5 << 20),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(PeerEntryError):
        decode(data)
