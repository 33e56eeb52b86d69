"""The guard over a probe that starts ranks on two GPUs, on a driver whose lists and memory lag as a real one's do.

On two H200s the guard once stopped the first GPU's own collectives ("686 MiB appeared that no probe asked for").
"""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from tonnage_core.gpu_health.guard import ChildMemory
from tonnage_gpu_agent import runs
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.child_process import LOOK_S
from tonnage_gpu_agent.errors import FieldUnsupportedError
from tonnage_gpu_agent.port import GpuProcess, Reading
from tonnage_gpu_agent.probes import select
from tonnage_gpu_agent.runs import Guard, RunOptions

MIB = 1 << 20
OPTIONS = RunOptions("full", select("full", ["collectives"]), settle_s=0.0)
CHILD, RANK_0, RANK_1, STRANGER = 1000, 1001, 1002, 2000
HELPERS, JOINED, LEFT, ALONE, END = 30, 60, 150, 170, 330
"""Looks: helpers begin, ranks make their contexts, ranks end, the child says so two seconds later, the end."""


@dataclass(frozen=True)
class Held:
    """Memory of a process on a GPU, by look: in use, listed with its PID, the process alive."""

    pid: int
    mib: int
    used: tuple[int, int]
    listed: tuple[int, int]
    alive: tuple[int, int]
    told: bool = True


def within(look: int, span: tuple[int, int]) -> bool:
    return span[0] <= look < span[1]


@dataclass
class LaggingDriver(FakeDriver):
    """One look at a time; `hidden` shows no processes at all, as in a container of its own."""

    held: dict[int, list[Held]] = field(default_factory=dict)
    hidden: bool = False
    look: int = 0

    def __post_init__(self) -> None:
        FakeDriver.__init__(self, [fake_gpu(0), fake_gpu(1)])

    def read(self, index: int, field: str) -> Sequence[Reading]:
        if field != "memory":
            return super().read(index, field)
        return [(("used",), 600.0 * MIB + sum(h.mib for h in self.held[index] if within(self.look, h.used)) * MIB)]

    def processes(self, index: int) -> Sequence[GpuProcess]:
        if self.hidden:
            raise FieldUnsupportedError("not visible")
        listed = [h for h in self.held[index] if within(self.look, h.listed)]
        return [GpuProcess(h.pid, h.mib * MIB if h.told and within(self.look, h.used) else None) for h in listed]

    def session(self, pid: int) -> int:
        alive = any(h.pid == pid and within(self.look, h.alive) for held in self.held.values() for h in held)
        if not alive:
            raise ProcessLookupError(pid)
        return CHILD if pid in (CHILD, RANK_0, RANK_1) else pid


def rank(pid: int, mib: int, pid_lag: int, release_lag: int) -> Held:
    """Listed `pid_lag` looks after its memory shows (before it when negative) and for a look after its end; its memory
    goes `release_lag` looks after its end."""
    return Held(pid, mib, (JOINED, LEFT + release_lag), (JOINED + pid_lag, LEFT + 1), (JOINED - 20, LEFT))


def node(first: int, pid_lag: int, release_lag: int, residue: int, hidden: bool) -> LaggingDriver:
    """The child holds 1 GiB beside its context on GPU `first` and a context on the other; each rank has memory on its
    own GPU and a context on its peer. The driver keeps `residue` MiB of the first GPU from then on, for nobody."""
    child = Held(CHILD, 718 + 1024, (5, 999), (7, 999), (0, 999))
    peer = replace(child, mib=500, used=(HELPERS, 999), listed=(HELPERS + 3, 999))
    kept = Held(0, residue, (JOINED + 2, 999), (999, 999), (999, 999))
    mine = [child, rank(RANK_0, 24_686, pid_lag, release_lag), rank(RANK_1, 302, pid_lag, release_lag), kept]
    other = [peer, rank(RANK_1, 24_686, pid_lag, release_lag), rank(RANK_0, 302, pid_lag, release_lag)]
    return LaggingDriver(held={first: mine, 1 - first: other}, hidden=hidden)


