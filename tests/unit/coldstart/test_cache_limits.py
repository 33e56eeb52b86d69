"""Quota, eviction, pins, full disks and read-only caches."""

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.errors import CacheError, CacheReadOnlyError, DiskFullError
from tonnage_coldstart.staging import Staged
from tonnage_core.coldstart.errors import QuotaExceededError
from tonnage_runtime.clock import ManualClock

StageUri = Callable[..., Staged]


def limited(root: Path, quota_bytes: int) -> NodeCache:
    made = NodeCache(root, ManualClock(1_000.0), quota_bytes=quota_bytes, keep_free_bytes=0)
    made.prepare()
    return made


def test_a_snapshot_over_the_quota_is_refused_before_the_first_byte(
    origin: Any, described: Path, stage: StageUri, tmp_path: Path
) -> None:
    cache = limited(tmp_path / "small", 100_000)
    with pytest.raises(QuotaExceededError, match="the quota"):
        stage(origin.url, into=cache)
    assert not any(method == "GET" and wanted for method, name, wanted in origin.requests if wanted != "bytes=0-7")
    assert list(cache.layout.incoming.iterdir()) == []


def test_the_least_recently_used_snapshot_leaves_and_a_pinned_one_stays(
    checkpoint_maker: Callable[..., Path], stage: StageUri, tmp_path: Path
) -> None:
    clock = ManualClock(1_000.0)
    models = [checkpoint_maker(tmp_path / f"m{n}", seed=n) for n in range(4)]
    size = sum(path.stat().st_size for path in models[0].iterdir())
    cache = NodeCache(tmp_path / "c", clock, quota_bytes=int(size * 2.5), keep_free_bytes=0)
    cache.prepare()
    first = stage(models[0], into=cache)
    cache.pin(first.key, pinned=True)
    clock.advance(10)
    second = stage(models[1], into=cache)
    clock.advance(10)
    third = stage(models[2], into=cache)
    assert [cached.key for cached in cache.entries()] == sorted([first.key, third.key])
    with cache.reading(third.key, threading.Event()), pytest.raises(QuotaExceededError, match="2 snapshots"):
        stage(models[3], into=cache)
    assert not second.path.exists()


def test_an_interrupted_transfer_gives_way_to_a_new_one(
    origin: Any, described: Path, checkpoint_maker: Callable[..., Path], stage: StageUri, tmp_path: Path
) -> None:
    other = checkpoint_maker(tmp_path / "other", seed=9)
    size = sum(path.stat().st_size for path in described.iterdir())
    cache = limited(tmp_path / "c", int(size * 1.5))
    origin.fault = lambda method, name, reply: None if len(origin.requests) > 14 and method == "GET" else reply
    with pytest.raises(Exception, match="127"):
        stage(origin.url, into=cache, attempts=1)
    assert len(list(cache.layout.incoming.iterdir())) == 1
    assert not stage(other, into=cache).cache_hit
    assert list(cache.layout.incoming.iterdir()) == []


def test_a_full_disk_is_one_clear_error_and_leaves_nothing_behind(
    described: Path, stage: StageUri, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.pwrite, [5]

    def full(descriptor: int, data: memoryview, at: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskFullError, match=r"No space left.*free some space"):
            stage(described)
    assert list(cache.layout.incoming.iterdir()) == []
    assert not stage(described).cache_hit


def test_a_file_size_limit_is_told_like_a_full_disk(described: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command = [sys.executable, "-m", "tonnage_cli.main", "stage", str(described), "--cache", str(tmp_path / "c")]
    script = [sys.executable, "-c", "import sys; from tonnage_cli.main import run; sys.exit(run(sys.argv[1:]))"]
    done = subprocess.run([*script, *command[3:]], preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "File too large" in done.stderr
    assert list((tmp_path / "c" / "incoming").iterdir()) == []


def test_a_disk_without_room_refuses_before_the_first_byte(described: Path, stage: StageUri, tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "c", ManualClock(0.0), keep_free_bytes=1 << 60)
    cache.prepare()
    with pytest.raises(QuotaExceededError, match="the disk is short"):
        stage(described, into=cache)


def test_a_read_only_cache_serves_hits_and_refuses_the_rest(
    described: Path, checkpoint_maker: Callable[..., Path], stage: StageUri, cache: NodeCache, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stage(described)
    real = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and str(path).startswith(str(cache.layout.root)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    assert stage(described).cache_hit
    with pytest.raises(CacheReadOnlyError, match="Read-only file system"):
        stage(checkpoint_maker(tmp_path / "other", seed=3))


def test_a_snapshot_in_use_is_not_deleted(described: Path, stage: StageUri, cache: NodeCache) -> None:
    staged = stage(described)
    with cache.reading(staged.key, threading.Event()), pytest.raises(CacheError, match="in use"):
        cache.delete(staged.key)
    cache.delete(staged.key)
    assert cache.entries() == []
