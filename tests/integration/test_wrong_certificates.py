"""Certificates that no caller may believe, plain HTTP where TLS is spoken and TLS where it is not: one clear error, and
not a byte of a request told."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from prometheus_client import CollectorRegistry

from tonnage_bench.adapters.desk_http import HttpDesk
from tonnage_bench.adapters.planner_http import post_points
from tonnage_bench.errors import DeskError
from tonnage_bench.ports import Ref
from tonnage_coldstart.errors import SourceError
from tonnage_coldstart.sources.http_client import HttpClient
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.plain_http import ask
from tonnage_loadgen.target import parse_target
from tonnage_operator.adapters.http import Caller, CallError
from tonnage_planner.adapters.scrape_http import HttpScraper
from tonnage_planner.ports import ScrapeError
from tonnage_runtime import tls as tls_files
from tonnage_runtime.access import OwnToken, SharedToken
from tonnage_runtime.http_app import bind, build_base_app, serve
from tonnage_runtime.tls import Tls, client_context, server_context

HOST = "localhost"
TOKEN = "do-not-tell-this-token"
NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path / "ca.crt"


class _Told(logging.Handler):
    """Reasons that were logged."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.reasons.append(str(record.__dict__["reason"]))


async def by_planner(url: str, ca: Path) -> None:
    token = OwnToken(ca.parent / "token")
    async with HttpScraper(timeout_s=30.0, body_limit_bytes=10_000, concurrency=1, token=token, ca_file=ca) as scraper:
        await scraper.text(url + "/v1/gpus")


async def by_operator(url: str, ca: Path) -> None:
    caller = Caller(30.0, OwnToken(ca.parent / "token"), ca)
    try:
        await asyncio.to_thread(caller.text, "GET", url)
    finally:
        caller.close()


async def by_node(url: str, ca: Path) -> None:
    client = HttpClient(timeout_s=30.0, ca_file=str(ca))
    try:
        await asyncio.to_thread(client.request, "GET", url, {"authorization": TOKEN})
    finally:
        client.close()


async def by_bench(url: str, ca: Path) -> None:
    told = _Told()
    logging.getLogger("tonnage.bench").addHandler(told)
    try:
        outcome = await post_points(url, "a,b\n", f"Bearer {TOKEN}", client_context(ca))
    finally:
        logging.getLogger("tonnage.bench").removeHandler(told)
    if outcome == "unreachable":
        raise DeskError("; ".join(told.reasons))


async def by_worker(url: str, ca: Path) -> None:
    async with HttpDesk(url, SharedToken(TOKEN), client_context(ca)) as desk:
        await desk.beat(Ref("job", 1, 1), "worker", 0.0)


