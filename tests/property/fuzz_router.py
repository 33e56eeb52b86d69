"""The router's parsers and tables under arbitrary bytes: by hypothesis in every run, by coverage in `make fuzz`."""

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

from prometheus_client import CollectorRegistry

from tonnage_core.flow_control.fair_queue import FairQueue
from tonnage_core.prefix_index.index import PrefixIndex, matched_blocks
from tonnage_router.body.sse import UsageStripper
from tonnage_router.body.usage import BodyTap, StreamTap
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.settings import RouterSettings
from tonnage_router.wire.client import ClientConnection
from tonnage_router.wire.incoming import Incoming

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
SEEDS: dict[str, list[bytes]] = {
    "http": [
        b'\x07POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n{"model":"m"}',
        b"\x03POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"\x10GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/models HTTP/1.0\r\nExpect: 100-continue\r\n\r\n",
        b"\x05" + b"POST /v1/score HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}" * 3,
    ],
    "sse": [
        b'\x05data: {"choices":[{"text":"x"}]}\n\n' + USAGE + b"data: [DONE]\n\n",
        b"\x02: c\r\n\r\ndata: x\r\n\r\n",
        b"\x04x\n\n\n" + USAGE,
        b"\x08" + USAGE + b'd\r\n\x05at],"usage":{"prompt_tokens":4}}\n\nd: [',
    ],
    "index": [bytes(range(64))],
    "queue": [bytes(range(64))],
}


class _Transport:
    """Takes what is written, as a connected socket would."""

    def __init__(self) -> None:
        self.closed = False
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    write_eof = pause_reading = resume_reading = lambda self: None
    abort = close


class _Listening(Gateway):
    """A gateway without endpoints that remembers what reached it."""

    def __init__(self) -> None:
        limits: dict[str, int] = {"body_bytes": 4096, "head_bytes": 2048, "buffered_bytes": 8192}
        super().__init__(RouterSettings(**limits), RouterMetrics(CollectorRegistry()))  # type: ignore[arg-type]
        self.heard: list[tuple[bytes, bytes, bytes]] = []

    def handle(self, client: ClientConnection, incoming: Incoming) -> None:
        self.heard.append((incoming.method, incoming.target, incoming.body))
        super().handle(client, incoming)


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def http(data: bytes) -> None:
    """Any bytes from a client, cut anywhere, also where requests may begin: no exception, the same requests, nothing
    left in the accounts."""
    heard = []
    stream, size = data[1:], max(1, data[0] % 32) if data else 1
    for pieces in ([stream], _pieces(stream, size), re.split(rb"(?=POST )", stream)):
        gateway, transport = _Listening(), _Transport()
        client = ClientConnection(gateway)
        client.connection_made(cast(Any, transport))
        for piece in pieces:
            if piece and not transport.closed:
                client.data_received(piece)
        client.connection_lost(None)
        assert gateway.buffered == 0 and not gateway.active and not gateway.clients
        assert all(written.startswith(b"HTTP/1.1 ") for written in transport.written)
        heard.append(gateway.heard)
    assert heard[0] == heard[1] == heard[2]


def sse(data: bytes) -> None:
    """Any stream, cut anywhere: the same usage, the same bytes passed on, and only usage events taken out."""
    size, stream = (max(1, data[0] % 32) if data else 1), data[1:]
    passed, found = [], []
    for step in (len(stream) or 1, size):
        stripper, tap, body = UsageStripper(), StreamTap(), BodyTap()
        out = b""
        for piece in _pieces(stream, step):
            tap.feed(piece)
            body.feed(piece)
            out += stripper.feed(piece)
        passed.append(out + stripper.end())
        found.append((tap.usage(), body.usage()))
    assert passed[0] == passed[1]
    assert found[0] == found[1]
    assert b'"usage"' in stream or passed[0] == stream
    assert len(passed[0]) <= len(stream)


def index(data: bytes) -> None:
    """Any order of calls: the index agrees with a list of blocks a slot, and is empty when its slots are gone."""
    bound, tables = 6, PrefixIndex()
    held: dict[int, list[bytes]] = {}
    for call, place, start, length in zip(data[::4], data[1::4], data[2::4], data[3::4], strict=False):
        slot = place % 4
        chain = [bytes([start % 16, depth]) for depth in range(length % 8)]
        if call % 8 == 0:
            tables.remove_slot(slot)
            held.pop(slot, None)
        elif call % 8 == 1:
            tables.clear_slot(slot)
            if slot in held:
                held[slot] = []
        elif call % 8 == 2:
            tables.discard(chain, slot)
            if slot in held:
                held[slot] = [block for block in held[slot] if block not in chain]
        else:
            if slot not in held:
                tables.add_slot(slot, bound * 280)
                held[slot] = []
            tables.insert(chain, slot)
            held[slot] = ([block for block in held[slot] if block not in chain] + chain[::-1])[-bound:]
        steps = tables.match(chain)
        for each, blocks in held.items():
            known = next((n for n, block in enumerate(chain) if block not in blocks), len(chain))
            assert matched_blocks(steps, each) == known
            assert tables.blocks(each) == len(blocks)
    for slot in list(held):
        tables.remove_slot(slot)
    assert tables.memory_bytes == 0 and tables.match([bytes([n, 0]) for n in range(16)]) == []


def queue(data: bytes) -> None:
    """Any order of calls: every item leaves once, expires once or died; counts end at nothing."""
    dead: set[int] = set()
    waiting: FairQueue[int] = FairQueue(32, lambda item: item not in dead)
    inside: set[int] = set()
    for number, (call, value) in enumerate(zip(data[::2], data[1::2], strict=False)):
        if call % 4 == 0:
            item = waiting.pop()
            assert (item is None) == (not inside - dead)
            inside.discard(-1 if item is None else item)
        elif call % 4 == 1 and inside:
            dead.add(sorted(inside)[value % len(inside)])
        elif call % 4 == 2:
            gone = waiting.expire(float(value))
            assert set(gone) <= inside - dead and len(gone) == len(set(gone))
            inside -= set(gone)
        else:
            taken = waiting.push(
                number,
                "abc"[value % 3],
                cost=1.0 + value * 40,
                deadline=float(call),
                weight=1 + value % 5,
                priority=value % 2,
            )
            inside |= {number} if taken else set()
            assert taken or len(waiting) == 32
    assert set(waiting.drain()) == inside - dead
    assert len(waiting) == 0 and abs(waiting.waiting_cost) < 1e-6


TARGETS: dict[str, Callable[[bytes], None]] = {"http": http, "sse": sse, "index": index, "queue": queue}
