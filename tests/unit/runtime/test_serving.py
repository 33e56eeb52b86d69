"""Serving: what every answer's head says, and how a server waits for its end."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from tonnage_runtime import http_app
from tonnage_runtime.http_app import bind, build_base_app, serve
from tonnage_runtime.metrics import new_registry


@pytest.fixture
async def port() -> AsyncIterator[int]:
    sock, stop = bind("127.0.0.1", 0), asyncio.Event()
    port = int(sock.getsockname()[1])
    serving = asyncio.create_task(serve(build_base_app("t", new_registry()), sock, stop=stop))
    yield port
    stop.set()
    await serving


async def asked(port: int) -> bytes:
    """The answer to a look at the server's health."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


async def test_each_answer_is_dated_and_says_who_serves(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 784111777.9
    monkeypatch.setattr(http_app, "time", SimpleNamespace(time=lambda: now))
    for second in (b"37", b"38"):
        lines = (await asked(port)).lower().split(b"\r\n")
        assert [line for line in lines if line.startswith((b"date:", b"server:"))] == [
            b"date: sun, 06 nov 1994 08:49:%b gmt" % second,
            b"server: uvicorn",
        ]
        now += 1


async def test_a_server_that_nobody_asks_does_not_wake(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await asked(port)
    loop, timers = asyncio.get_running_loop(), []
    plain = loop.call_at

    def call_at(when: float, *rest: object, **named: object) -> asyncio.TimerHandle:
        timers.append(rest[0])
        return plain(when, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", call_at)
    await asyncio.sleep(0.35)
    assert len(timers) == 1, "the test's own"


async def test_a_server_told_to_stop_before_it_has_started_ends() -> None:
    sock, stop = bind("127.0.0.1", 0), asyncio.Event()
    stop.set()
    async with asyncio.timeout(20):
        await serve(build_base_app("t", new_registry()), sock, stop=stop)
    assert sock.fileno() == -1
