"""The HTTP server under a simulated engine, byte by byte."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from .conftest import Sim

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(sim: Sim) -> AsyncIterator[Pipe]:
    host, port = sim.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one whole response."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(length)


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return ("\r\n".join(lines) + f"\r\ncontent-length: {len(body)}\r\n\r\n").encode() + body


async def test_requests_on_one_connection_are_answered_in_order(sim: Sim) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(
            post("/tokenize", b'{"prompt":"a"}')
            + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
            + post("/tokenize", b'{"prompt":"abc"}')
        )
        bodies = [(await answer(reader))[1] for _ in range(3)]
    assert b'"count":1' in bodies[0]
    assert bodies[1] == b'{"version":"0.32.0"}'
    assert b'"count":3' in bodies[2]


async def test_a_request_may_follow_a_stream_on_its_connection(sim: Sim) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(post("/v1/completions", b'{"prompt":"a","max_tokens":3,"ignore_eos":true,"stream":true}'))
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await answer(reader))[1] == b'{"version":"0.32.0"}'


async def test_a_body_may_come_in_chunks(sim: Sim) -> None:
    async with connected(sim) as (reader, writer):
        head = b"POST /tokenize HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b'8\r\n{"prompt\r\n')
        await writer.drain()
        writer.write(b'6\r\n":"a"}\r\n0\r\n\r\n')
        assert b'"count":1' in (await answer(reader))[1]


async def test_a_client_that_asks_first_is_told_to_go_on(sim: Sim) -> None:
    request = post("/tokenize", b'{"prompt":"a"}', "expect: 100-continue")
    async with connected(sim) as (reader, writer):
        writer.write(request[: -len(b'{"prompt":"a"}')])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b'{"prompt":"a"}')
        assert b'"count":1' in (await answer(reader))[1]


async def test_head_has_no_body(sim: Sim) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\nGET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"405 Method Not Allowed" in await reader.readuntil(b"\r\n\r\n")
        assert (await answer(reader))[1] == b'{"version":"0.32.0"}'


@pytest.mark.parametrize("version, header", [("1.0", ""), ("1.1", "connection: close\r\n")])
async def test_the_connection_closes_when_the_client_wants_it(sim: Sim, version: str, header: str) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(f"GET /version HTTP/{version}\r\n{header}\r\n".encode())
        whole = await reader.read()
    assert whole.endswith(b'{"version":"0.32.0"}')
    assert b"connection: close" in whole


async def test_an_absolute_target_is_a_path(sim: Sim) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(b"GET http://x/version?a=1 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await answer(reader))[1] == b'{"version":"0.32.0"}'


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"],
)
async def test_what_is_not_http_is_refused_and_closed(sim: Sim, garbage: bytes) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(garbage)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_body_beyond_the_limit_is_refused_before_it_is_kept(sim: Sim) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(b"POST /tokenize HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n")
        piece = b"a" * (1 << 20)
        for _ in range(65):
            writer.write(piece)
        assert b"413" in await reader.readline()


async def test_headers_beyond_the_limit_are_refused(sim: Sim) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n" + b"x: %s\r\n" % (b"y" * 70_000) + b"\r\n")
        assert b"431" in await reader.readline()


async def test_an_upgrade_is_answered_as_a_plain_request_and_closed(sim: Sim) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x81\x00")
        whole = await reader.read()
    assert whole.startswith(b"HTTP/1.1 200 OK")
    assert whole.endswith(b'{"version":"0.32.0"}')


@pytest.mark.parametrize("tail", [b"0\r\nx: ", b"5;"], ids=["trailer", "chunk extension"])
async def test_a_trailer_or_chunk_extension_without_end_is_refused(sim: Sim, tail: bytes) -> None:
    async with connected(sim) as (reader, writer):
        writer.write(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + tail)
        await writer.drain()
        writer.write(b"a" * 200_000)
        assert b"431" in await asyncio.wait_for(reader.readline(), 10)