async def by_generator(url: str, ca: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", str(ca))
        await ask(parse_target(url), "/", headers=(("authorization", TOKEN),), timeout_s=30.0)


CALLERS: dict[str, Callable[[str, Path], Awaitable[None]]] = {
    "planner": by_planner,
    "operator": by_operator,
    "node": by_node,
    "bench": by_bench,
    "bench worker": by_worker,
    "load generator": by_generator,
}
ERRORS = (ScrapeError, CallError, SourceError, DeskError, TargetError)


def pair(folder: Path, issued: trustme.LeafCert) -> Tls:
    """The files of a certificate."""
    folder.mkdir(exist_ok=True)
    files = Tls(str(folder / "tls.crt"), str(folder / "tls.key"))
    (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
    (folder / "tls.crt").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return files


@pytest.fixture(scope="module")
def wrong(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> list[Tls]:
    """Expired, not yet valid, for another name, a stranger's, self-signed."""
    folder, stranger = tmp_path_factory.mktemp("wrong"), trustme.CA()
    (folder / "own.key").write_bytes(stranger.private_key_pem.bytes())
    (folder / "own.crt").write_bytes(stranger.cert_pem.bytes())
    return [
        pair(folder / "0", authority.issue_cert(HOST, not_before=NOW - 9 * DAY, not_after=NOW - DAY)),
        pair(folder / "1", authority.issue_cert(HOST, not_before=NOW + DAY, not_after=NOW + 9 * DAY)),
        pair(folder / "2", authority.issue_cert("else.where")),
        pair(folder / "3", stranger.issue_cert(HOST)),
        Tls(str(folder / "own.crt"), str(folder / "own.key")),
    ]


@pytest.fixture(scope="module")
def good(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return pair(tmp_path_factory.mktemp("good"), authority.issue_cert(HOST))


@dataclass
class Heard:
    """A port, and what was said to it once its connection was safe, or was thought so."""

    port: int = 0
    said: bytearray = field(default_factory=bytearray)


@asynccontextmanager
async def listening(context: ssl.SSLContext | None) -> AsyncIterator[Heard]:
    heard = Heard()

    async def serving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.said += await reader.read(4096)
        writer.write(b"HTTP/1.1 400 no\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(serving, "127.0.0.1", 0, ssl=context)
    heard.port = server.sockets[0].getsockname()[1]
    async with server:
        yield heard


async def refused(caller: str, url: str, ca: Path) -> str:
    """What the caller says of it: one line that can be read and holds no token."""
    with pytest.raises(ERRORS) as caught:
        await CALLERS[caller](url, ca)
    told = str(caught.value)
    assert told.isprintable()
    assert TOKEN not in told
    return told


@pytest.mark.parametrize("caller", CALLERS)
async def test_a_caller_says_nothing_to_a_certificate_that_it_may_not_believe(
    caller: str, wrong: list[Tls], good: Tls, ca_file: Path
) -> None:
    for files in wrong:
        async with listening(server_context(files)) as heard:
            assert "certificate" in (await refused(caller, f"https://{HOST}:{heard.port}", ca_file)).lower()
            assert not heard.said
    async with listening(server_context(good)) as heard:
        with contextlib.suppress(*ERRORS):  # of the answer, which is a refusal
            await CALLERS[caller](f"https://{HOST}:{heard.port}", ca_file)
        assert TOKEN.encode() in heard.said


@asynccontextmanager
async def part(tls: Tls | None) -> AsyncIterator[int]:
    """The port of a part's application."""
    stop, sock = asyncio.Event(), bind("127.0.0.1", 0)
    app = build_base_app("part", CollectorRegistry())
    serving = asyncio.create_task(serve(app, sock, drain_timeout_s=1, stop=stop, tls=tls))
    try:
        yield sock.getsockname()[1]
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize("caller", CALLERS)
async def test_the_wrong_one_of_http_and_https_is_one_clear_error_and_harms_nobody(
    caller: str, good: Tls, ca_file: Path
) -> None:
    for tls, other, right in ((good, "http", "https"), (None, "https", "http")):
        async with part(tls) as port:
            assert await refused(caller, f"{other}://{HOST}:{port}", ca_file)
            client = HttpClient(timeout_s=30.0, ca_file=str(ca_file))
            found = await asyncio.to_thread(client.request, "GET", f"{right}://{HOST}:{port}/healthz", {})
            assert found.status == 200
            client.drop(found)
            client.close()


async def test_a_certificate_that_turns_to_rubbish_is_told_once_and_the_old_one_stays(
    authority: trustme.CA,
    ca_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks: list[Tls] = []

    def looked(tls: Tls) -> ssl.SSLContext:
        looks.append(tls)
        return server_context(tls)

    monkeypatch.setattr(tls_files, "CERTIFICATE_LOOK_S", 0.01)
    monkeypatch.setattr(tls_files, "server_context", looked)
    files = pair(tmp_path, authority.issue_cert(HOST))
    client = HttpClient(timeout_s=30.0, ca_file=str(ca_file))

    def asked(port: int) -> bytes:
        client.forget()
        return client.read(client.request("GET", f"https://{HOST}:{port}/healthz", {}), 100)

    async with part(files) as port:
        assert await asyncio.to_thread(asked, port) == b'{"status":"ok"}'
        for _ in range(2):
            caplog.clear()
            wanted = len(looks) + 4
            (tmp_path / "tls.crt").write_bytes(b"rubbish")
            async with asyncio.timeout(60):
                while len(looks) < wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await asyncio.to_thread(asked, port) == b'{"status":"ok"}'
            (told,) = [each for each in caplog.records if each.getMessage() == "certificate not renewed"]
            assert "give a PEM certificate" in told.__dict__["reason"]
            looks.clear()
            pair(tmp_path, authority.issue_cert(HOST))
            async with asyncio.timeout(60):
                while not looks:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    client.close()
