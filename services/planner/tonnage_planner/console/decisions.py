"""The routers' decisions: the latest of all of them, and one in full."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from tonnage_core.autoscaling.observation import Outcome
from tonnage_core.errors import TonnageError
from tonnage_planner.console.parts import Parts
from tonnage_planner.console.reading import mappings
from tonnage_planner.ports import ScrapeError, Scraper
from tonnage_runtime.clock import Clock

WAIT_S = 0.5
SHARED_S = 1.0
"""Answers within this time are from the same question to the routers."""
USUAL, MOST = 200, 500
AT_ONCE = 16
"""Questions for single decisions at a time: a crowd of readers must not take the engines' scrapes their slots."""


class UnknownDecisionError(TonnageError):
    """No such router, or it keeps the decision no longer: answered with 404."""


class Decisions:
    """Asks the routers; what one does not answer is missing, and its part says why."""

    def __init__(self, parts: Parts, scraper: Scraper, clock: Clock) -> None:
        self._parts = parts
        self._scraper = scraper
        self._clock = clock
        self._asking = asyncio.Lock()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._held: tuple[float, int, list[dict[str, Any]]] | None = None

    async def latest(self, limit: int) -> list[dict[str, Any]]:
        """At most `limit` decisions of all routers, newest first, without candidates."""
        async with self._asking:
            held, now = self._held, self._clock.monotonic()
            if held is None or now - held[0] > SHARED_S or held[1] < limit:
                most = USUAL if limit <= USUAL else MOST
                found = await self._ask(most)
                held = self._held = (self._clock.monotonic(), most, found)
        return held[2][:limit]

    async def _ask(self, limit: int) -> list[dict[str, Any]]:
        await self._parts.refresh(WAIT_S)
        routers = [part.url for part in self._parts.parts("router")]
        asked = [self._document(f"{url}/admin/decisions?limit={limit}&candidates=false") for url in routers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[dict[str, Any]] = []
        for url, answer in zip(routers, answers, strict=True):
            if isinstance(answer, Mapping):
                found += [{**row, "router": url} for row in mappings(answer.get("decisions"))]
        return sorted(found, key=lambda row: str(row.get("at")), reverse=True)[:limit]

    async def one(self, number: int, router: str) -> tuple[str, dict[str, Any]]:
        """(router, decision); only routers that are configured are asked. Raises `UnknownDecisionError`."""
        if not any(True for part in self._parts.parts("router") if part.feeds):
            await self._parts.refresh(WAIT_S)
        routers = [part.url for part in self._parts.parts("router")]
        if router and router not in routers:
            raise UnknownDecisionError(f"no router {router!r}; known: {', '.join(routers) or 'none'}")
        if not routers:
            raise UnknownDecisionError("no router is configured: set TONNAGE_PLANNER_ROUTER_URL")
        address = router or routers[0]
        try:
            async with self._slots:
                found = (await self._document(f"{address}/admin/decisions/{number}")).get("decision")
        except ScrapeError as error:
            gone = error.outcome is Outcome.HTTP_ERROR
            words = f"does not have decision {number} any more" if gone else f"did not answer for decision {number}"
            raise UnknownDecisionError(f"{address} {words} ({error})") from error
        if not isinstance(found, dict):
            raise UnknownDecisionError(f"{address} answered decision {number} with something else")
        return address, found

    async def _document(self, url: str) -> Mapping[str, Any]:
        try:
            found = orjson.loads(await self._scraper.text(url))
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, Mapping) else {}
