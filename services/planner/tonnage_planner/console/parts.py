"""What the other parts say: asked while somebody looks, each path at its own pace, one call at a time.

An answer is kept with its age. A part that stops answering is `down` with the age of its last answer; what it said is
used for `STALE_S` beyond its pace, and is unknown after that.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from tonnage_planner.ports import ScrapeError, Scraper
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.clock import Clock

Kind = Literal["router", "agent", "coldstart", "fleet"]
Reduce = Callable[[dict[str, Any]], dict[str, Any]]
STALE_S = 10.0
"""How much older than its pace an answer may be and still be used."""
RESOLVE_S = 10.0
"""Between two looks at which addresses a name has."""
RETRY_S = 1.0
"""Between two attempts at what does not answer."""
MOST_ADDRESSES = 256
"""Addresses of one name that are asked; a fleet has an agent a node."""


@dataclass
class Feed:
    """One path of one address: the last good answer and the last attempt, in monotonic seconds."""

    path: str
    every_s: float
    document: dict[str, Any] | None = None
    good_s: float | None = None
    tried_s: float | None = None
    problem: str | None = None


@dataclass
class Part:
    """One address of a part."""

    kind: Kind
    url: str
    feeds: dict[str, Feed]


@dataclass
class _Source:
    """A configured URL: one address or, behind a name, several."""

    kind: Kind
    url: str
    paths: Mapping[str, tuple[float, Reduce | None]]
    parts: dict[str, Part] = field(default_factory=dict)
    resolved_s: float | None = None
    left_out: int = 0
    task: asyncio.Task[None] | None = None


def verdicts(document: dict[str, Any]) -> dict[str, Any]:
    """GpuProfiles without their samples, which are most of their bytes."""
    kept = ("node", "index", "uuid", "name", "product", "measured_at", "ceilings", "verdict")
    profiles = document.get("profiles")
    listed = profiles if isinstance(profiles, list) else []
    return {"profiles": [{key: one.get(key) for key in kept} for one in listed if isinstance(one, dict)]}


PATHS: Mapping[Kind, Mapping[str, tuple[float, Reduce | None]]] = {
    "router": {"/admin/endpoints": (1.0, None), "/admin/queue": (1.0, None)},
    "agent": {"/v1/gpus": (3.0, None), "/v1/profiles": (30.0, verdicts)},
    "coldstart": {"/v1/stage": (1.0, None), "/v1/cache": (10.0, None)},
    "fleet": {"/": (1.0, None)},
}
"""What each kind of part is asked, seconds between two calls, and what is kept of the answer."""


class Parts:
    """Every part that the settings name."""

    def __init__(self, settings: PlannerSettings, scraper: Scraper, clock: Clock) -> None:
        self._scraper = scraper
        self._clock = clock
        named: list[tuple[Kind, str | None]] = [("router", settings.router_url)]
        named += [("agent", url) for url in settings.agent_urls]
        named += [("coldstart", url) for url in settings.coldstart_urls]
        named.append(("fleet", settings.supervisor_url))
        self._sources = [_Source(kind, url.rstrip("/"), PATHS[kind]) for kind, url in named if url is not None]

    async def refresh(self, wait_s: float) -> None:
        """Ask what is due; returns when all have answered, or after `wait_s` with what is known by then."""
        for source in self._sources:
            if source.task is None or source.task.done():
                source.task = asyncio.create_task(self._ask(source))
        waiting = [source.task for source in self._sources if source.task is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=wait_s)

    async def close(self) -> None:
        """Stop asking."""
        tasks = [source.task for source in self._sources if source.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def parts(self, kind: Kind | None = None) -> Iterator[Part]:
        """Every address known, of one kind or of all."""
        for source in self._sources:
            if kind is None or source.kind == kind:
                yield from source.parts.values() or [Part(source.kind, source.url, {})]

    @property
    def left_out(self) -> int:
        """Addresses beyond those that are asked."""
        return sum(source.left_out for source in self._sources)

    def documents(self, kind: Kind, path: str) -> list[tuple[str, dict[str, Any]]]:
        """(address, last answer) of those that answered lately enough to be used."""
        now = self._clock.monotonic()
        found: list[tuple[str, dict[str, Any]]] = []
        for part in self.parts(kind):
            feed = part.feeds.get(path)
            if feed is None or feed.document is None or feed.good_s is None:
                continue
            if now - feed.good_s <= STALE_S + feed.every_s:
                found.append((part.url, feed.document))
        return found

    def state_of(self, part: Part) -> tuple[Literal["up", "down", "waiting"], float | None, str | None]:
        """(state, age of the last good answer in seconds, what is wrong)."""
        now = self._clock.monotonic()
        good = [feed.good_s for feed in part.feeds.values() if feed.good_s is not None]
        age = now - max(good) if good else None
        problem = next((feed.problem for feed in part.feeds.values() if feed.problem is not None), None)
        if problem is not None:
            return "down", age, problem
        return ("up", age, None) if good else ("waiting", None, "not asked yet")

    async def _ask(self, source: _Source) -> None:
        now = self._clock.monotonic()
        if source.resolved_s is None or now - source.resolved_s >= RESOLVE_S:
            try:
                self._follow(source, await self._scraper.addresses(source.url))
                source.resolved_s = now
            except ScrapeError as error:
                if not source.parts:
                    source.parts = {source.url: Part(source.kind, source.url, _feeds(source))}
                for part in source.parts.values():
                    for feed in part.feeds.values():
                        feed.tried_s, feed.problem = now, str(error)
                return
        due = [
            self._read(part, feed, source.paths[feed.path][1])
            for part in source.parts.values()
            for feed in part.feeds.values()
            if feed.tried_s is None or now - feed.tried_s >= (feed.every_s if feed.problem is None else RETRY_S)
        ]
        await asyncio.gather(*due)

    def _follow(self, source: _Source, addresses: Sequence[str]) -> None:
        taken = [address.rstrip("/") for address in addresses[:MOST_ADDRESSES]]
        source.left_out = max(0, len(addresses) - MOST_ADDRESSES)
        source.parts = {url: source.parts.get(url) or Part(source.kind, url, _feeds(source)) for url in taken}

    async def _read(self, part: Part, feed: Feed, reduce: Reduce | None) -> None:
        feed.tried_s = self._clock.monotonic()
        try:
            document = orjson.loads(await self._scraper.text(part.url + feed.path))
        except ScrapeError as error:
            feed.problem = str(error)
        except orjson.JSONDecodeError:
            feed.problem = f"{feed.path} is not JSON"
        else:
            if not isinstance(document, dict):
                feed.problem = f"{feed.path} is no object"
                return
            feed.document = reduce(document) if reduce is not None else document
            feed.good_s, feed.problem = self._clock.monotonic(), None


def _feeds(source: _Source) -> dict[str, Feed]:
    return {path: Feed(path, every) for path, (every, _) in source.paths.items()}
