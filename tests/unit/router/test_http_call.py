"""Small calls to engines: one connection kept for many, and every way in which an answer can be cut."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tonnage_router.adapters import http_call
from tonnage_router.adapters.http_call import KeptConnection, call
from tonnage_router.errors import ProbeError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Answer = Callable[[asyncio.StreamWriter, int], Awaitable[None]]


class Engine:
    """Answers each request head by `answer(writer, number of the request)`."""

    def __init__(self) -> None:
        self.connections = 0
        self.ended: asyncio.Queue[None] = asyncio.Queue()
        self.heads: list[bytes] = []
        self.answer: Answer = self.ok
        self.writers: list[asyncio.StreamWriter] = []

    async def ok(self, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(OK)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await self.answer(writer, len(self.heads))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended.put_nowait(None)
            writer.close()


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, int]]:
    made = Engine()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield made, server.sockets[0].getsockname()[1]
    server.close()
    for writer in made.writers:
        writer.transport.abort()


async def test_calls_go_over_one_connection(engine: tuple[Engine, int]) -> None:
    seen, port = engine
    kept = KeptConnection("127.0.0.1", port)
    for _ in range(5):
        answer = await kept.get("/metrics", timeout_s=20)
        assert (answer.status, answer.body) == (200, b"ok")
    assert (seen.connections, len(seen.heads)) == (1, 5)
    assert b"connection: close" not in seen.heads[0]
    kept.close()
    await kept.get("/metrics", timeout_s=20)
    assert seen.connections == 2
    kept.close()


async def test_a_renewed_connection_is_kept_in_place_of_the_last(engine: tuple[Engine, int]) -> None:
    seen, port = engine
    kept = KeptConnection("127.0.0.1", port)
    await kept.get("/metrics", timeout_s=20)
    for number in (2, 3):
        assert (await kept.renewed("/health", timeout_s=20)).body == b"ok"
        assert (await kept.get("/metrics", timeout_s=20)).body == b"ok"
        assert seen.connections == number
        await asyncio.wait_for(seen.ended.get(), 20)  # the one before
    kept.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), None),
        (b"no http\r\n\r\n", "GET /health: "),
    ],
    ids=["says close", "fails"],
)
async def test_a_renewal_that_fails_or_cannot_be_kept_closes_the_last_connection_too(
    engine: tuple[Engine, int], answer: bytes, problem: str | None
) -> None:
    seen, port = engine
    kept = KeptConnection("127.0.0.1", port)
    await kept.get("/metrics", timeout_s=20)

    async def ends(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(answer)

    seen.answer = ends
    if problem is None:
        assert (await kept.renewed("/health", timeout_s=20)).body == b"ok"
    else:
        with pytest.raises(ProbeError, match=problem):
            await kept.renewed("/health", timeout_s=20)
    for _ in range(2):
        await asyncio.wait_for(seen.ended.get(), 20)
    seen.answer = seen.ok
    await kept.get("/metrics", timeout_s=20)
    assert seen.connections == 3
    kept.close()


async def test_the_last_connection_is_closed_before_the_new_one_is_asked(engine: tuple[Engine, int]) -> None:
    seen, port = engine
    kept = KeptConnection("127.0.0.1", port)
    await kept.get("/metrics", timeout_s=20)

    async def once_the_last_has_ended(writer: asyncio.StreamWriter, number: int) -> None:
        await seen.ended.get()
        writer.write(OK)

    seen.answer = once_the_last_has_ended
    assert (await kept.renewed("/health", timeout_s=20)).body == b"ok"
    kept.close()


async def test_a_key_is_sent_where_it_is_given(engine: tuple[Engine, int]) -> None:
    seen, port = engine
    kept = KeptConnection("127.0.0.1", port)
    await kept.get("/v1/models", timeout_s=20, api_key="s3cret")
    await kept.get("/metrics", timeout_s=20)
    await kept.renewed("/health", timeout_s=20)
    assert [b"authorization: Bearer s3cret\r\n" in head for head in seen.heads] == [True, False, False]
    kept.close()


async def test_a_connection_that_the_engine_closed_meanwhile_is_made_anew(engine: tuple[Engine, int]) -> None:
    seen, port = engine
    kept = KeptConnection("127.0.0.1", port)
    await kept.get("/metrics", timeout_s=20)

    async def closes(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 2:
            writer.transport.abort()
        else:
            writer.write(OK)

    seen.answer = closes
    assert (await kept.get("/metrics", timeout_s=20)).body == b"ok"
    assert (seen.connections, len(seen.heads)) == (2, 3)
    kept.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", "closed before the end of its answer"),
        (b"HTTP/1.1 200 OK\r\nconte", "closed before the end of its answer"),
        (b"", "closed without an answer"),
        (b"no http\r\n\r\n", "Expected HTTP/"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", "closed before the end of its answer"),
        (b"HTTP/1.1 000 None\r\ncontent-length: 0\r\n\r\n", "GET /health: "),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "GET /health: "),
    ],
)
async def test_what_is_no_whole_answer_is_said(engine: tuple[Engine, int], answer: bytes, problem: str) -> None:
    seen, port = engine

    async def cut(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(answer)
        writer.close()

    seen.answer = cut
    with pytest.raises(ProbeError, match=problem):
        await call("127.0.0.1", port, "/health", timeout_s=20)
    with pytest.raises(ProbeError, match=problem):
        await KeptConnection("127.0.0.1", port).get("/health", timeout_s=20)


async def test_a_kept_connection_cut_in_an_answer_is_a_problem_and_the_next_call_a_new_one(
    engine: tuple[Engine, int],
) -> None:
    seen, port = engine
    kept = KeptConnection("127.0.0.1", port)
    await kept.get("/metrics", timeout_s=20)

    async def cut(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(OK[:-1])
        writer.close()

    seen.answer = cut
    with pytest.raises(ProbeError, match="closed before the end"):
        await kept.get("/metrics", timeout_s=20)
    assert len(seen.heads) == 2, "what was half answered is not asked again"
    seen.answer = seen.ok
    assert (await kept.get("/metrics", timeout_s=20)).body == b"ok"
    kept.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        OK + OK,
        OK + b"more",
    ],
    ids=["says so", "without a length", "a second answer", "bytes after it"],
)
async def test_a_connection_that_cannot_be_used_again_is_not(engine: tuple[Engine, int], answer: bytes) -> None:
    seen, port = engine

    async def once(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(answer)
        if b"content-length" not in answer:
            writer.close()

    seen.answer = once
    kept = KeptConnection("127.0.0.1", port)
    for _ in range(3):
        assert (await kept.get("/metrics", timeout_s=20)).body == b"ok"
    assert seen.connections == 3
    kept.close()


async def test_an_interim_answer_is_not_the_answer(engine: tuple[Engine, int]) -> None:
    seen, port = engine

    async def twice(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK)

    seen.answer = twice
    answer = await call("127.0.0.1", port, "/health", timeout_s=20)
    assert (answer.status, answer.body) == (200, b"ok")


async def test_silence_ends_in_time_and_leaves_nothing(engine: tuple[Engine, int]) -> None:
    seen, port = engine

    async def silent(writer: asyncio.StreamWriter, number: int) -> None:
        if number > 2:
            writer.write(OK)

    seen.answer = silent
    kept = KeptConnection("127.0.0.1", port)
    with pytest.raises(ProbeError, match=r"GET /metrics: no answer in 0.05 s"):
        await call("127.0.0.1", port, "/metrics", timeout_s=0.05)
    with pytest.raises(ProbeError, match=r"GET /metrics: no answer in 0.05 s"):
        await kept.get("/metrics", timeout_s=0.05)
    assert (await kept.get("/metrics", timeout_s=20)).body == b"ok"
    assert seen.connections == 3
    async with asyncio.timeout(20):
        for _ in range(2):
            await seen.ended.get()
    kept.close()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: "], ids=["body", "head"])
async def test_an_answer_that_does_not_end_is_left(
    engine: tuple[Engine, int], head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_call, "MAX_ANSWER_BYTES", 100_000)
    seen, port = engine

    async def endless(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(head)
        while not writer.transport.is_closing():
            writer.write(b"x" * 10_000)
            await asyncio.sleep(0)

    seen.answer = endless
    with pytest.raises(ProbeError, match="larger than 100000 bytes"):
        await call("127.0.0.1", port, "/metrics", timeout_s=20)
    async with asyncio.timeout(20):
        await seen.ended.get()


async def test_nobody_there_is_said() -> None:
    with pytest.raises(ProbeError, match="GET /metrics: "):
        await KeptConnection("127.0.0.1", 1).get("/metrics", timeout_s=20)


async def test_a_call_given_up_while_it_connects_leaves_no_error_behind(engine: tuple[Engine, int]) -> None:
    _, port = engine
    told: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    for turns in range(400):
        task = loop.create_task(call("127.0.0.1", port, "/health", timeout_s=20))
        for _ in range(turns % 8):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.1)
    gc.collect()
    assert not told


async def test_bytes_that_nobody_asked_for_cost_the_connection(engine: tuple[Engine, int]) -> None:
    seen, port = engine
    kept = KeptConnection("127.0.0.1", port)
    await kept.get("/metrics", timeout_s=20)
    seen.writers[0].write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong")
    await seen.writers[0].drain()
    await asyncio.sleep(0.05)
    assert (await kept.get("/metrics", timeout_s=20)).body == b"ok"
    assert seen.connections == 2
    kept.close()
