"""What an engine sends, under arbitrary bytes cut anywhere, held against h11: by hypothesis in every run, by coverage
in `make fuzz`.

The whole way from a client's request to its answer runs, on a loop whose connections are these files' own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import h11
from prometheus_client import CollectorRegistry

from tonnage_core.flow_control.tenants import TenantSpec
from tonnage_router.body.sse import UsageStripper
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.settings import EndpointSpec, RouterSettings
from tonnage_router.tenants import TenantKeys
from tonnage_router.wire.client import ClientConnection
from tonnage_router.wire.upstream import HEAD_BYTES, UpstreamConnection

STREAM, OLD_CLIENT, WARM, RESET, MADE, TENANT, FLOOD, SLOW = (1 << bit for bit in range(8))
"""Options in an input's second byte; the first is the size of the pieces."""
GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
EVENTS = b"text/event-stream"
HOP_BY_HOP = frozenset(
    {b"connection", b"transfer-encoding", b"keep-alive", b"proxy-connection", b"proxy-authenticate"}
) | {b"proxy-authorization", b"te", b"trailer", b"upgrade"}
FRAMING = frozenset({b"connection", b"transfer-encoding", b"keep-alive"})
"""What the router says of its own hop."""
ALWAYS_KEPT = frozenset({b"", b"close", b"content-length"})
"""Names in a Connection line that take no header away."""
FLOOD_PIECE = 16 << 10
FLOOD_BYTES = HEAD_BYTES + 3 * FLOOD_PIECE
KINDS = (b"application/json", b"text/event-stream; charset=utf-8", b"application/json\r\ncontent-encoding: gzip")
PUSHED_BACK = (429, 503)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
SEEDS: dict[str, list[bytes]] = {
    "upstream": [
        bytes([3, STREAM])
        + b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b'9;x="y"\r\ndata: x\n\n\r\n00A\r\ndata: xy\n\n\r\n0\r\nTrailer: x\r\n\r\n',
        bytes([5, WARM]) + GOOD + GOOD,
        bytes([9, STREAM])
        + b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"8\r\ndata: x\n\r\n",
        bytes([9, OLD_CLIENT]) + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        bytes([63, OLD_CLIENT]) + b"HTTP/1.0 200\r\n\r\nuntil the end",
        bytes([1, 0]) + b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + GOOD,
        bytes([1, RESET]) + b"HTTP/1.1 404 Not Found\r\nConnection: close, x-a\r\nX-A: 1\r\nContent-Length: 1\r\n\r\n1",
        bytes([63, 0])
        + b"HTTP/1.1 200 OK\r\nTE: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Trailer: 1\r\n\r\n",
        bytes([7, FLOOD]) + b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n",
        bytes([7, MADE | STREAM | TENANT, 9]) + b'data: {"choices":[{"text":"x"}]}\n\n' + USAGE + b"data: [DONE]\n\n",
        bytes([7, MADE, 2, 31, 139, 8]),
    ],
}
FOUND: dict[str, list[bytes]] = {
    "upstream": [
        # a client that read slowly left the engine's connection unread for whoever had it next
        bytes([9, SLOW]) + GOOD,
        # the header that frames the body was taken out, and the client waited for its end
        bytes([9, 0]) + b"HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 1\r\n\r\n1",
        # control characters in a reason phrase were passed on, which clients refuse
        bytes([1, 0]) + b"HTTP/1.1 200 O\x00\x7fK\r\nContent-Length: 0\r\n\r\n",
        # statuses below 100 were taken for interim ones
        bytes([63, 0]) + b"HTTP/1.1 020 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        # the body of an interim answer was passed on as if it were the answer's
        bytes([9, STREAM]) + b"HTTP/1.1 199 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: x\n\r\n",
        # (this file's own fault) an engine that pushes back gets no next request to look at
        bytes([1, RESET]) + b"HTTP/1.1 503 Not\r\nContent-Length: 1\r\n\r\n0",
        # a stream kept its Content-Length though its usage event was taken out, and the client waited for the rest
        bytes([7, MADE | STREAM | TENANT, 1]) + b'data: {"choices":[{"text":"x"}]}\n\n' + USAGE + b"data: [DONE]\n\n",
        # a trailer without end was kept
        bytes([3, FLOOD]) + b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\na: bbbb",
    ]
}


@dataclass(eq=False)
class _Transport:
    """A socket's other end: keeps what is written and says how it was left."""

    written: list[bytes] = field(default_factory=list)
    left: str = ""
    reading: bool = True
    after_write: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))
        if self.after_write is not None:
            self.after_write()

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.write(b"".join(parts))

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if name == "peername" else None

    def is_closing(self) -> bool:
        return bool(self.left)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.left = self.left or "close"

    def abort(self) -> None:
        self.left = self.left or "abort"