def stopped(
    driver: LaggingDriver, first: int, monkeypatch: pytest.MonkeyPatch, *, warming: Callable[[int], bool]
) -> tuple[int, str] | None:
    """The look at which the guard stops the run and why, or None."""
    monkeypatch.setattr(os, "getsid", driver.session)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: driver.look * LOOK_S))
    guard = Guard(driver, [first, 1 - first], CHILD, 600 * MIB, OPTIONS)
    for look in range(END):
        driver.look = look
        if look >= 8:
            helpers = HELPERS <= look < ALONE
            guard.hear(ChildMemory(1024 * MIB, warming(look) or helpers, helpers=helpers))
        reason = guard()
        if reason is not None:
            return look, reason
    return None


LAGS = list(itertools.product((-4, 0, 9), (0, 6, 55), (0, 686)))
"""Looks from memory to PID, looks from a rank's end to its memory's, MiB that the driver keeps."""


def calm(look: int) -> bool:
    return look < 12


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_the_probes_own_ranks_never_stop_it(first: int, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for lags in LAGS:
        driver = node(first, *lags, hidden)
        assert stopped(driver, first, monkeypatch, warming=calm) is None, lags


@pytest.mark.parametrize("hidden", [False, True])
def test_64_mib_of_a_stranger_stop_the_run_after_the_ranks_have_ended(
    hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for release_lag, residue, start in itertools.product((0, 30), (0, 686), (200, 300)):
        driver = node(0, 3, release_lag, residue, hidden)
        driver.held[0].append(Held(STRANGER, 64, (start, 999), (999, 999), (start, 999)))
        found = stopped(driver, 0, monkeypatch, warming=calm)
        assert found is not None and found[0] - start <= 10, (release_lag, residue, start, found)
        assert "64 MiB appeared that no probe asked for" in found[1]


@pytest.mark.parametrize("hidden", [False, True])
def test_64_mib_of_a_stranger_stop_the_run_before_the_ranks_begin(
    hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = node(0, 3, 6, 0, hidden)
    driver.held[0].append(Held(STRANGER, 64, (20, 999), (999, 999), (20, 999)))
    found = stopped(driver, 0, monkeypatch, warming=calm)
    assert found is not None and 20 < found[0] < HELPERS and "64 MiB" in found[1]


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_strangers_pid_stops_the_run_while_the_ranks_work_on_either_gpu(
    gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = node(0, 3, 6, 0, False)
    driver.held[gpu].append(Held(STRANGER, 500, (100, 999), (102, 999), (100, 999)))
    found = stopped(driver, 0, monkeypatch, warming=calm)
    assert found is not None and found[0] == 102 and str(STRANGER) in found[1]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_stranger_who_came_unseen_among_the_ranks_is_found_when_they_have_gone(
    hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = node(0, 3, 6, 302, hidden)
    driver.held[0].append(Held(STRANGER, 4096, (100, 999), (999, 999), (100, 999)))
    found = stopped(driver, 0, monkeypatch, warming=calm)
    assert found is not None and "stayed in use after the probe's own ranks had ended" in found[1]


def test_a_rank_whose_memory_the_driver_does_not_tell_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = node(0, 0, 6, 302, False)
    driver.held[0] = [replace(h, told=h.pid not in (RANK_0, RANK_1)) for h in driver.held[0]]
    assert stopped(driver, 0, monkeypatch, warming=calm) is None


def test_a_guard_that_does_not_hear_of_ranks_would_stop_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake can show the fault: without the child's word on its helpers their late PIDs look like a stranger."""
    driver = node(0, 9, 6, 0, False)
    monkeypatch.setattr(Guard, "hear", lambda self, word: None)
    found = stopped(driver, 0, monkeypatch, warming=calm)
    assert found is not None and JOINED <= found[0] <= JOINED + 9
