"""Heads that a peer sends again pass the parser by; what is read is what the parser would have read."""

import hashlib
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tonnage_core.flow_control.tenants import TenantAccount, TenantSpec
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.settings import RouterSettings
from tonnage_router.tenants import TenantKeys
from tonnage_router.wire.client import ClientConnection
from tonnage_router.wire.heads import LARGEST, RepeatedHead
from tonnage_router.wire.incoming import Incoming
from tonnage_router.wire.upstream import UpstreamConnection

LIMITS: dict[str, Any] = {"body_bytes": 64, "buffered_bytes": 4096}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n%bContent-Length: %b\r\n%b\r\n"
FIELDS = st.sampled_from(
    [b"", b"X-Session-Id: s\r\n", b"X-Session-Id: t\r\n", b"Connection: x-a\r\nX-A: 1\r\n", b"Expect: 100-continue\r\n"]
)
BODIES = st.sampled_from([b"", b"{}", b'{"model":"m"}', b"POST / HTTP/1.1\r\n\r\n", b"\r\n\r\n"])
READ = (
    "method", "target", "path", "version_11", "keep_alive", "hosts", "connection", "length", "encoding", "explain",
    "authorization", "account", "deadline_ms", "session", "request_id", "error",
)  # fmt: skip
CUTS = st.lists(st.integers(0, 600), max_size=6)


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.ended

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.ended = True

    abort = close


class Listening(Gateway):
    """Remembers what reached it, and answers each request by itself."""

    def __init__(self) -> None:
        super().__init__(RouterSettings(**LIMITS), RouterMetrics(CollectorRegistry()))
        self.heard: list[tuple[object, ...]] = []

    def handle(self, client: ClientConnection, incoming: Incoming) -> None:
        lines = incoming.lines(frozenset({b"authorization"}))
        self.heard.append((lines, incoming.body, *(getattr(incoming, name) for name in READ)))
        super().handle(client, incoming)


def client() -> tuple[ClientConnection, Listening, Transport]:
    gateway, transport = Listening(), Transport()
    connection = ClientConnection(gateway)
    connection.connection_made(cast("Any", transport))
    return connection, gateway, transport


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, *(place for place in cuts if place < len(whole)), len(whole)})
    return [whole[a:b] for a, b in pairwise(places)]


def parser_is_not_asked(connection: ClientConnection | UpstreamConnection) -> None:
    """From here on bytes for the parser fail the test."""
    connection._parser = cast("Any", SimpleNamespace(feed_data=lambda data: pytest.fail(f"parsed: {data!r}")))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(FIELDS, BODIES), min_size=1, max_size=5), CUTS)
