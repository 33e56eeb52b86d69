"""Events that repeat the last one, the text of one string apart, pass unread: never one that a reader would stop at."""

import gc
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.fuzz_upstream import (
    LOOP,
    OLD_CLIENT,
    STREAM,
    TENANT,
    Answer,
    _Exchanges,
    _settled,
    _Transport,
    read,
)
from tonnage_router.body.sse import UsageStripper
from tonnage_router.body.usage import StreamTap
from tonnage_router.exchange import Exchange
from tonnage_router.wire.client import ClientConnection
from tonnage_router.wire.repeated_event import LARGEST_CHUNK, LONGEST_TEXT, RepeatedEvent, payload_at
from tonnage_router.wire.upstream import UpstreamConnection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHAT = b'data: {"choices":[{"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
NULL = b'data: {"choices":[{"delta":{"content":"%b"}}],"usage":null}\n\n'
MESSAGE = b'event: delta\ndata: {"delta":{"type":"text_delta","text":"%b"}}\n\n'
SPACED = b'data: {"choices": [{"text": "%b", "index": 0}]}\n\n'
FORMS = [CHAT, NULL, MESSAGE, SPACED]
PARTS = st.sampled_from(
    [b'"', b"usage", b":", b"{", b"}", b",", b'":"', b'": "', b"\n\n", b"data: ", b"\\", b"x", b"[]", b"null", b" "]
)
BYTES = st.lists(PARTS, max_size=12).map(b"".join) | st.binary(max_size=8)


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def learnt(payload: bytes) -> RepeatedEvent:
    """What a connection makes of a chunk that its exchange lets pass."""
    event, data = RepeatedEvent(), chunk(payload)
    at = payload_at(data)
    if at and StreamTap().passes_chunk(data, at):
        event.learn(data, at)
    return event


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", [b"", b" token", "é".encode(), b"\\n", b"usage", b"x" * LONGEST_TEXT])
def test_the_next_token_passes_unread(form: bytes, text: bytes) -> None:
    event = learnt(form % b"Hello")
    assert event.passes(chunk(form % text))
    assert event.end() == (1, len(chunk(form % text)))
    assert not event.passes(chunk(form % text))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text", [b'a"', b'","usage":{"prompt_tokens":9},"x":"', b"a\n\ndata: b", b"x" * (LONGEST_TEXT + 1), b'\\"']
)
def test_what_may_say_more_is_read(form: bytes, text: bytes) -> None:
    assert not learnt(form % b"Hello").passes(chunk(form % text))


@pytest.mark.parametrize(
    "cut", [lambda data: data[:-1], lambda data: data + b"0", lambda data: b"0" + data, bytes.upper]
)
def test_what_is_not_one_whole_chunk_is_read(cut: Any) -> None:
    assert not learnt(CHAT % b"Hello").passes(cut(chunk(CHAT % b"Hello")))
    assert not learnt(CHAT % b"Hello").passes(b"f" + chunk(CHAT % b"Hello")[1:])


@pytest.mark.parametrize(
    "payload",
    [
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2},"model":"m"}\n\n',
        CHAT % b"a" + CHAT % b"b",
        b": still there\n\n",
        b"data: [DONE]\n\n",
        b'data: {"a":"b"\n\n',
        b'data: {"a":"b":1}\n\n',
        CHAT % (b"x" * LARGEST_CHUNK),
        b': {"a":"b"}\n\n',
    ],
)
def test_what_is_no_single_event_with_a_string_teaches_nothing(payload: bytes) -> None:
    assert not learnt(payload).passes(chunk(payload))


@settings(deadline=None, max_examples=500)
@given(BYTES, BYTES, BYTES, BYTES, BYTES, st.sampled_from(FORMS))
def test_what_passes_unread_says_nothing_of_usage_and_is_one_event(
    before: bytes, first: bytes, second: bytes, after: bytes, tail: bytes, form: bytes
) -> None:
    pieces = (form.partition(b"%b")[0], before, b'":"', b"%b", b'"', after, form.partition(b"%b")[2])
    made = b"".join(pieces).replace(b"%b", first, 1), b"".join(pieces).replace(b"%b", second, 1)
    for one, other in ((form % first, form % second), made, (form % first, form % second + tail)):
        if not learnt(one).passes(chunk(other)):
            continue
        tap = StreamTap()
        assert tap.passes_chunk(chunk(other), payload_at(chunk(other)))
        assert tap.events == 1 or b"data:" in second
        assert UsageStripper().feed(other) == other
        assert re.search(rb'"usage"\s*:\s*\{', other) is None


