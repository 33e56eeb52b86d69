"""Staging killed at any point resumes, and what is published is whole at every moment."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.staging import Staged

StageUri = Callable[..., Staged]
Same = Callable[[Path, Path], bool]

KILLS = int(os.environ.get("TONNAGE_TEST_KILLS", "20"))
"""More of them take minutes: set the variable, and pytest's --timeout."""
CHILD = """
import sys, threading
from pathlib import Path
from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.fetch.workers import FetchOptions
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.staging import Stager
from tonnage_runtime.clock import SystemClock
clock = SystemClock()
cache = NodeCache(Path(sys.argv[2]), clock, keep_free_bytes=0)
cache.prepare()
source = open_source(sys.argv[1], SourceOptions())
Stager(cache, clock, FetchOptions(connections=2)).stage(source, Progress(clock.monotonic), threading.Event())
"""


def published_is_whole(cache: NodeCache, original: Path, same: Same) -> bool:
    return all(same(original, path) for path in cache.layout.models.iterdir())


def test_a_transfer_killed_at_random_points_resumes_and_shows_nothing_half_written(
    origin: Any, cache: NodeCache, checkpoint_maker: Any, manifest_maker: Any, same_files: Same, stage: StageUri
) -> None:
    original = checkpoint_maker(origin.root, shards=3, shard_bytes=1_200_000)
    for stale in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (original / stale).unlink()
    manifest_maker(original)
    rng = Random(7)
    kills, watching, torn = 0, threading.Event(), []
    reading = threading.Lock()  # what this test itself deletes is not torn

    def watch() -> None:
        while not watching.wait(0.005):
            with reading:
                if not published_is_whole(cache, original, same_files):
                    torn.append("half-written")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        while kills < KILLS:
            child = subprocess.Popen([sys.executable, "-c", CHILD, origin.url, str(cache.layout.root)])
            origin.requests.clear()
            stop_at = rng.randrange(8, 22)
            origin.on_request = lambda count, at=stop_at, pid=child.pid: (
                os.kill(pid, signal.SIGKILL) if count == at else None
            )
            try:
                code = child.wait()
            finally:
                child.kill()  # whatever ended the wait, pytest's timeout too, leaves no transfer behind
                child.wait()
            assert code in (0, -signal.SIGKILL)
            kills += code != 0
            if code == 0:  # done already: start over for the remaining kills
                with reading:
                    for cached in cache.entries():
                        cache.delete(cached.key)
    finally:
        watching.set()
        watcher.join()
    origin.on_request = lambda count: None
    staged = stage(origin.url)
    assert torn == []
    assert same_files(original, staged.path)
    assert list(cache.layout.incoming.iterdir()) == []


class _KilledError(BaseException):
    """Stands for a kill at one system call."""


@pytest.mark.parametrize("call", ["rename", "fsync", "pwrite", "write"])
def test_a_kill_at_each_system_call_that_publishes_leaves_all_or_nothing(
    described: Path, stage: StageUri, cache: NodeCache, same_files: Same, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real: Callable[..., Any] = getattr(os, call)
    survived = False
    for nth in range(60):
        left = [nth]

        def killed(*arguments: Any, left: list[int] = left) -> Any:
            if left[0] == 0:
                raise _KilledError
            left[0] -= 1
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, killed)
            try:
                stage(described)
                survived = True
            except _KilledError:
                pass
        assert published_is_whole(cache, described, same_files)
        if survived:
            break
    assert survived
    assert same_files(described, stage(described).path)


def test_what_a_snapshot_holds_is_on_disk_before_it_has_its_name(
    described: Path, stage: StageUri, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    published: list[Path] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(descriptor: int) -> None:
        real_sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def rename(source: Path, target: Path) -> None:
        if target.parent == cache.layout.models:
            assert [path for path in (source, *source.rglob("*")) if path.stat().st_ino not in synced] == []
            published.append(target)
            synced.clear()
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    staged = stage(described)
    assert published == [staged.path]
    assert cache.layout.models.stat().st_ino in synced


def test_what_was_fetched_before_a_kill_is_not_fetched_again(
    origin: Any, described: Path, stage: StageUri, same_files: Same
) -> None:
    def cut_after(method: str, name: str, reply: Any) -> Any:
        return None if len(origin.requests) > 14 and method == "GET" else reply

    origin.fault = cut_after
    with pytest.raises(Exception, match="127"):
        stage(origin.url, attempts=1)
    origin.fault = None
    staged = stage(origin.url)
    assert staged.resumed_bytes > 0
    assert staged.resumed_bytes + staged.source_bytes == staged.bytes
    assert same_files(described, staged.path)


def test_a_torn_write_under_the_journal_is_fetched_again(
    origin: Any, described: Path, stage: StageUri, cache: NodeCache, same_files: Same
) -> None:
    origin.fault = lambda method, name, reply: None if len(origin.requests) > 14 and method == "GET" else reply
    with pytest.raises(Exception, match="127"):
        stage(origin.url, attempts=1)
    for part in cache.layout.incoming.rglob("*.part"):
        raw = bytearray(part.read_bytes())
        raw[: len(raw) // 2] = bytes(len(raw) // 2)
        part.write_bytes(raw)
    origin.fault = None
    assert same_files(described, stage(origin.url).path)
