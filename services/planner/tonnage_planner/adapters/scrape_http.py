"""Metrics bodies over HTTP: one deadline a scrape, a size limit, no redirects, no proxies."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tonnage_core.addresses import refused_address
from tonnage_core.autoscaling.observation import Outcome
from tonnage_planner.ports import ScrapeError
from tonnage_runtime.access import OwnToken
from tonnage_runtime.tls import client_context

OWN_APIS = ("/admin/", "/v1/gpus", "/v1/profiles", "/v1/probe", "/v1/cache", "/v1/stage", "/v1/starts")
_HEADERS = {"accept": "text/plain;version=0.0.4", "accept-encoding": "identity", "user-agent": "tonnage-planner"}


async def _look_at_peer(event: str, about: dict[str, Any]) -> None:
    """Close a connection before a byte is sent when it stands to an address that nothing is fetched from: endpoint
    lists and names are written by others. httpx tells of each step of a request that has to connect."""
    if event != "connection.connect_tcp.complete":
        return
    stream, peer = about["return_value"], None
    with contextlib.suppress(OSError):  # it is gone already
        peer = stream.get_extra_info("server_addr")
    if (why := refused_address(str(peer[0])) if peer else "the connection was closed at once") is not None:
        await stream.aclose()
        raise httpx.ConnectError(why)


class HttpScraper:
    """A connection pool for scrapes; use as an async context manager."""

    def __init__(
        self,
        *,
        timeout_s: float,
        body_limit_bytes: int,
        concurrency: int,
        token: OwnToken | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self._token = token
        self._timeout_s = timeout_s
        self._limit = body_limit_bytes
        self._slots = asyncio.Semaphore(concurrency)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
        self._client = httpx.AsyncClient(
            timeout=None, limits=limits, headers=_HEADERS, trust_env=False, verify=client_context(ca_file)
        )
        self._names: dict[tuple[str, int | None], str] = {}
        """The name that the certificate at an address and port must bear: the one that was resolved."""

    async def __aenter__(self) -> Self:
        """The scraper itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def text(self, url: str) -> str:
        """The body at `url`; raises `ScrapeError` with the outcome."""
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_s):
                    body = await self._body(url)
            except TimeoutError as error:
                raise ScrapeError(Outcome.TIMEOUT, f"no complete answer in {self._timeout_s:g} s") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ScrapeError(Outcome.UNREACHABLE, str(error) or type(error).__name__) from error
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise ScrapeError(Outcome.UNPARSABLE, "the body is not UTF-8") from error

    async def post(self, url: str) -> tuple[int, str]:
        """POST without a body: status and text, within the same deadline and size; raises `ScrapeError`."""
        try:
            async with asyncio.timeout(self._timeout_s), self._stream("POST", url) as response:
                return response.status_code, (await self._bounded(response)).decode("utf-8", "replace")
        except TimeoutError as error:
            raise ScrapeError(Outcome.TIMEOUT, f"no complete answer in {self._timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ScrapeError(Outcome.UNREACHABLE, str(error) or type(error).__name__) from error

    async def addresses(self, url: str) -> Sequence[str]:
        """`url` once for each IPv4 address of its host."""
        parsed = httpx.URL(url)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await loop.getaddrinfo(parsed.host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise ScrapeError(Outcome.TIMEOUT, f"{parsed.host} not resolved in {self._timeout_s:g} s") from error
        except OSError as error:
            raise ScrapeError(Outcome.UNREACHABLE, f"{parsed.host}: {error.strerror}") from error
        hosts = [str(address[4][0]) for address in found]
        if parsed.scheme == "https":
            self._names |= {(host, parsed.port): parsed.host for host in hosts if host != parsed.host}
        return sorted(str(parsed.copy_with(host=host)) for host in hosts)

    def _headers(self, url: str) -> dict[str, str]:
        """Our token for the APIs of Tonnage's own parts; engines, which are asked for metrics alone, never see it."""
        if self._token is None or not httpx.URL(url).path.startswith(OWN_APIS):
            return {}
        return {"authorization": self._token.header()}

    def _stream(self, method: str, url: str) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        asked = httpx.URL(url)
        named = {"sni_hostname": name} if (name := self._names.get((asked.host, asked.port))) is not None else {}
        extensions = {"trace": _look_at_peer, **named}
        return self._client.stream(method, url, headers=self._headers(url), extensions=extensions)

    async def _body(self, url: str) -> bytes:
        async with self._stream("GET", url) as response:
            if response.status_code != 200:
                raise ScrapeError(Outcome.HTTP_ERROR, f"HTTP status {response.status_code}")
            return await self._bounded(response)

    async def _bounded(self, response: httpx.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._limit:
                raise ScrapeError(Outcome.TOO_LARGE, f"more than {self._limit} bytes")
        return bytes(body)