@dataclass
class Seen:
    """What a client has of an answer, and what the router made of it."""

    wire: bytes
    exchange: Exchange

    @property
    def body(self) -> bytes:
        """The answer's, out of its chunks."""
        answer, _ = read(self.wire, ended=False)
        assert isinstance(answer, Answer)
        return answer.body


@dataclass
class Open:
    """A stream under way."""

    client: ClientConnection
    transport: _Transport
    engine: UpstreamConnection
    exchange: Exchange

    def say(self, *pieces: bytes) -> None:
        """The engine says so."""
        for piece in pieces:
            self.engine.data_received(piece)

    def seen(self) -> Seen:
        """What came of it so far."""
        return Seen(b"".join(self.transport.written), self.exchange)


async def opened(exchanges: _Exchanges) -> Open:
    """A client's request has reached the engine."""
    client, transport = ClientConnection(exchanges.gateway), _Transport()
    client.connection_made(cast("Any", transport))
    client.data_received(exchanges._request())
    await _settled()
    assert client.exchange is not None
    return Open(client, transport, LOOP.made[-1][0], client.exchange)


async def asked(pieces: list[bytes], options: int) -> Seen:
    """A stream whose engine says `pieces`."""
    stream = await opened(_Exchanges(options))
    stream.say(*pieces)
    assert stream.client.exchange is None
    return stream.seen()