class _Loop(asyncio.SelectorEventLoop):
    """Connections to engines succeed at once and are kept here."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[UpstreamConnection, _Transport]] = []

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        connection, transport = factory(), _Transport()
        connection.connection_made(transport)
        self.made.append((connection, transport))
        return transport, connection


LOOP = _Loop()


@dataclass(frozen=True)
class Answer:
    """A whole answer, but for what is of one hop."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


SHORT, REFUSED = "short", "refused"


def read(wire: bytes, *, ended: bool) -> tuple[Answer | str, bytes]:
    """The first whole answer on a wire, by h11, and what follows it; or why there is none. `ended`: the connection was
    closed in order after `wire`."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 23)
    parser.send(h11.Request(method="POST", target="/", headers=[("host", "a"), ("content-length", "0")]))
    parser.send(h11.EndOfMessage())
    answer, body = h11.Response(status_code=200, headers=[]), b""
    for data in (wire, b"")[: 1 + ended]:
        if data or data is not wire:
            parser.receive_data(data)
        try:
            while (event := parser.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    answer = event
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return Answer(answer.status_code, _end_to_end(list(answer.headers)), body), parser.trailing_data[0]
        except h11.ProtocolError:
            return (REFUSED if data else SHORT), b""
    return SHORT, b""


def _end_to_end(headers: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    options = b",".join(value for name, value in headers if name == b"connection")
    dropped = HOP_BY_HOP | {part.strip().lower() for part in options.split(b",")} - ALWAYS_KEPT
    return tuple(sorted((name, value) for name, value in headers if name not in dropped))


class _Exchanges:
    """Clients, a router with one endpoint, and the engine's side of its connections."""

    def __init__(self, options: int) -> None:
        settings: dict[str, Any] = {"endpoints": [EndpointSpec(url="http://127.0.0.1:1", model="m")]}
        self.gateway = Gateway(RouterSettings(**settings), RouterMetrics(CollectorRegistry()))
        self.endpoint = next(iter(self.gateway.fleet))
        self.endpoint.probe_ok = True
        self.gateway.refresh(self.endpoint)
        if options & TENANT:
            self.gateway.tenants.load([TenantKeys(TenantSpec("t", tokens_per_min=1e12), ())], "t")
        self._options = options
        LOOP.made.clear()

    async def ask(self, pieces: list[bytes], *, reset: bool = False) -> Answer | None:
        """Send a request as a client of its own and let the engine say `pieces`: its answer as the client has it, or
        None when the client can see that it failed. A second attempt gets a good answer."""
        client, transport = ClientConnection(self.gateway), _Transport()
        client.connection_made(cast("Any", transport))
        opened, idle = len(LOOP.made), self.endpoint.pool.idle
        client.data_received(self._request())
        await _settled()
        assert len(LOOP.made) == opened + (not idle)
        self._say(client, transport, pieces, reset=reset)
        await _settled()
        if again := client.exchange is not None:
            assert len(LOOP.made) > opened
            self._say(client, transport, [GOOD], reset=False)
        assert client.exchange is None
        client.connection_lost(None)
        self._nothing_is_held()
        wire = b"".join(transport.written)
        found, rest = read(wire, ended=transport.left == "close")
        assert not rest
        names = {line.partition(b":")[0].lower() for line in wire.partition(b"\r\n\r\n")[0].split(b"\r\n")}
        assert not names & HOP_BY_HOP - FRAMING
        outcomes = dict(self.gateway.metrics.outcomes)
        self.gateway.metrics.outcomes.clear()
        if outcomes in ({"ok": 1}, {"upstream_status": 1}):
            assert isinstance(found, Answer), found
            return None if again else found
        assert found == SHORT or (isinstance(found, Answer) and found.status == 502 and b"upstream_" in found.body)
        return None

    def _request(self) -> bytes:
        body = b'{"model":"m","prompt":"a","stream":%b}' % (b"true" if self._options & STREAM else b"false")
        version = b"1.0" if self._options & OLD_CLIENT else b"1.1"
        head = b"POST /v1/completions HTTP/%b\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
        return head % (version, len(body)) + body

    def _say(self, client: ClientConnection, transport: _Transport, pieces: list[bytes], *, reset: bool) -> None:
        connection, engine = LOOP.made[-1]
        transport.after_write = client.pause_writing if self._options & SLOW else None
        silent, written = 0, len(transport.written)
        for piece in pieces:
            unasked = connection.exchange is None
            connection.data_received(piece)
            assert engine.left or not unasked
            if engine.left:
                break
            silent = silent + len(piece) if len(transport.written) == written else 0
            written = len(transport.written)
            assert self._options & TENANT or silent <= HEAD_BYTES + FLOOD_PIECE  # else the stripper holds events
            if client.paused:
                assert connection.exchange is None or not engine.reading
                client.resume_writing()
        transport.after_write = None
        if connection.exchange is not None:
            if not reset:
                assert not connection.eof_received()
            engine.close()
        if engine.left:
            connection.connection_lost(None)
        assert bool(engine.left) != bool(self.endpoint.pool.idle)
        assert engine.left or engine.reading

    def _nothing_is_held(self) -> None:
        gateway, candidate = self.gateway, self.endpoint.candidate
        assert gateway.buffered == 0 and not gateway.active and not gateway.clients
        assert candidate.requests == candidate.prefill_tokens == candidate.decode_tokens == 0


