"""A copy of a cluster's objects by list and watch, over an API server that follows a script."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from kubernetes.client import Configuration

from tonnage_runtime.kube import KubeClient, Resource
from tonnage_runtime.kube_reflector import Pace, Reflector

PROFILES = Resource("tonnage.dev", "v1alpha1", "gpuprofiles", "GpuProfile")
HOLD = b"hold"
LATER = b"later"


def listed(*names: str) -> tuple[int, bytes]:
    items = [{"metadata": {"name": name}} for name in names]
    return 200, json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode()


def event(kind: str, name: str, version: str = "") -> bytes:
    metadata = {"name": name} | ({"resourceVersion": version} if version else {})
    return json.dumps({"type": kind, "object": {"metadata": metadata}}).encode() + b"\n"


GONE = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}).encode() + b"\n"


class Followed:
    """A reflector over a scripted server: lists and watches are answered in order, the last one for ever."""

    def __init__(self, lists: list[tuple[int, bytes]], watches: list[list[bytes]]) -> None:
        self.lists, self.watches = lists, watches
        self.calls: list[tuple[str, str]] = []
        self.known: list[set[str] | None] = []
        self.asked: list[str] = []
        self.news, self.over = asyncio.Event(), asyncio.Event()
        self.loop = asyncio.get_running_loop()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0]
        self.asked.append(line)
        if "watch=true" in line:
            await self.stream(writer)
        else:
            status, body = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
        writer.close()

    async def stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        for part in self.watches.pop(0) if len(self.watches) > 1 else self.watches[0]:
            if part == HOLD:
                await self.over.wait()
            elif part == LATER:
                await asyncio.sleep(0.6)
            else:
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        writer.write(b"0\r\n\r\n")

    def changed(self) -> None:
        self.loop.call_soon_threadsafe(self.news.set)

    def called(self, call: str, outcome: str) -> None:
        self.calls.append((call, outcome))
        self.known.append(self.names())
        self.changed()

    def names(self) -> set[str] | None:
        return None if self.reflector.objects is None else set(self.reflector.objects)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not done():
                self.news.clear()
                if not done():
                    await self.news.wait()

    reflector: Reflector


@asynccontextmanager
async def following(
    lists: list[tuple[int, bytes]], watches: list[list[bytes]], *, watch_s: float = 30.0, timeout_s: float = 5.0
) -> AsyncIterator[Followed]:
    followed = Followed(lists, watches)
    server = await asyncio.start_server(followed.answer, "127.0.0.1", 0)
    found = Configuration()
    found.host, found.proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None
    client = KubeClient(found, timeout_s=timeout_s)
    pace = Pace(relist_s=60.0, watch_s=watch_s, least_s=0.01, most_s=0.05)
    followed.reflector = Reflector(
        client, PROFILES, "tonnage.dev/node=n1", changed=followed.changed, called=followed.called, pace=pace
    )
    assert followed.names() is None
    followed.reflector.start()
    try:
        yield followed
    finally:
        await asyncio.to_thread(followed.reflector.stop)
        followed.over.set()
        server.close()
        client.close()
    assert not followed.reflector._thread.is_alive()


async def test_events_change_what_was_listed() -> None:
    script = [event("ADDED", "b"), event("BOOKMARK", ""), event("MODIFIED", "b"), event("DELETED", "a"), HOLD]
    async with following([listed("a")], [script]) as followed:
        await followed.until(lambda: followed.names() == {"b"})
        watch = followed.asked[1]
    assert "resourceVersion=9" in watch
    assert "labelSelector=tonnage.dev/node%3Dn1" in watch
    assert "timeoutSeconds=30" in watch, "far shorter than the time between lists"


async def test_a_version_that_is_gone_is_listed_again_and_is_no_failure() -> None:
    async with following([listed("a"), listed("a", "b")], [[GONE], [HOLD]]) as followed:
        await followed.until(lambda: followed.names() == {"a", "b"})
        assert ("watch", "gone") in followed.calls
        assert followed.reflector.error is None


async def test_a_watch_that_ends_or_breaks_is_followed_by_a_list() -> None:
    async with following([listed("a")], [[], [b"{broken}\n"], [event("ADDED", "z"), HOLD]]) as followed:
        await followed.until(lambda: followed.names() == {"a", "z"})
        assert followed.calls.count(("list", "ok")) == 3
        assert ("watch", "unreachable") in followed.calls


async def test_the_next_watch_goes_on_where_one_that_had_its_time_stopped() -> None:
    first = [event("ADDED", "b", "12"), event("BOOKMARK", "", "15"), LATER]
    async with following([listed("a")], [first, [event("DELETED", "a", "16"), HOLD]], watch_s=1.0) as followed:
        await followed.until(lambda: followed.names() == {"b"})
        assert [("resourceVersion=9" in line, "resourceVersion=15" in line) for line in followed.asked[1:3]] == [
            (True, False),
            (False, True),
        ]
        assert followed.calls.count(("list", "ok")) == 1


async def test_a_connection_that_died_in_silence_is_noticed() -> None:
    async with following([listed("a"), listed("b")], [[HOLD]], watch_s=1.0, timeout_s=0.5) as followed:
        await followed.until(lambda: followed.names() == {"b"})
        assert ("watch", "unreachable") in followed.calls


async def test_an_event_cut_in_two_by_the_network_is_one_event() -> None:
    whole = event("ADDED", "z")
    async with following([listed()], [[whole[:9], whole[9:], HOLD]]) as followed:
        await followed.until(lambda: followed.names() == {"z"})


async def test_a_failed_list_keeps_what_is_known_and_says_so() -> None:
    lists = [listed("a"), (500, b"{}"), (403, b"{}"), (429, b"{}"), listed("c")]
    async with following(lists, [[], [HOLD]]) as followed:
        await followed.until(lambda: followed.names() == {"c"})
    outcomes = [outcome for call, outcome in followed.calls if call == "list"]
    assert outcomes == ["ok", "unreachable", "forbidden", "throttled", "ok"]
    assert followed.known[1:4] == [{"a"}, {"a"}, {"a"}]


def test_the_pause_grows_is_bounded_and_heeds_the_server() -> None:
    pace = Pace(least_s=1.0, most_s=60.0)
    assert 1.0 <= pace.pause(0, None) <= 1.2
    assert 8.0 <= pace.pause(3, None) <= 9.6
    assert 60.0 <= pace.pause(10_000, None) <= 72.0
    assert 30.0 <= pace.pause(0, 30.0) <= 36.0
    assert pace.pause(0, 1e9) <= 72.0


async def test_a_reader_that_crashes_over_an_object_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = Followed.changed
    crashed: list[bool] = []

    def crashes(self: Followed) -> None:
        changed(self)
        if threading.current_thread().name.startswith("watch-") and self.names() == {"odd"} and not crashed:
            crashed.append(True)
            raise AttributeError("'str' object has no attribute 'get'")

    monkeypatch.setattr(Followed, "changed", crashes)
    async with following([listed("odd"), listed("b")], [[HOLD]]) as followed:
        await followed.until(lambda: followed.names() == {"b"})
        assert ("watch", "error") in followed.calls, "counted, not only logged"
