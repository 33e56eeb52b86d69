"""Whole chunks pass an upstream connection's parser by: however an answer is framed and cut, its body is the same."""

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_router.wire.upstream import UpstreamConnection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ONE_CHUNK = re.compile(rb"(?!0)([0-9a-f]+)\r\n(.+)\r\n", re.S)
BODIES = st.lists(st.text("\r\n{}0a ", min_size=1, max_size=20).map(str.encode) | st.just(b"data: {}\n\n"), max_size=12)
SPELLINGS = st.lists(st.sampled_from(["%x", "%X", "0%x", "%x;x=1"]), min_size=12, max_size=12)


class Exchange:
    """Takes what a connection hands on."""

    def __init__(self, *, passes: bool) -> None:
        self.body = b""
        self.passed = 0
        self.unread = 0
        self.ends: list[str] = []
        self.client = SimpleNamespace(transport=SimpleNamespace(write=self.write))
        self._passes = passes

    def passes_chunk(self, data: bytes, at: int) -> bool:
        """A chunk in its framing: minimal, and whole; its payload begins at `at`."""
        found = ONE_CHUNK.fullmatch(data)
        assert found is not None and found.start(2) == at
        return self._passes

    def write(self, data: bytes) -> None:
        """A chunk in its framing."""
        found = ONE_CHUNK.fullmatch(data)
        assert found is not None and int(found[1], 16) == len(found[2])
        self.body += found[2]
        self.passed += 1

    def passed_unread(self, events: int, size: int) -> None:
        self.unread += events

    def piece(self, upstream: UpstreamConnection, piece: bytes, complete: bool) -> None:
        self.body += piece
        if complete:
            self.ends.append("complete")

    def upstream_failed(self, upstream: UpstreamConnection, kind: str) -> None:
        self.ends.append(kind)


def answered(pieces: list[bytes], *, passes: bool) -> Exchange:
    """What an exchange gets of an answer that arrives in `pieces`."""
    nothing: Any = SimpleNamespace(
        get_extra_info=lambda name: None,
        write=lambda data: None,
        is_closing=lambda: False,
        abort=lambda: None,
        close=lambda: None,
        put=lambda connection: None,
    )
    connection = UpstreamConnection(nothing)
    connection.connection_made(nothing)
    exchange = Exchange(passes=passes)
    connection.send(cast("Any", exchange), b"", b"")
    for piece in pieces:
        if piece and not exchange.ends:
            connection.data_received(piece)
    return exchange


@settings(deadline=None, max_examples=300)
@given(BODIES, SPELLINGS, st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_a_body_is_the_same_however_it_is_framed_and_cut(
    bodies: list[bytes], spellings: list[str], cuts: list[int], at_borders: bool
) -> None:
    chunks = [
        spelling.encode() % len(b) + b"\r\n" + b + b"\r\n" for b, spelling in zip(bodies, spellings, strict=False)
    ]
    last = b"0\r\ntrailer: x\r\n\r\n"
    whole = HEAD + b"".join(chunks) + last
    places = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    pieces = [whole[a:b] for a, b in pairwise(places)]
    for passes in (True, False):
        found = answered([HEAD, *chunks, last] if at_borders else pieces, passes=passes)
        assert found.ends == ["complete"]
        assert found.body == b"".join(bodies)


def test_a_streams_later_chunks_pass_the_parser_by() -> None:
    event = b"data: {}\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    assert answered([HEAD, *[chunk] * 5, b"0\r\n\r\n"], passes=True).passed == 4


def test_a_body_that_looks_like_a_chunk_stays_a_body_when_its_size_came_apart() -> None:
    event = b"data: {}\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    found = answered([HEAD, chunk, b"%x\r\n" % len(chunk), chunk, b"\r\n", chunk, b"0\r\n\r\n"], passes=True)
    assert found.ends == ["complete"]
    assert found.body == event + chunk + event


def test_a_chunk_inside_a_body_whose_beginning_came_before_stays_a_part_of_it() -> None:
    event = b"data: {}\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    begun = b"%x\r\n%b" % (len(event + chunk), event)
    found = answered([HEAD, begun, chunk, b"\r\n", chunk, b"0\r\n\r\n"], passes=True)
    assert found.ends == ["complete"]
    assert found.body == event + chunk + event