def test_requests_of_one_connection_are_those_of_a_connection_each(
    requests: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    written = [HEAD % (fields, b"%d" % len(body), b"") + body for fields, body in requests]
    expected = []
    for one in written:
        connection, gateway, _ = client()
        connection.data_received(one)
        expected += gateway.heard
    for pieces in (written, cut(b"".join(written), cuts)):
        connection, gateway, transport = client()
        for piece in pieces:
            connection.data_received(piece)
        assert gateway.heard == expected
        assert gateway.buffered == 0 and not transport.ended


def test_a_head_that_comes_again_passes_the_parser_by_however_its_body_is_cut() -> None:
    connection, gateway, transport = client()
    connection.data_received(HEAD % (b"", b"2", b"X-B: 1\r\n") + b"{}")
    parser_is_not_asked(connection)
    head, body = HEAD % (b"", b"13", b"X-B: 1\r\n"), b'{"model":"m"}'
    for pieces in ([head + body], [head, body], [head + body[:3], body[3:5], body[5:]], [(head + body) * 2]):
        for piece in pieces:
            connection.data_received(piece)
    assert [heard[1] for heard in gateway.heard] == [b"{}", *[body] * 5]
    assert len(transport.written) == 6 and gateway.buffered == 0


def test_limits_hold_for_a_head_that_comes_again() -> None:
    connection, gateway, transport = client()
    connection.data_received(HEAD % (b"", b"2", b"") + b"{}")
    connection.data_received(HEAD % (b"", b"65", b"") + b"x" * 65)
    assert transport.written[-1].startswith(b"HTTP/1.1 413 ")
    assert len(gateway.heard) == 1 and gateway.buffered == 0


def test_a_client_that_leaves_within_the_body_of_a_known_head_leaves_nothing_behind() -> None:
    connection, gateway, _ = client()
    connection.data_received(HEAD % (b"", b"2", b"") + b"{}")
    connection.data_received(HEAD % (b"", b"20", b"") + b"{")
    assert gateway.buffered == 1 and not connection.idle
    connection.connection_lost(None)
    assert gateway.buffered == 0


@pytest.mark.parametrize(
    "fields",
    [
        b"Authorization: Bearer k\r\n",
        b"X-Tonnage-Explain: 1\r\nX-Tonnage-Deadline-Ms: 5\r\n",
        b"X-Session-Id: s\r\nX-Request-Id: r\r\nContent-Encoding: identity\r\n",
        b"Connection: keep-alive, x-a\r\nX-A: 1\r\n",
        b"Expect: 100-continue\r\n",
    ],
)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_head_that_comes_again_says_all_that_it_said_first(version: bytes, fields: bytes) -> None:
    stays = b"" if version == b"1.1" or b"Connection" in fields else b"Connection: keep-alive\r\n"
    one = HEAD.replace(b"1.1", version) % (fields + stays, b"2", b"") + b"{}"
    connection, gateway, transport = client()
    connection.data_received(one)
    answers = list(transport.written)
    connection.data_received(one)
    assert len(gateway.heard) == 2 and gateway.heard[0] == gateway.heard[1]
    assert transport.written == 2 * answers


def test_a_key_that_was_taken_away_is_refused_though_its_head_is_known() -> None:
    def tenant(name: str, key: bytes) -> TenantKeys:
        return TenantKeys(TenantSpec(name), (hashlib.sha256(key).hexdigest(),))

    connection, gateway, transport = client()
    gateway.tenants.load([tenant("a", b"k"), tenant("other", b"o")], "other")
    one = HEAD % (b"Authorization: Bearer k\r\n", b"2", b"") + b"{}"
    for _ in range(2):
        connection.data_received(one)
        assert cast("TenantAccount", gateway.heard[-1][2 + READ.index("account")]).spec.name == "a"
    gateway.tenants.load([tenant("other", b"o")], "other")
    connection.data_received(one)
    assert len(gateway.heard) == 2 and transport.written[-1].startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("known", [True, False])
def test_what_follows_the_last_answer_of_a_connection_is_not_processed(known: bool) -> None:
    connection, gateway, transport = client()
    if known:
        connection.data_received(HEAD % (b"", b"2", b"") + b"{}")
    before = len(gateway.heard)
    gateway.draining = True
    connection.data_received((HEAD % (b"", b"2", b"") + b"{}") * 3)
    assert len(gateway.heard) == before + 1 and b"\r\nconnection: close\r\n" in transport.written[-1]
    assert transport.ended and gateway.buffered == 0


@pytest.mark.parametrize("digits", [b"", b"+2", b"-2", b"2 ", b" 2", b"0x2", b"2,2", b"\xb2", b"2_0", b"1" * 16])
def test_a_length_that_is_not_plain_digits_is_the_parsers(digits: bytes) -> None:
    head = RepeatedHead()
    assert head.learn(HEAD % (b"", b"2", b"") + b"{}", 2)
    assert head.matches(HEAD % (b"", b"002", b"")) and head.length == 2
    assert not head.matches(HEAD % (b"", digits, b""))
    assert not head.learn(HEAD % (b"", digits, b""), 0)
    assert not head.matches(HEAD % (b"", b"2", b"")), "what could not be learned takes the place of what was"


def test_only_the_whole_head_counts() -> None:
    head, known = RepeatedHead(), HEAD % (b"", b"2", b"X-B: 1\r\n")
    assert not head.matches(known)
    assert not head.learn(known + b"{}", 1), "the parser found the head's end elsewhere"
    assert not head.learn(HEAD % (b"X-Long: " + b"x" * LARGEST + b"\r\n", b"0", b""), 0)
    assert head.learn(known + b"{}", 2)
    assert head.matches(known.replace(b"2\r", b"77\r")) and (head.length, head.body_at) == (77, len(known) + 1)
    for other in (known[:-1], known.replace(b"a\r", b"b\r"), known.replace(b"X-B: 1", b"X-B: 2"), known.lower()):
        assert not head.matches(other)


class Exchange:
    """Takes an answer whole, with its head as the client would get it."""

    def __init__(self) -> None:
        self.found: list[object] = []

    def piece(self, upstream: UpstreamConnection, piece: bytes, complete: bool) -> None:
        if not self.found:
            self.found += [upstream.status, upstream.head(b"x-e: 1\r\n"), b""]
        self.found[2] = cast("bytes", self.found[2]) + piece
        if complete:
            self.found.append("complete")

    def upstream_failed(self, upstream: UpstreamConnection, kind: str) -> None:
        self.found.append(kind)


def engine() -> UpstreamConnection:
    pool: Any = SimpleNamespace(put=lambda connection: None, forget=lambda connection: None)
    connection = UpstreamConnection(pool)
    connection.connection_made(cast("Any", Transport()))
    return connection


def answered(connection: UpstreamConnection, pieces: list[bytes]) -> list[object]:
    exchange = Exchange()
    connection.send(cast("Any", exchange), b"", b"")
    for piece in pieces:
        connection.data_received(piece)
    return exchange.found


ANSWER = b"HTTP/1.1 %b\r\nserver: e\r\n%bContent-Length: %d\r\ncontent-type: application/json\r\n\r\n%b"
STATUSES = st.sampled_from([b"200 OK", b"404 OK", b"200 Fine", b"404 Not Found"])
LINES = st.sampled_from([b"", b"date: 1\r\n", b"Connection: keep-alive, x-a\r\nX-A: 1\r\n", b"Keep-Alive: 5\r\n"])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(STATUSES, LINES, BODIES, CUTS), min_size=1, max_size=5))
def test_answers_of_one_connection_are_those_of_a_connection_each(
    answers: list[tuple[bytes, bytes, bytes, list[int]]],
) -> None:
    connection = engine()
    for status, fields, body, cuts in answers:
        whole = ANSWER % (status, fields, len(body), body)
        assert answered(connection, cut(whole, cuts)) == answered(engine(), [whole])
        assert answered(connection, [whole]) == answered(engine(), [whole])


