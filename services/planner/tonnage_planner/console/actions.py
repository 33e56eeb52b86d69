"""What the console may change, and who may ask: a caller with the bearer token whose hash the settings hold."""

import asyncio
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import orjson

from tonnage_core.errors import TonnageError
from tonnage_planner.console.parts import Parts
from tonnage_planner.ports import Poster, ScrapeError
from tonnage_runtime.access import KnownTokens


class NotAllowedError(TonnageError):
    """No token, or a wrong one: answered with 401; with 403 where no token is configured."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotDoneError(TonnageError):
    """No router took the action: answered with 502, or 404 for an endpoint that none knows."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gate:
    """Compares tokens by their SHA-256, in constant time; without a hash nobody passes."""

    def __init__(self, sha256: str | None) -> None:
        self._sha256 = sha256.lower() if sha256 and sha256[0] != "@" else None
        self._file = KnownTokens(Path(sha256[1:])) if sha256 and sha256[0] == "@" else None

    def session(self, authorization: str | None) -> Literal["off", "token", "allowed"]:
        """What a caller with this `Authorization` header may do."""
        if self._sha256 is None and self._file is None:
            return "off"
        return "allowed" if self._passes(authorization) else "token"

    def check(self, authorization: str | None) -> None:
        """Raises `NotAllowedError` unless the caller may act."""
        if self._sha256 is None and self._file is None:
            raise NotAllowedError(403, "actions are off: TONNAGE_PLANNER_ACTION_TOKEN_SHA256 is not set")
        if not self._passes(authorization):
            raise NotAllowedError(401, "actions need the token: send it as `Authorization: Bearer TOKEN`")

    def _passes(self, authorization: str | None) -> bool:
        if self._file is not None:
            return self._file.admits(authorization)
        kind, _, token = (authorization or "").partition(" ")
        sent = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
        return kind.lower() == "bearer" and hmac.compare_digest(sent, self._sha256 or "")


async def drain(parts: Parts, poster: Poster | None, endpoint: str, *, undo: bool) -> int:
    """Ask every router to drain `endpoint`, or to end that; the number that did. Raises `NotDoneError`."""
    routers = [part.url for part in parts.parts("router")]
    if poster is None or not routers:
        raise NotDoneError(502, "no router is configured: set TONNAGE_PLANNER_ROUTER_URL")
    path = f"/admin/endpoints/{quote(endpoint, safe='')}/drain" + ("?undo=true" if undo else "")
    answers = await asyncio.gather(*(poster.post(url + path) for url in routers), return_exceptions=True)
    done = sum(1 for answer in answers if isinstance(answer, tuple) and answer[0] == 200)
    if done == 0:
        raise _why(answers, endpoint)
    return done


def _why(answers: Sequence[tuple[int, str] | BaseException], endpoint: str) -> NotDoneError:
    for answer in answers:
        if isinstance(answer, tuple) and answer[0] == 404:
            return NotDoneError(404, f"no router knows endpoint {endpoint[:200]!r}")
    words = [str(one) if isinstance(one, ScrapeError) else _said(one) for one in answers]
    return NotDoneError(502, f"no router took it: {'; '.join(words)[:300]}")


def _said(answer: tuple[int, str] | BaseException) -> str:
    if isinstance(answer, BaseException):
        return type(answer).__name__
    try:
        return str(orjson.loads(answer[1])["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"HTTP status {answer[0]}"
