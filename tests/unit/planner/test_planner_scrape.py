"""Scrapes against real sockets on loopback: deadline, size, errors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tonnage_core.autoscaling.observation import Outcome
from tonnage_planner.adapters import scrape_http
from tonnage_planner.adapters.scrape_http import HttpScraper
from tonnage_planner.ports import ScrapeError
from tonnage_planner.settings import EndpointSettings

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[str]:
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(handle(reader, writer)))

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics"
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers)


def body(content: bytes, *, status: str = "200 OK", length: int | None = None) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        size = len(content) if length is None else length
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {size}\r\n\r\n".encode() + content)
        await writer.drain()

    return answer


async def hang(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nvllm:")
    await asyncio.sleep(0.5)


async def pour(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        await writer.drain()


def scraper(*, timeout_s: float = 2.0) -> HttpScraper:
    return HttpScraper(timeout_s=timeout_s, body_limit_bytes=10_000, concurrency=4)


async def test_gives_the_body_as_text() -> None:
    async with server(body("a 1 # é\n".encode())) as url, scraper() as scrape:
        assert await scrape.text(url) == "a 1 # é\n"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        pytest.param(body(b"no", status="503 Busy"), Outcome.HTTP_ERROR, id="status"),
        pytest.param(body(b"", status="302 Found"), Outcome.HTTP_ERROR, id="redirect"),
        pytest.param(body(b"\xff\xfe"), Outcome.UNPARSABLE, id="not utf-8"),
        pytest.param(body(b"x" * 10_001), Outcome.TOO_LARGE, id="declared too large"),
        pytest.param(pour, Outcome.TOO_LARGE, id="endless"),
        pytest.param(body(b"a 1\n", length=900), Outcome.UNREACHABLE, id="cut off"),
        pytest.param(body(b"", status="teapot"), Outcome.UNREACHABLE, id="not http"),
    ],
)
async def test_every_failure_has_its_outcome(answer: Answer, outcome: Outcome) -> None:
    async with server(answer) as url, scraper() as scrape:
        with pytest.raises(ScrapeError) as caught:
            await scrape.text(url)
    assert caught.value.outcome is outcome


async def test_the_deadline_covers_the_whole_body() -> None:
    async with server(hang) as url, scraper(timeout_s=0.2) as scrape:
        with pytest.raises(ScrapeError, match=r"no complete answer in 0\.2 s"):
            await scrape.text(url)


async def test_nobody_listening_is_unreachable() -> None:
    async with server(body(b"")) as url:
        pass
    async with scraper() as scrape:
        with pytest.raises(ScrapeError) as caught:
            await scrape.text(url)
    assert caught.value.outcome is Outcome.UNREACHABLE


async def test_a_name_is_every_one_of_its_addresses() -> None:
    async with scraper() as scrape:
        assert await scrape.addresses("http://localhost:8001/base") == ["http://127.0.0.1:8001/base"]
        assert await scrape.addresses("https://localhost:8001") == ["https://127.0.0.1:8001"]
        with pytest.raises(ScrapeError, match="no-such-host"):
            await scrape.addresses("http://no-such-host.invalid:1")


async def test_a_name_that_leads_to_a_refused_address_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: asyncio.Queue[bytes] = asyncio.Queue()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait(await reader.read(-1))
        writer.close()

    monkeypatch.setattr(scrape_http, "refused_address", lambda address: f"its address is {address}")
    listening = await asyncio.start_server(note, "127.0.0.1", 0)
    async with listening, scraper() as scrape:
        url = f"http://localhost:{listening.sockets[0].getsockname()[1]}/metrics"
        for call in (scrape.text, scrape.post):
            with pytest.raises(ScrapeError, match=r"its address is 127\.0\.0\.1") as caught:
                await call(url)
            assert caught.value.outcome is Outcome.UNREACHABLE
            assert await asyncio.wait_for(asked.get(), 30) == b""


def test_an_address_that_hands_out_credentials_is_no_endpoint() -> None:
    with pytest.raises(ValueError, match=r"its address is 169\.254\.169\.254"):
        EndpointSettings(url="http://169.254.169.254/latest")