def test_an_answer_whose_head_comes_again_passes_the_parser_by() -> None:
    connection = engine()
    first = ANSWER % (b"200 OK", b"", 2, b"{}")
    assert answered(connection, [first])[2:] == [b"{}", "complete"]
    parser_is_not_asked(connection)
    found = answered(connection, [ANSWER % (b"200 OK", b"", 11, b'{"id": "c"}')])
    assert found[1:] == [
        b"HTTP/1.1 200 OK\r\nserver: e\r\nContent-Length: 11\r\ncontent-type: application/json\r\nx-e: 1\r\n",
        b'{"id": "c"}',
        "complete",
    ]


def test_an_event_stream_whose_length_is_told_stays_one() -> None:
    connection = engine()
    whole = ANSWER.replace(b"application/json", b"text/event-stream") % (b"200 OK", b"", 9, b"data: 1\n\n")
    for _ in range(2):
        assert answered(connection, [whole])[2:] == [b"data: 1\n\n", "complete"]
        assert connection.event_stream


@pytest.mark.parametrize("status", [b"404 OK", b"500 OK", b"200 Fine"])
def test_a_status_is_never_another_answers(status: bytes) -> None:
    connection = engine()
    whole = ANSWER % (status, b"", 2, b"{}")
    assert answered(connection, [whole]) == answered(connection, [whole]) == answered(engine(), [whole])


def test_bytes_behind_an_answer_are_a_fault_whether_or_not_its_head_is_known() -> None:
    whole = ANSWER % (b"200 OK", b"", 2, b"{}")
    known = engine()
    answered(known, [whole])
    assert answered(known, [whole + b"HTTP/1.1 200"]) == answered(engine(), [whole + b"HTTP/1.1 200"]) == ["protocol"]
