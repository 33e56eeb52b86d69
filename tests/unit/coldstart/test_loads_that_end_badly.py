"""Loads that are interrupted, starved or given what is no weight file: one error, and nothing writes on afterwards."""

import errno
import fcntl
import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tonnage_coldstart
from tonnage_coldstart.errors import DeviceMemoryError, SourceError
from tonnage_coldstart.loader import lanes, loading
from tonnage_coldstart.loader.loading import LoadOptions
from tonnage_coldstart.loader.ring import keep_ring, release_rings, take_ring
from tonnage_core.coldstart.errors import CorruptFileError
from tonnage_core.coldstart.manifest_digest import checksums_of, manifest_digest
from tonnage_core.errors import BadInputError

BODY = bytes(range(256)) * (3 << 14)


def write(path: Path, body: bytes = BODY, **more: object) -> Path:
    entry = {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)], **more}
    header = json.dumps({"w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """12 MiB in one file: two runs of chunks."""
    return write(tmp_path / "w.safetensors")


def past_cache(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def test_no_reader_is_left_when_the_memory_of_an_interrupted_load_is_given_back(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    real_read, real_join, real_free = lanes.read_into, threading.Thread.join, loading.free
    readers: list[threading.Thread] = []
    left: list[bool] = []

    def slow(*given: Any) -> None:
        readers.append(threading.current_thread())
        reading.set()
        assert go_on.wait(60)
        real_read(*given)

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if not left_alone:
            real_join(thread, timeout)
            return
        left_alone.clear()
        assert reading.wait(60)
        threading.Timer(0.2, go_on.set).start()
        raise KeyboardInterrupt

    def given_back(arenas: list[torch.Tensor]) -> None:
        left.extend(thread.is_alive() for thread in readers)
        real_free(arenas)

    left_alone = [True]
    monkeypatch.setattr(lanes, "read_into", slow)
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    monkeypatch.setattr(loading, "free", given_back)
    with pytest.raises(KeyboardInterrupt):
        tonnage_coldstart.load(weights, "cpu", LoadOptions(threads=1))
    assert left and not any(left)


@pytest.mark.parametrize("given", [0, 1])
def test_where_the_system_has_few_threads_fewer_read(
    weights: Path, monkeypatch: pytest.MonkeyPatch, given: int
) -> None:
    real = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if len(started) == given:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    if given == 0:
        with pytest.raises(DeviceMemoryError, match="no thread"):
            tonnage_coldstart.load(weights, "cpu")
    else:
        loaded = tonnage_coldstart.load(weights, "cpu", LoadOptions(threads=2))
        assert loaded["w"].numpy().tobytes() == BODY
    release_rings()


def test_what_a_file_system_does_not_read_past_its_cache_is_read_through_it(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def refusing(descriptor: int, *given: Any) -> int:
        if past_cache(descriptor):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, *given)

    monkeypatch.setattr(os, "preadv", refusing)
    monkeypatch.setattr(lanes, "resident", lambda *_: False)
    assert tonnage_coldstart.load(weights, "cpu")["w"].numpy().tobytes() == BODY


def test_a_disk_that_fails_is_told_with_the_file(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(SourceError, match=r"^w\.safetensors: Input/output error"):
        tonnage_coldstart.load(weights, "cpu")


def test_a_file_replaced_while_it_is_opened_is_refused(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def replaced(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            weights.unlink()
            write(weights, BODY[::-1])
        return real(path, flags & ~os.O_DIRECT, *more, **named)

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(SourceError, match="replaced while it was opened"):
        tonnage_coldstart.load(weights, "cpu")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "w.safetensors")
    with pytest.raises(SourceError, match=r"w\.safetensors: no regular file"):
        tonnage_coldstart.load(tmp_path, "cpu")


def test_a_shape_that_no_tensor_can_have_is_refused_though_it_has_no_bytes(tmp_path: Path) -> None:
    write(tmp_path / "w.safetensors", b"", shape=[0, 1 << 62, 1 << 62])
    with pytest.raises(CorruptFileError, match="'w': shape"):
        tonnage_coldstart.load(tmp_path, "cpu")


@pytest.mark.parametrize(
    "given", [{"threads": 0}, {"threads": 10**6}, {"spare_slabs": -1}, {"slab_bytes": 1000}, {"slab_bytes": 12288}]
)
def test_options_that_no_load_can_have_are_named(given: dict[str, int]) -> None:
    with pytest.raises(BadInputError, match=next(iter(given))):
        LoadOptions(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "broken", [{"chunk_bytes": 0}, {"chunk_bytes": "8"}, {"crc32c": [1]}, {"crc32c": ["a", "b"]}, {"size": None}]
)
def test_a_manifest_whose_numbers_cannot_be_checks_is_none(broken: dict[str, Any]) -> None:
    file = {"name": "w", "size": 5000, "crc32c": [1, 2]}
    document: dict[str, Any] = {"schema": "tonnage.manifest/1", "chunk_bytes": 4096, "files": [file]}
    assert checksums_of(json.dumps(document | {"digest": manifest_digest(document)}).encode()) is not None
    for name, value in broken.items():
        (document if name in document else file)[name] = value
    assert checksums_of(json.dumps(document | {"digest": manifest_digest(document)}).encode()) is None


def test_loads_of_many_sizes_keep_one_ring() -> None:
    """A ring a shape was kept: with 8 readers of 2 MiB, 72 MiB in all."""
    release_rings()
    for readers in (8, 3, 1, 5):
        keep_ring(take_ring(readers, 0, 4096, pinned=False))
    kept = take_ring(2, 0, 4096, pinned=False)
    assert kept.size_bytes == 8 * 4096
    larger = take_ring(9, 1, 4096, pinned=False)
    keep_ring(larger)
    keep_ring(kept)
    assert take_ring(1, 0, 4096, pinned=False) is larger
    assert take_ring(1, 0, 4096, pinned=False) is not kept
    release_rings()
