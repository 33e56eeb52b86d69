"""Clients that go away."""

import asyncio
import json

import pytest

from .conftest import Sim, Start, until


async def gone_after(sim: Sim, body: dict[str, object], read: bytes) -> None:
    """Send a completion, read until `read` comes, close the connection."""
    host, port = sim.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (len(data), data)
    )
    await writer.drain()
    if read:
        await reader.readuntil(read)
    else:
        await until(lambda: sim.app.service.loop.busy)
    writer.transport.abort()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_the_engine_drops_what_nobody_reads(start: Start, stream: bool, n: int) -> None:
    sim = await start(time_scale=1.0)
    body = {"prompt": [[7] * 40, [8] * 40], "max_tokens": 2000, "ignore_eos": True, "n": n, "stream": stream}
    await gone_after(sim, body, b"data:" if stream else b"")
    await until(lambda: not sim.app.service.loop.busy)
    stats = sim.app.service.loop.stats
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert stats.counters.aborted == 2 * n


async def test_a_request_still_waiting_is_dropped_too(start: Start) -> None:
    sim = await start(time_scale=1.0, max_num_seqs=1)
    first = asyncio.create_task(sim.complete([7] * 40, max_tokens=2000))
    await until(lambda: sim.app.service.loop.stats.running == 1)
    await gone_after(sim, {"prompt": [8] * 40, "max_tokens": 10}, b"")
    await until(lambda: sim.app.service.loop.stats.waiting == 0)
    assert sim.app.service.loop.stats.running == 1
    first.cancel()
    await until(lambda: not sim.app.service.loop.busy)


async def test_a_client_that_reads_slowly_gets_every_token(start: Start) -> None:
    sim = await start(time_scale=5000.0, max_model_len=16000, num_blocks=2000)
    host, port = sim.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 12)
    data = json.dumps({"prompt": "a", "max_tokens": 15_000, "ignore_eos": True, "stream": True}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (len(data), data)
    )
    await until(lambda: sim.app.service.loop.stats.counters.generation_tokens == 15_000)
    answer = await reader.readuntil(b"\r\n\r\n")
    received = bytearray()
    while not received.endswith(b"0\r\n\r\n"):
        received += await reader.read(1 << 16)
    writer.close()
    await writer.wait_closed()
    assert b"200 OK" in answer
    assert received.count(b"data: {") == 15_000


async def test_stopping_lets_requests_end(start: Start) -> None:
    from tonnage_runtime.http_app import bind
    from tonnage_sim.http1.server import Server

    sim = await start(time_scale=20.0)
    server = Server(sim.app)
    sock = bind("127.0.0.1", 0)
    await server.start(sock)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    work = asyncio.create_task(sim.http.post(url + "/v1/completions", json={"prompt": "a", "max_tokens": 100}))
    await until(lambda: sim.app.service.loop.busy)
    await server.stop(30.0)
    assert (await work).status_code == 200
