"""Small JSON calls to engines, planners and cold-start services: bounded in time and size, nothing retried."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3

from tonnage_core.addresses import refused_literal
from tonnage_core.errors import TonnageError
from tonnage_runtime.access import OwnToken
from tonnage_runtime.tls import client_context

BODY_MOST = 8 << 20


class CallError(TonnageError):
    """No usable answer. `status` is HTTP's, or None when there was none."""

    def __init__(self, message: str, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status, self.body = status, body


class Caller:
    """Calls with a time-out in seconds, for each of connect and read. `tls_name` is the name that certificates bear,
    where servers are asked by their addresses; by default the URL's."""

    def __init__(
        self,
        timeout_s: float = 5.0,
        token: OwnToken | None = None,
        ca_file: Path | None = None,
        tls_name: str | None = None,
    ) -> None:
        self._token = token
        self._pool = urllib3.PoolManager(
            num_pools=64, retries=False, ssl_context=client_context(ca_file), server_hostname=tls_name
        )
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Give the connections back."""
        self._pool.clear()

    def text(self, method: str, url: str, body: Any = None, timeout_s: float | None = None) -> str:
        """The body of a 2xx answer; `CallError` for any other."""
        if (why := refused_literal(urlsplit(url).hostname or "")) is not None:
            raise CallError(f"{method} {url}: {why}")
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if sent is not None else {}
        if self._token is not None:
            headers["Authorization"] = self._token.header()
        timeout = urllib3.Timeout(connect=self._timeout_s, read=timeout_s or self._timeout_s)
        try:
            answer = self._pool.request(
                method, url, body=sent, headers=headers, timeout=timeout, preload_content=False, redirect=False
            )
            try:
                data = answer.read(BODY_MOST + 1)
            finally:
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise CallError(f"{method} {url}: {' '.join(str(error).split())}") from error
        found = data.decode(errors="replace")
        if len(data) > BODY_MOST:
            raise CallError(f"{method} {url}: more than {BODY_MOST} bytes")
        if not 200 <= answer.status <= 299:
            raise CallError(f"{method} {url}: {answer.status} {found[:300]}", answer.status, found)
        return found

    def json(self, method: str, url: str, body: Any = None) -> dict[str, Any]:
        """The answer as a JSON object."""
        found = self.text(method, url, body)
        try:
            document = json.loads(found)
        except ValueError as error:
            raise CallError(f"{method} {url}: not JSON: {found[:80]!r}") from error
        if not isinstance(document, dict):
            raise CallError(f"{method} {url}: no JSON object: {found[:80]!r}")
        return document
