"""A router on loopback over engines that a test scripts byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httptools
import msgspec
import pytest
import zmq
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry

from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.service import RouterService
from tonnage_router.settings import EndpointSpec, RouterSettings
from tonnage_runtime.http_app import bind

OK_BODY = b'{"id":"1","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2}}'


@dataclass
class Call:
    head: bytes
    body: bytes
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    engine: "Engine"

    def answer(self, body: bytes = OK_BODY, status: str = "200 OK", extra: bytes = b"") -> None:
        self.writer.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
            % (status.encode(), len(body), extra, body)
        )

    def stream_head(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")


Script = Callable[[Call], Awaitable[None]]


async def answer_ok(call: Call) -> None:
    call.answer()


@dataclass
class Engine:
    script: Script = answer_ok
    model: str = "m"
    healthy: bool = True
    calls: list[Call] = field(default_factory=list)
    left: int = 0
    """Connections the router closed while a script waited."""
    connections: int = 0
    port: int = 0
    server: asyncio.Server | None = None
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    listed: list[dict[str, Any]] = field(default_factory=list)
    metrics: bytes = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        backlog = 1024  # a thousand connections at once are not to wait for a busy machine
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=1 << 27, backlog=backlog)
        self.port = self.server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                call = Call(head, body, writer, reader, self)
                if not self._control(call):
                    self.connections += len(self.calls) == 0 or self.calls[-1].writer is not writer
                    self.calls.append(call)
                    await self.script(call)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    def _control(self, call: Call) -> bool:
        target = call.head.split(b" ")[1]
        if target == b"/health":
            call.answer(b"", "200 OK" if self.healthy else "503 Service Unavailable")
        elif target == b"/v1/models":
            import orjson

            rows = self.listed or [{"id": self.model, "object": "model", "max_model_len": 4096}]
            call.answer(orjson.dumps({"object": "list", "data": rows}))
        elif target == b"/metrics":
            call.answer(self.metrics)
        else:
            return False
        return True


@dataclass
class Answer:
    status: int = 0
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    complete: bool = False
    raw: bytes = b""
    closed: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    def on_status(self, reason: bytes) -> None:
        self.reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = self.status != 100


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> Answer:
        """One answer, or what came of it before the connection closed."""
        answer = Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.complete:
            data = await self.reader.read(65536)
            if not data:
                answer.closed = True
                break
            answer.raw += data
            parser.feed_data(data)
            answer.status = parser.get_status_code()
        return answer

    async def post(self, body: bytes, path: bytes = b"/v1/chat/completions", extra: bytes = b"") -> Answer:
        self.send(body, path, extra)
        return await self.read()

    def send(self, body: bytes, path: bytes = b"/v1/chat/completions", extra: bytes = b"") -> None:
        self.writer.write(
            b"POST %b HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"
            % (path, len(body), extra, body)
        )

    def close(self) -> None:
        self.writer.transport.abort()


async def until(true: Callable[[], bool]) -> None:
    for _ in range(12_000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError("the awaited state did not come")


class Router:
    def __init__(self, service: RouterService, port: int) -> None:
        self.service = service
        self.gateway = service.gateway
        self.port = port
        self._clients: list[Client] = []

    async def client(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 27)
        client = Client(reader, writer)
        self._clients.append(client)
        return client

    async def post(self, body: bytes, path: bytes = b"/v1/chat/completions", extra: bytes = b"") -> Answer:
        client = await self.client()
        answer = await client.post(body, path, extra)
        client.close()
        return answer

    def counters(self) -> list[tuple[int, int, int]]:
        return [(c.requests, c.prefill_tokens, c.decode_tokens) for c in (e.candidate for e in self.gateway.fleet)]

    async def until(self, true: Callable[[], bool]) -> None:
        await until(true)

    async def settled(self) -> None:
        """Until no request is active."""
        await until(lambda: not self.gateway.active)

    async def stop(self) -> None:
        for client in self._clients:
            client.close()
        await self.service.stop()


@pytest.fixture
async def engines() -> AsyncIterator[Callable[..., Awaitable[list[Engine]]]]:
    started: list[Engine] = []

    async def start(count: int = 1, script: Script = answer_ok, **fields: Any) -> list[Engine]:
        new = [Engine(script, **fields) for _ in range(count)]
        for engine in new:
            await engine.start()
        started.extend(new)
        return new

    yield start
    for engine in started:
        engine.stop()
    await asyncio.sleep(0.01)


@pytest.fixture
async def route() -> AsyncIterator[Callable[..., Awaitable[Router]]]:
    routers: list[Router] = []

    async def start(engines: list[Engine], ready: bool = True, **settings: Any) -> Router:
        specs = [EndpointSpec(url=e.url, model=e.model) for e in engines]
        defaults: dict[str, Any] = {"metrics_interval_s": 0, "health_interval_s": 30, "endpoints": specs}
        gateway = Gateway(RouterSettings(**{**defaults, **settings}), RouterMetrics(CollectorRegistry()))
        service = RouterService(gateway)
        sock = bind("127.0.0.1", 0)
        await service.start(sock)
        router = Router(service, sock.getsockname()[1])
        routers.append(router)
        if ready:
            await until(lambda: all(e.candidate.healthy for e in gateway.fleet))
        return router

    yield start
    for router in routers:
        await router.stop()


class Publisher:
    """A publisher that a test scripts, on the ports of ranks 0 and up."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []
        self.numbers: list[int] = []
        self.subscribed: set[int] = set()
        self.port = 0

    def bind(self, ranks: int = 1) -> int:
        for base in range(20_000, 60_000, 37):
            made = [self.context.socket(zmq.XPUB) for _ in range(ranks)]
            try:
                for rank, socket in enumerate(made):
                    socket.setsockopt(zmq.LINGER, 0)
                    socket.bind(f"tcp://127.0.0.1:{base + rank}")
            except zmq.ZMQError:
                for socket in made:
                    socket.close()
                continue
            self.sockets, self.numbers, self.port = made, [0] * ranks, base
            return base
        raise OSError("no free ports")

    def send(self, payload: bytes, rank: int = 0) -> None:
        """The subscription comes after the handshake by which a router calls its stream live: what is sent before it
        is lost."""
        if rank not in self.subscribed:
            assert self.sockets[rank].poll(20_000), "no subscription came"
            self.subscribed.add(rank)
        number, self.numbers[rank] = self.numbers[rank], self.numbers[rank] + 1
        self.sockets[rank].send_multipart([b"", number.to_bytes(8, "big"), payload])

    def stored(self, tokens: list[int], name: bytes = b"x", rank: int = 0, size: int = 16, **fields: Any) -> None:
        names = [name + bytes([n]) for n in range(len(tokens) // size)]
        event = {
            "type": "BlockStored", "block_hashes": names, "parent_block_hash": None, "token_ids": tokens,
            "block_size": size, "lora_id": None, "medium": "GPU", "lora_name": None, **fields,
        }  # fmt: skip
        self.send(msgspec.msgpack.encode([0.0, [event], rank]), rank)

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher()
    yield made
    made.close()


SERVER_SPAN = 2


@dataclass
class Seen:
    """A span as the collector got it."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    state: str
    begun: int
    ended: int
    error: str | None
    facts: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """An OTLP collector: an engine of the harness whose calls are read as spans."""

    engine: Any

    @property
    def spans(self) -> list[Seen]:
        return [span for call in self.engine.calls for span in read_spans(call.body)]

    def of(self, name: str) -> list[Seen]:
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.begun)

    @property
    def roots(self) -> list[Seen]:
        return [span for span in self.spans if span.kind == SERVER_SPAN]


def read_spans(body: bytes) -> Iterator[Seen]:
    for found in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = facts(found.resource.attributes)
        for span in found.scope_spans[0].spans:
            yield Seen(
                span.name,
                span.kind,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.trace_state,
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                span.status.message if span.status.code == 2 else None,
                facts(span.attributes),
                resource,
            )


def facts(attributes: Any) -> dict[str, Any]:
    return {kv.key: getattr(kv.value, kv.value.WhichOneof("value")) for kv in attributes}


@pytest.fixture
async def collector(engines: Any, monkeypatch: pytest.MonkeyPatch) -> Collector:
    monkeypatch.setattr("tonnage_router.trace_exporter.EVERY_S", 0.01)
    (engine,) = await engines()
    return Collector(engine)