TEXTS = ["Hello", " token", '"', "\n", "usage", "é", "x" * 70]
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(TEXTS).map(lambda t: json.dumps(t, ensure_ascii=False)[1:-1].encode()), max_size=12),
    st.sampled_from(FORMS),
    st.sampled_from([b"", USAGE, USAGE + CHAT % b"after"]),
    st.sampled_from([STREAM, STREAM | TENANT]),
)
def test_a_stream_is_the_same_whether_its_events_pass_unread_or_come_in_one_piece(
    texts: list[bytes], form: bytes, usage: bytes, options: int
) -> None:
    chunks = [chunk(form % text) for text in texts]
    chunks += [chunk(usage)] * bool(usage) + [chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
    apart = LOOP.run_until_complete(asked([HEAD, *chunks], options))
    together = LOOP.run_until_complete(asked([HEAD + b"".join(chunks)], options))
    assert apart.body == together.body
    assert apart.exchange.usage == together.exchange.usage
    assert apart.exchange.tap is not None and together.exchange.tap is not None
    assert apart.exchange.tap.events == together.exchange.tap.events


def test_events_that_passed_unread_are_counted_and_the_client_is_let_go() -> None:
    chunks = [chunk(CHAT % b"%d" % i) for i in range(20)]
    found = LOOP.run_until_complete(asked([HEAD, *chunks, b"0\r\n\r\n"], STREAM))
    assert found.exchange.tap is not None and found.exchange.tap.events == 20
    assert found.exchange.sent_bytes == len(found.wire)
    kept = [kept for kept in gc.get_referrers(found.exchange.client.transport) if kept is not found.exchange.client]
    assert not [kept for kept in kept if type(kept).__name__ == "method"]


CHUNKS = [chunk(CHAT % b"%d" % i) for i in range(9)]


def test_a_chunk_whose_event_differs_elsewhere_or_lacks_its_line_is_read() -> None:
    event = learnt(CHAT % b"Hello")
    for other in (CHAT.replace(b"choices", b"choicez"), CHAT.replace(b"null", b"full")):
        assert not event.passes(chunk(other % b"Hello"))
    assert not event.passes(CHAT % b"Hello" + b"\r\n")
    assert not event.passes(CHAT % b"Hello")


def test_a_chunk_of_the_largest_size_has_no_line_here() -> None:
    assert payload_at(b"x" * LARGEST_CHUNK) == payload_at(b"x" * (LARGEST_CHUNK - 1)) == 0


@pytest.mark.parametrize("size", [2, 3, 4, 5, 21, 262])
def test_a_size_that_no_chunk_can_have_is_no_chunk(size: int) -> None:
    assert payload_at(b"\r".ljust(size - 2, b"x") + b"\r\n") == 0


@pytest.mark.parametrize(
    "bad", [b"\r\n\n\r\n", b"\r" + b"x" * 16 + b"\n\n\r\n", b"\r" + chunk(b'data: {"a":"b"}'), CHAT % b"Hello"]
)
def test_what_is_no_chunk_ends_the_stream_as_a_fault(bad: bytes) -> None:
    found = LOOP.run_until_complete(asked([HEAD, *CHUNKS, bad], STREAM))
    assert bad not in found.wire and b"upstream_protocol" in found.wire
    assert not found.wire.endswith(b"0\r\n\r\n")


def by_client(stream: Open) -> None:
    stream.client.connection_lost(None)


def by_engine(stream: Open) -> None:
    stream.engine.connection_lost(None)


def by_timeout(stream: Open) -> None:
    stream.engine.timed_out()


def by_nonsense(stream: Open) -> None:
    stream.say(b"nonsense\r\n")


@pytest.mark.parametrize("end", [by_client, by_engine, by_timeout, by_nonsense])
def test_what_passed_unread_is_counted_however_the_stream_ends(end: Callable[[Open], None]) -> None:
    async def ended() -> tuple[Open, int]:
        stream = await opened(_Exchanges(STREAM))
        stream.say(HEAD, *CHUNKS)
        size = len(b"".join(stream.transport.written))
        end(stream)
        return stream, size

    stream, size = LOOP.run_until_complete(ended())
    assert stream.exchange.ended and stream.exchange.sent_bytes == size
    assert stream.exchange.tap is not None and stream.exchange.tap.events == len(CHUNKS)


def test_a_connections_next_answer_has_nothing_of_the_last_one() -> None:
    async def both() -> list[Open]:
        exchanges, streams = _Exchanges(STREAM), []
        for count in (9, 3):
            streams.append(await opened(exchanges))
            streams[-1].say(HEAD, *CHUNKS[:count], b"0\r\n\r\n")
        return streams

    first, second = LOOP.run_until_complete(both())
    assert first.engine is second.engine
    assert second.exchange.tap is not None and second.exchange.tap.events == 3
    assert second.exchange.sent_bytes == len(second.seen().wire)


def test_tokens_do_pass_unread_and_show_that_the_engine_lives() -> None:
    async def passing() -> tuple[int, int]:
        stream = await opened(_Exchanges(STREAM))
        stream.say(HEAD, *CHUNKS[:5])
        stream.engine.quiet_ticks = 7
        stream.say(CHUNKS[5])
        return stream.engine._event.events, stream.engine.quiet_ticks

    assert LOOP.run_until_complete(passing()) == (4, 0)


def test_a_chunk_inside_a_body_whose_beginning_came_before_stays_a_part_of_it() -> None:
    inner, last = CHUNKS[0], b"0\r\n\r\n"
    begun = b"%x\r\n%b" % (len(CHAT % b"a" + inner), CHAT % b"a")
    found = LOOP.run_until_complete(asked([HEAD, *CHUNKS, begun, inner, b"\r\n", last], STREAM))
    assert found.body == b"".join(CHAT % b"%d" % i for i in range(9)) + CHAT % b"a" + inner


@pytest.mark.parametrize("options", [STREAM | OLD_CLIENT, STREAM | TENANT])
def test_chunks_are_not_passed_as_they_are_to_who_gets_none_or_before_what_is_held(options: int) -> None:
    odd = b'data: {"choices":[{}],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n\n'
    found = LOOP.run_until_complete(asked([HEAD, chunk(odd), *CHUNKS, b"0\r\n\r\n"], options))
    body = found.wire.partition(b"\r\n\r\n")[2] if options & OLD_CLIENT else found.body
    assert body == odd + b"".join(CHAT % b"%d" % i for i in range(9))
