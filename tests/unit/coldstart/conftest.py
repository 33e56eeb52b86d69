"""A small checkpoint, an HTTP origin that can misbehave, and a stager over a temporary cache."""

import hashlib
import json
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.fetch.workers import FetchOptions
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.staging import Staged, Stager
from tonnage_runtime.clock import SystemClock

CHUNK = 64 << 10


def safetensors(tensors: dict[str, bytes]) -> bytes:
    header: dict[str, object] = {}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(tensors.values())


def write_checkpoint(directory: Path, *, shards: int = 2, shard_bytes: int = 400_000, seed: int = 0) -> Path:
    rng = Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    for shard in range(1, shards + 1):
        name = f"model-{shard:05d}-of-{shards:05d}.safetensors"
        tensors = {f"layer.{shard}.{i}": rng.randbytes(shard_bytes // 4) for i in range(4)}
        (directory / name).write_bytes(safetensors(tensors))
        weight_map |= dict.fromkeys(tensors, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "config.json").write_text('{"model_type": "test"}')
    (directory / "tokenizer.json").write_text("{}")
    return directory


def write_manifest(directory: Path, *, sha256: bool = True, crcs: bool = True, chunk_bytes: int = CHUNK) -> None:
    files = []
    for path in sorted(directory.iterdir()):
        raw = path.read_bytes()
        chunks = [crc32c(raw[start : start + chunk_bytes]) for start in range(0, len(raw), chunk_bytes)]
        entry: dict[str, object] = {"name": path.name, "size": len(raw)}
        entry |= {"sha256": hashlib.sha256(raw).hexdigest()} if sha256 else {}
        entry |= {"crc32c": chunks} if crcs else {}
        files.append(entry)
    document = {"schema": "tonnage.manifest/1", "chunk_bytes": chunk_bytes, "revision": "r1", "files": files}
    (directory / "tonnage-manifest.json").write_text(json.dumps(document))


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


Fault = Callable[[str, str, Reply], Reply | None]
"""Method and name of a request and the honest reply -> what is sent instead; None cuts the connection."""


@dataclass
class Origin:
    """An HTTP directory on loopback that counts what it serves; `fault` may change any reply."""

    root: Path
    url: str = ""
    fault: Fault | None = None
    ranges: bool = True
    listing: bool = False
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    on_request: Callable[[int], None] = lambda count: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def honest(self, name: str, wanted: str | None) -> Reply:
        path = self.root / name
        if name == "" and self.listing:
            links = "".join(f'<a href="{one.name}">x</a>' for one in sorted(self.root.iterdir()))
            return Reply(200, {"Content-Type": "text/html"}, f"<html>{links}<a href='../'>up</a></html>".encode())
        if not path.is_file():
            return Reply(404, {}, b"not found")
        raw = path.read_bytes()
        headers = {"ETag": f'"{hashlib.md5(raw).hexdigest()}"', "Content-Type": "application/octet-stream"}
        if wanted is None or not self.ranges:
            return Reply(200, headers, raw)
        first, last = (int(one) for one in wanted.removeprefix("bytes=").split("-"))
        last = min(last, len(raw) - 1)
        return Reply(206, headers | {"Content-Range": f"bytes {first}-{last}/{len(raw)}"}, raw[first : last + 1])


def handler(origin: Origin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.answer(send_body=True)

        def do_HEAD(self) -> None:
            self.answer(send_body=False)

        def answer(self, *, send_body: bool) -> None:
            name, wanted = self.path.lstrip("/").split("?")[0], self.headers.get("Range")
            with origin.lock:
                origin.requests.append((self.command, name, wanted or ""))
                count = len(origin.requests)
            origin.on_request(count)
            reply: Reply | None = origin.honest(name, wanted)
            if origin.fault is not None and reply is not None:
                reply = origin.fault(self.command, name, reply)
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            length = reply.headers.pop("Content-Length", str(len(reply.body)))
            for key, value in {**reply.headers, "Content-Length": length}.items():
                self.send_header(key, value)
            self.end_headers()
            if send_body:
                self.wfile.write(reply.body)
                with origin.lock:
                    origin.served[name] = origin.served.get(name, 0) + len(reply.body)
                self.close_connection = int(length) != len(reply.body)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


@pytest.fixture
def described(checkpoint: Path) -> Path:
    """The checkpoint with a manifest beside it, in chunks of 64 KiB."""
    write_manifest(checkpoint)
    return checkpoint


@pytest.fixture
def origin(checkpoint: Path) -> Iterator[Origin]:
    served = Origin(checkpoint)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(served))
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    made = NodeCache(tmp_path / "cache", SystemClock(), keep_free_bytes=0)
    made.prepare()
    return made


StageUri = Callable[..., Staged]


@pytest.fixture
def stage(cache: NodeCache) -> StageUri:
    """Stage a URI into the cache."""

    def run(uri: str | Path, *, into: NodeCache = cache, verify: bool = False, attempts: int = 3) -> Staged:
        options = FetchOptions(connections=4, attempts=attempts, first_backoff_s=0.001)
        source = open_source(str(uri), SourceOptions(timeout_s=5.0))
        try:
            stager = Stager(into, SystemClock(), options)
            return stager.stage(source, Progress(SystemClock().monotonic), threading.Event(), verify=verify)
        finally:
            source.close()

    return run


@pytest.fixture
def checkpoint_maker() -> Callable[..., Path]:
    return write_checkpoint


@pytest.fixture
def manifest_maker() -> Callable[..., None]:
    return write_manifest


@pytest.fixture
def same_files() -> Callable[[Path, Path], bool]:
    """Whether every file of the first directory is in the second with the same bytes."""

    def same(original: Path, copy: Path) -> bool:
        names = [path.name for path in original.iterdir() if path.name != "tonnage-manifest.json"]
        return all((original / name).read_bytes() == (copy / name).read_bytes() for name in names)

    return same
