"""CRC32C over lanes, as the device's kernel computes it, against the library."""

import random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.coldstart.crc_operator import ALL_ONES, after, applied, inverted, lookup, over_bytes

WORD = 4


def over_lanes(data: bytes, lanes: int) -> int:
    """What the kernel does: lane by lane, a table step over all lanes' words, then carried to the end and added."""
    table, found = lookup(over_bytes(WORD * lanes)), 0
    words = [int.from_bytes(data[at : at + WORD], "little") for at in range(0, len(data), WORD)]
    for lane in range(lanes):
        crc = 0
        for word in words[lane::lanes]:
            crc = (
                table[crc & 255]
                ^ table[256 + (crc >> 8 & 255)]
                ^ table[512 + (crc >> 16 & 255)]
                ^ table[768 + (crc >> 24)]
            )
            crc ^= word
        left, power = lanes - lane, over_bytes(WORD)
        while left:
            crc = applied(power, crc) if left & 1 else crc
            left, power = left >> 1, after(power, power)
        found ^= crc
    return inverted(found, len(data))


@pytest.mark.parametrize(("lanes", "turns"), [(1, 1), (1, 9), (8, 4), (64, 3)])
def test_lanes_that_share_a_chunk_find_its_crc32c(lanes: int, turns: int) -> None:
    data = random.Random(lanes).randbytes(WORD * lanes * turns)
    assert over_lanes(data, lanes) == crc32c(data)


@settings(max_examples=30, deadline=None)
@given(head=st.binary(max_size=40), tail=st.binary(max_size=40))
def test_a_checksum_is_carried_over_what_follows(head: bytes, tail: bytes) -> None:
    carried = applied(over_bytes(len(tail)), crc32c(head))
    assert carried ^ crc32c(tail) == crc32c(head + tail)


def test_no_bytes_change_nothing_and_zeros_are_seen() -> None:
    assert applied(over_bytes(0), 0x12345678) == 0x12345678
    assert inverted(0, 64) == crc32c(bytes(64)) != crc32c(bytes(60))
    assert applied(over_bytes(8 << 20), ALL_ONES) ^ ALL_ONES == crc32c(bytes(8 << 20))
