"""How spans get to a collector, and that no collector can harm requests."""

import asyncio
import gzip
import re
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tonnage_router import trace_exporter
from tonnage_router.settings import RouterSettings

CHAT = b'{"model":"m","messages":[]}'


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_exporter, "EVERY_S", 0.01)
    monkeypatch.setattr(trace_exporter, "WAITS_S", (0.01, 0.02))


async def test_a_collector_over_tls_is_believed_by_its_authority(engines: Any, route: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(re.findall(rb"content-length: (\d+)", head)[0])
        bodies.append(head + await reader.readexactly(size))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    (engine,) = await engines()
    url = f"https://127.0.0.1:{port}"
    believing = await route([engine], otlp_endpoint=url, otlp_ca_file=tmp_path / "ca.pem", otlp_headers="x-key=k%2B1")
    doubting = await route([engine], otlp_endpoint=url)
    for router in (believing, doubting):
        await router.post(CHAT)
    counted = believing.gateway.metrics.trace_spans, doubting.gateway.metrics.trace_spans
    await believing.until(lambda: counted == ({"exported": 2}, {"failed": 2}))
    assert len(bodies) == 1 and b"\r\nx-key: k+1\r\n" in bodies[0]
    server.close()
    await server.wait_closed()


PARTIAL = ExportTraceServiceResponse()
PARTIAL.partial_success.rejected_spans = 1
ANSWERS = {
    "redirect": (b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "failed"),
    "bad request": (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", "failed"),
    "too large": (b"HTTP/1.1 413 Too Large\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n", "failed"),
    "always busy": (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", "failed"),
    "no HTTP": (b"\x00\xff nonsense\r\n\r\n", "failed"),
    "an upgrade": (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nxx", "failed"),
    "nothing": (b"", "failed"),
    "a bomb": (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + b"\xff" * (17 << 20), "failed"),
    "more than it got": (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\x0a\x02\x08\x63", "rejected"),
    "junk": (b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n" + b"\xff" * 20, "exported"),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_whatever_a_collector_answers_requests_are_served(kind: str, engines: Any, route: Any) -> None:
    answer, outcome = ANSWERS[kind]

    async def script(call: Any) -> None:
        call.writer.write(answer)
        call.writer.close()

    (hostile,), (engine,) = await engines(script=script), await engines()
    router = await route([engine], otlp_endpoint=hostile.url)
    assert (await router.post(CHAT)).status == 200
    counted = router.gateway.metrics.trace_spans
    await router.until(lambda: counted == {outcome: 2})
    tries = 3 if kind in ("always busy", "no HTTP", "an upgrade", "nothing", "a bomb") else 1
    assert len(hostile.calls) == tries
    assert (await router.post(CHAT)).status == 200, "it goes on"


async def test_a_batch_that_was_not_taken_is_sent_again(engines: Any, route: Any, collector: Any) -> None:
    async def later(call: Any) -> None:
        call.answer(b"", "200 OK" if len(call.engine.calls) > 1 else "503 Service Unavailable")

    collector.engine.script = later
    (engine,) = await engines()
    router = await route([engine], otlp_endpoint=collector.engine.url)
    await router.post(CHAT)
    await router.until(lambda: router.gateway.metrics.trace_spans == {"exported": 2})
    assert collector.engine.calls[0].body == collector.engine.calls[1].body


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_a_collector_says_when_to_come_back(
    status: str, engines: Any, route: Any, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def later(call: Any) -> None:
        call.answer(b"", "200 OK" if len(call.engine.calls) > 1 else status, b"Retry-After: 0\r\n")

    monkeypatch.setattr(trace_exporter, "WAITS_S", (3600.0,))
    collector.engine.script = later
    (engine,) = await engines()
    router = await route([engine], otlp_endpoint=collector.engine.url)
    await router.post(CHAT)
    await router.until(lambda: router.gateway.metrics.trace_spans == {"exported": 2})


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        (" 7 ", 7.0),
        ("0", 0.0),
        ("86400", 60.0),
        ("9" * 5000, 60.0),
        ("Thu, 01 Jan 1970 00:01:45 GMT", 5.0),
        ("Thu, 01 Jan 1970 00:01:30 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 60.0),
        ("", None),
        ("-1", None),
        ("1e3", None),
        ("soon", None),
        ("\xb2", None),
    ],
)
def test_what_retry_after_asks_for_is_bounded(text: str, wait_s: float | None) -> None:
    assert trace_exporter.asked_wait_s(text, now=100.0) == wait_s


async def test_batches_are_compressed_where_that_is_asked_for(engines: Any, route: Any, collector: Any) -> None:
    (engine,) = await engines()
    url = f"{collector.engine.url}/all/spans"
    router = await route([engine], otlp_traces_endpoint=url, otlp_compression="gzip")
    await router.post(CHAT)
    await router.until(lambda: router.gateway.metrics.trace_spans == {"exported": 2})
    (sent,) = collector.engine.calls
    assert sent.head.startswith(b"POST /all/spans ") and b"\r\ncontent-encoding: gzip\r\n" in sent.head
    (spans,) = ExportTraceServiceRequest.FromString(gzip.decompress(sent.body)).resource_spans[0].scope_spans
    assert len(spans.spans) == 2


async def test_spans_that_a_collector_leaves_out_are_counted(engines: Any, route: Any, collector: Any) -> None:
    async def partly(call: Any) -> None:
        call.answer(PARTIAL.SerializeToString())

    collector.engine.script = partly
    (engine,) = await engines()
    router = await route([engine], otlp_endpoint=collector.engine.url)
    await router.post(CHAT)
    await router.until(lambda: router.gateway.metrics.trace_spans == {"exported": 1, "rejected": 1})


async def test_a_collector_that_hangs_costs_bounded_memory_and_no_request(
    engines: Any, route: Any, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(call: Any) -> None:
        await call.reader.read(1)

    collector.engine.script = hang
    monkeypatch.setattr(trace_exporter, "QUEUE_BYTES", 4000)
    monkeypatch.setattr(trace_exporter, "FLUSH_S", 0.05)
    monkeypatch.setattr(trace_exporter, "SEND_TIMEOUT_S", 600.0)
    (engine,) = await engines()
    router = await route([engine], otlp_endpoint=collector.engine.url)
    client = await router.client()
    assert {(await client.post(CHAT)).status for _ in range(40)} == {200}
    counted = router.gateway.metrics.trace_spans
    assert counted["dropped"] >= 40
    await router.service.stop()
    assert counted["dropped"] + counted["failed"] == 80, "each span is accounted for when the router stops"


async def test_a_call_that_does_not_end_is_given_up(
    engines: Any, route: Any, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drip(call: Any) -> None:
        call.writer.write(b"HTTP/1.1 200 OK\r\n")
        await call.reader.read(1)

    collector.engine.script = drip
    monkeypatch.setattr(trace_exporter, "SEND_TIMEOUT_S", 0.05)
    (engine,) = await engines()
    router = await route([engine], otlp_endpoint=collector.engine.url)
    assert (await router.post(CHAT)).status == 200
    await router.until(lambda: router.gateway.metrics.trace_spans == {"failed": 2})


def test_room_is_what_the_spans_that_still_wait_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_exporter, "QUEUE_BYTES", 1000)
    monkeypatch.setattr(trace_exporter, "BATCH_BYTES", 200)
    exporter = trace_exporter.TraceExporter(RouterSettings(otlp_endpoint="http://127.0.0.1:9"), {})
    for _ in range(10):
        assert exporter.has_room(1)
        exporter.add(b"x" * 100, 1)
    assert not exporter.has_room(1)
    assert exporter._next() is not None, "takes two"
    for _ in range(2):
        assert exporter.has_room(1)
        exporter.add(b"x" * 100, 1)
    assert not exporter.has_room(1)


async def test_nobody_at_the_address_is_no_matter_and_what_is_left_is_sent_at_the_end(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_exporter, "EVERY_S", 60.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        (engine,) = await engines()
        lost = await route([engine], otlp_endpoint=f"http://127.0.0.1:{port}")
        assert (await lost.post(CHAT)).status == 200
        await lost.service.stop()
    assert lost.gateway.metrics.trace_spans == {"failed": 2}
    (there,) = await engines()
    router = await route([engine], otlp_endpoint=there.url + "/base/")
    assert (await router.post(CHAT)).status == 200
    await router.service.stop()
    assert router.gateway.metrics.trace_spans == {"exported": 2}
    assert there.calls[0].head.startswith(b"POST /base/v1/traces ")
