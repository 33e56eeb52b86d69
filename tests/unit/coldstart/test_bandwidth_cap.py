"""A cap on bytes a second: shared by all transfers, kept on average, given up at a stop."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_cli.main import run
from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.errors import CancelledError
from tonnage_coldstart.fetch.gate import Pacer
from tonnage_coldstart.fetch.workers import FetchOptions
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.staging import Stager
from tonnage_core.coldstart.pace import Pace, taken
from tonnage_runtime.clock import SystemClock


@given(
    reads=st.lists(st.tuples(st.integers(1, 10**8), st.floats(0, 5)), min_size=1, max_size=40),
    rate=st.floats(1e3, 1e9),
)
def test_in_no_stretch_of_time_is_more_read_than_the_cap_and_one_read_allow(
    reads: list[tuple[int, float]], rate: float
) -> None:
    pace, now, begun = Pace(rate), 0.0, []
    for size, idle in reads:
        now += idle
        pace, wait = taken(pace, size, now)
        assert wait >= 0
        begun.append((now + wait, size))
    for first, (start, _) in enumerate(begun):
        total = 0
        for at, size in begun[first:]:
            assert total <= rate * (at - start) * (1 + 1e-9) + 1e-3
            total += size


def test_all_transfers_share_one_cap_and_without_one_nobody_waits() -> None:
    waits: list[float] = []
    shared = Pacer(1000.0, lambda: 5.0)
    for _ in range(3):
        shared.wait(500, waits.append)
    Pacer(None, lambda: 5.0).wait(10**12, waits.append)
    assert waits == [0.5, 1.0]


class StopsAtOnce(Progress):
    """Stops the transfer when its first bytes are there, while the next wait for the cap."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(SystemClock().monotonic)
        self._stop = stop

    def fetched(self, size_bytes: int) -> None:
        super().fetched(size_bytes)
        self._stop.set()


def test_a_stop_ends_a_transfer_that_waits_for_the_cap(described: Path, cache: NodeCache) -> None:
    stop = threading.Event()
    stager = Stager(cache, SystemClock(), FetchOptions(connections=2, bytes_per_s=0.001))
    with pytest.raises(CancelledError):
        stager.stage(open_source(str(described), SourceOptions()), StopsAtOnce(stop), stop)


def test_files_leave_the_page_cache_once_they_are_on_the_disk_where_asked(
    described: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []
    real_sync, real_advise = os.fsync, os.posix_fadvise

    def sync(descriptor: int) -> None:
        told.append(("sync", descriptor))
        real_sync(descriptor)

    def advise(descriptor: int, start: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            assert told[-1] == ("sync", descriptor)  # what is not durable would stay
            told.append(("drop", descriptor))
        real_advise(descriptor, start, length, advice)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    assert run(["stage", str(described), "--cache", str(tmp_path / "a"), "--connections", "1", "--json"]) == 0
    assert "drop" not in dict(told)
    dropping = ["--drop-behind", "--connections", "1", "--json"]
    assert run(["stage", str(described), "--cache", str(tmp_path / "b"), *dropping]) == 0
    files = [path for path in described.iterdir() if path.name != "tonnage-manifest.json"]
    assert [kind for kind, _ in told].count("drop") == len(files)


def test_the_command_takes_a_cap(
    described: Path, tmp_path: Path, same_files: Callable[[Path, Path], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stage", str(described), "--cache", str(tmp_path / "c"), "--mb-per-s", "1e6", "--json"]) == 0
    assert run(["stage", str(described), "--cache", str(tmp_path / "c"), "--mb-per-s", "0"]) == 2
    assert "--mb-per-s" in capsys.readouterr().err