async def _settled() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def _answered(wire: bytes, options: int, step: int) -> tuple[Answer | None, dict[str, list[int]]]:
    """What a client has of `wire`, said in pieces, and the tokens counted. Then the connection, if it was kept, must
    give the next clients the answers to their own requests."""
    exchanges = _Exchanges(options)
    if options & WARM:
        assert await exchanges.ask([GOOD]) == GOOD_ANSWER
    pieces = [wire[at : at + step] for at in range(0, len(wire), step)]
    found = await exchanges.ask(pieces, reset=bool(options & RESET))
    tokens = {pool: list(counts) for pool, counts in exchanges.gateway.metrics.tokens.items()}
    if found is not None and found.status in PUSHED_BACK:
        return found, tokens  # the endpoint is left alone for a while
    if exchanges.endpoint.pool.idle:
        assert await exchanges.ask([wire]) in (found, None)  # in one piece, what follows the answer is a fault
    if exchanges.endpoint.pool.idle:
        assert await exchanges.ask([GOOD]) == GOOD_ANSWER
    return found, tokens


GOOD_ANSWER, _ = read(GOOD, ended=False)


def _made(data: bytes) -> tuple[bytes, bytes, bool]:
    """An answer in order that `data` describes, its body, and whether it ends with its connection."""
    kind, body = (data[0], data[1:]) if data else (0, b"")
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\n" % ((b"200 OK", b"400 No")[kind >> 2 & 1], KINDS[kind % 3])
    head = b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" * (kind >> 3 & 1) + head
    if kind >> 6 == 0:
        return head + b"content-length: %d\r\n\r\n" % len(body) + body, body, False
    if kind >> 6 == 1:
        return head + b"\r\n" + body, body, True
    chunks, at = [], 0
    while at < len(body):
        part = body[at : at + 1 + body[at] % 40]
        chunks.append((b"%x", b"%X", b"0%x", b"%x;x=1")[len(part) % 4] % len(part) + b"\r\n" + part + b"\r\n")
        at += len(part)
    trailer = b"x-trailer: 1\r\n" * (kind >> 4 & 1)
    return head + b"transfer-encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n" + trailer + b"\r\n", body, False


def upstream(data: bytes) -> None:
    """Any bytes from an engine, cut anywhere: the same answer for the client or a failure that it can see, never a
    part as if it were whole; the next request on the connection has its own answer; nothing is held without bound."""
    if len(data) < 3:
        return
    size, options, wire = 1 + data[0] % 64, data[1], data[2:]
    if options & FLOOD:
        unit = wire[-1 - data[0] % 32 :]
        LOOP.run_until_complete(_answered(wire + unit * (FLOOD_BYTES // len(unit)), options, FLOOD_PIECE))
        return
    if options & MADE:
        wire, body, until_end = _made(wire)
    engines, rest = read(wire, ended=not options & RESET)
    if options & TENANT and isinstance(engines, Answer):
        engines = _without_usage(engines, options)
    answers = [LOOP.run_until_complete(_answered(wire, options, step)) for step in (len(wire), size)]
    whole = [answer for answer in answers if answer[0] is not None]
    for answer, tokens in whole:
        assert engines != SHORT
        assert engines == REFUSED or answer == engines
        assert tokens == whole[0][1]
    assert len({answer for answer, _ in whole}) < 2
    if options & MADE and not (until_end and options & RESET):
        assert len(whole) == 2 and isinstance(engines, Answer) and not rest
        assert engines.body == body or options & TENANT


def _without_usage(answer: Answer, options: int) -> Answer:
    """The router's own part: the usage event that it asked for is taken out of a stream."""
    if (
        not options & STREAM
        or answer.status != 200
        or not dict(answer.headers).get(b"content-type", b"").startswith(EVENTS)
    ):
        return answer
    stripper = UsageStripper()
    kept = tuple(header for header in answer.headers if header[0] != b"content-length")  # the length was the whole's
    return replace(answer, headers=kept, body=stripper.feed(answer.body) + stripper.end())


TARGETS: dict[str, Callable[[bytes], None]] = {"upstream": upstream}
