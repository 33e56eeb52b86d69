"""HTTP for weights: kept-alive connections a thread, bodies received straight into the caller's memory.

The standard library's client, since the body must land in a given buffer and every header must be seen; redirects are
followed by hand, so that credentials stay with their host.
"""

import http.client
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from tonnage_coldstart.errors import SourceError, TransientSourceError
from tonnage_coldstart.sources.guard import refused_host
from tonnage_core.addresses import refused_address, refused_literal
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.tls import client_context

MAX_REDIRECTS = 5
USER_AGENT = "tonnage"
CONNECTION_ERRORS = (OSError, http.client.HTTPException)
PRIVATE_HEADERS = ("authorization", "cookie", "x-tonnage-peer-token")


@dataclass(frozen=True, slots=True)
class Response:
    """An open response; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: http.client.HTTPResponse
    url: str


class HttpClient:
    """Requests from several threads; each thread has its own connections."""

    def __init__(
        self, *, timeout_s: float, ca_file: str | None = None, hosts: Sequence[str] = (), tls_name: str = ""
    ) -> None:
        """`hosts`: patterns of hosts that may be asked, redirects included; empty: any. `tls_name`: the name that
        certificates bear, where servers are asked by their addresses; empty: the URL's."""
        self._tls_name = tls_name
        self._hosts = tuple(hosts)
        self._timeout_s = timeout_s
        self._local = threading.local()
        self._all: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._ca_file = ca_file
        self._proxies = urllib.request.getproxies()

    def request(self, method: str, url: str, headers: Mapping[str, str]) -> Response:
        """Send, follow redirects, return the open response. Raises `SourceError`."""
        sent = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers}
        for _ in range(MAX_REDIRECTS + 1):
            response = self._once(method, url, sent)
            location = response.headers.get("location")
            if response.status not in (301, 302, 303, 307, 308) or location is None:
                return response
            self.drop(response)
            target = _joined(url, location)
            if urlsplit(target).scheme not in ("http", "https") or (
                url.startswith("https:") and target[:6] != "https:"
            ):
                raise SourceError(_bare(url), f"redirects to {_bare(target)}: refused")
            if urlsplit(target)[:2] != urlsplit(url)[:2]:
                sent = {name: value for name, value in sent.items() if name.lower() not in PRIVATE_HEADERS}
            url = target
        raise SourceError(_bare(url), f"over {MAX_REDIRECTS} redirects")

    def receive(self, response: Response, into: memoryview) -> None:
        """Fill `into` from the body. Raises `TransientSourceError` when the body is shorter or the wire breaks."""
        done = 0
        try:
            while done < len(into):
                count = response.body.readinto(into[done:])
                if count == 0:
                    raise TransientSourceError(_bare(response.url), f"{done} bytes came of {len(into)}")
                done += count
        except CONNECTION_ERRORS as error:
            self.forget()
            raise TransientSourceError(_bare(response.url), _reason(error)) from error
        except TransientSourceError:
            self.forget()
            raise

    def read(self, response: Response, limit_bytes: int) -> bytes:
        """A small body whole. Raises `SourceError` over `limit_bytes`."""
        try:
            raw = response.body.read(limit_bytes + 1)
        except CONNECTION_ERRORS as error:
            self.forget()
            raise TransientSourceError(_bare(response.url), _reason(error)) from error
        if len(raw) > limit_bytes:
            self.drop(response)
            raise SourceError(_bare(response.url), f"over {limit_bytes} bytes")
        return raw

    def drop(self, response: Response) -> None:
        """Done with a response: a rest of the body costs the connection, unless it is short."""
        left = response.body.length
        if response.body.isclosed():
            return
        if left is not None and left <= 65536:
            try:
                response.body.read()
            except CONNECTION_ERRORS:
                self.forget()
        else:
            self.forget()

    def forget(self) -> None:
        """Close this thread's connections; the next request opens new ones."""
        for connection in self._held().values():
            connection.close()
        self._held().clear()

    def close(self) -> None:
        """Close every thread's connections."""
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()

    def _once(self, method: str, url: str, headers: Mapping[str, str]) -> Response:
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if parts.scheme == "http" and self._proxy(parts) is not None:
            target = url  # a proxy of plain HTTP takes the absolute form
        for fresh in (False, True):
            reused = False
            try:
                connection, reused = self._connection(parts, fresh=fresh)
                connection.request(method, target, headers=dict(headers))
                body = connection.getresponse()
            except UnicodeError as error:  # of the name's labels, or of a redirect's path
                self.forget()
                raise SourceError(_bare(url), f"no address: {error}") from error
            except CONNECTION_ERRORS as error:
                self.forget()
                if reused:  # the server closed an idle connection: not a failure yet
                    continue
                raise TransientSourceError(_bare(url), _reason(error)) from error
            found = {name.lower(): value for name, value in body.getheaders()}
            return Response(body.status, found, body, url)
        raise TransientSourceError(_bare(url), "the connection was closed")

    def _connection(self, parts: SplitResult, *, fresh: bool) -> tuple[http.client.HTTPConnection, bool]:
        key = f"{parts.scheme}://{parts.netloc}"
        held = self._held().get(key)
        if held is not None and not fresh:
            return held, True
        connection = self._open(parts)
        self._held()[key] = connection
        with self._lock:
            self._all.append(connection)
        return connection, False

    def _open(self, parts: SplitResult) -> http.client.HTTPConnection:
        host, port = parts.hostname or "", parts.port
        self._refuse(parts, refused_host(host, self._hosts))
        at = self._proxy(parts)
        near, near_port = (at.hostname or "", at.port or 80) if at is not None else (host, port)
        if at is not None:
            self._refuse(parts, refused_literal(host))  # behind a proxy no more can be judged here
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            try:
                context = client_context(self._ca_file)
            except SettingsError as error:  # it is being renewed: the start has read it
                raise TransientSourceError(_bare(parts.geturl()), str(error)) from error
            connection = _Named(near, near_port, timeout=self._timeout_s, context=context, bears=self._tls_name)
        else:
            connection = http.client.HTTPConnection(near, near_port, timeout=self._timeout_s)
        if at is not None and parts.scheme == "https":
            connection.set_tunnel(host, port or 443)
        if at is None:
            try:
                connection.connect()
                self._refuse(parts, refused_address(connection.sock.getpeername()[0]))
            except (*CONNECTION_ERRORS, SourceError):
                connection.close()  # a certificate that is refused leaves the socket open
                raise
        return connection

    def _refuse(self, parts: SplitResult, why: str | None) -> None:
        if why is not None:
            raise SourceError(_bare(parts.geturl()), f"refused: {why}")

    def _proxy(self, parts: SplitResult) -> SplitResult | None:
        proxy = self._proxies.get(parts.scheme)
        if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
            return None
        return urlsplit(proxy if "://" in proxy else f"http://{proxy}")

    def _held(self) -> dict[str, http.client.HTTPConnection]:
        held: dict[str, http.client.HTTPConnection] | None = getattr(self._local, "connections", None)
        if held is None:
            held = self._local.connections = {}
        return held


class _Named(http.client.HTTPSConnection):
    """HTTPS to a server whose certificate bears the name `bears`, whatever it is asked by."""

    def __init__(self, host: str, port: int | None, *, timeout: float, context: ssl.SSLContext, bears: str) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._trusted, self._bears = context, bears

    def connect(self) -> None:
        """Connect and shake hands."""
        if not self._bears:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        self.sock = self._trusted.wrap_socket(self.sock, server_hostname=self._bears)


def wall_s() -> float:
    """Seconds since the epoch, for Retry-After dates."""
    return time.time()


def _joined(url: str, location: str) -> str:
    try:
        target = urljoin(url, location)
        _ = urlsplit(target).port
    except ValueError as error:
        raise SourceError(_bare(url), f"redirects to {location[:200]!r}: {error}") from error
    return target


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return f"cut after {len(error.partial)} bytes"
    return str(error) or type(error).__name__


def _bare(url: str) -> str:
    """A URL without credentials and query, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
