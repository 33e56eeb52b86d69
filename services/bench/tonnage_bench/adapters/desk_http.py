"""The worker's way to the service."""

import ssl
from typing import Any

import httpx

from tonnage_bench.errors import DeskError
from tonnage_bench.ports import Ref, Work
from tonnage_runtime.access import SharedToken

TIMEOUT_S = 10.0


class HttpDesk:
    """A `Desk` over HTTP; use as an async context manager."""

    def __init__(self, service_url: str, token: SharedToken, trusted: ssl.SSLContext) -> None:
        self._token = token
        self._client = httpx.AsyncClient(
            base_url=service_url.rstrip("/"),
            timeout=TIMEOUT_S,
            verify=trusted,
        )

    async def __aenter__(self) -> "HttpDesk":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def claim(self, ref: Ref, worker: str) -> Work | None:
        """Ask for the run."""
        found = (await self._post("claim", ref, worker))["work"]
        return None if found is None else Work(found["question"], found["lease_s"], found["limit_s"])

    async def beat(self, ref: Ref, worker: str, elapsed_s: float) -> bool:
        """Say that the worker lives."""
        return bool((await self._post("beat", ref, worker, elapsed_s=elapsed_s))["go_on"])

    async def finish(self, ref: Ref, worker: str, result: dict[str, Any]) -> bool:
        """Bring the result."""
        return bool((await self._post("finish", ref, worker, result=result))["kept"])

    async def _post(self, what: str, ref: Ref, worker: str, **more: Any) -> dict[str, Any]:
        body = {"ref": {"job": ref.job, "number": ref.number, "attempt": ref.attempt}, "worker": worker, **more}
        headers = {"authorization": f"Bearer {self._token.value()}"}
        try:
            answer = await self._client.post(f"/v1/worker/{what}", json=body, headers=headers)
            document = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise DeskError(f"{self._client.base_url}: {type(error).__name__}: {error}") from error
        if answer.status_code != 200:
            message = document.get("error", {}).get("message", "") if isinstance(document, dict) else ""
            raise DeskError(f"{self._client.base_url}: status {answer.status_code}: {message}")
        return document if isinstance(document, dict) else {}
