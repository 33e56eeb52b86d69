"""Faults that users of other GPU agents reported, each by name; more of them stand in the tests beside this file."""

import os
import subprocess
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from tonnage_core.gpu_health.profile import CEILINGS
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.errors import ProbeRefusedError
from tonnage_gpu_agent.fields import FIELDS
from tonnage_gpu_agent.port import GpuProcess, Reading
from tonnage_gpu_agent.probes import select
from tonnage_gpu_agent.probes.collectives import Collectives
from tonnage_gpu_agent.probes.context import _siblings_busy
from tonnage_gpu_agent.probes.gemm_fp8 import GemmFp8
from tonnage_gpu_agent.probes.probe import Bench
from tonnage_gpu_agent.probes.timing import HostTimer
from tonnage_gpu_agent.runs import Guard, Lookout, RunOptions, check_idle

OPTIONS = RunOptions("quick", select("quick"), settle_s=0.0)
CUDA = torch.device("cuda", 0)


def bench(**changes: Any) -> Bench:
    return replace(Bench(CUDA, HostTimer(), torch.Generator()), **changes)


class LaggingDriver(FakeDriver):
    """Its utilisation counter shows the last second's load in the first look."""

    looks = 0

    def read(self, index: int, field: str) -> list[Reading]:
        if field == "utilization":
            self.looks += 1
            return [(("gpu",), 0.9 if self.looks == 1 else 0.0)]
        return list(super().read(index, field))


def test_a_lagging_utilisation_counter_does_not_make_an_idle_gpu_busy() -> None:
    driver = LaggingDriver([fake_gpu()])
    assert check_idle(driver, driver.gpus[0].device, OPTIONS) > 0
    assert driver.looks == 2


def test_contention_is_a_refusal_never_a_hardware_failure() -> None:
    gpu = fake_gpu()
    gpu.readings["utilization"] = [(("gpu",), 0.97)]
    with pytest.raises(ProbeRefusedError, match="97%") as refused:
        check_idle(FakeDriver([gpu]), gpu.device, OPTIONS)
    assert refused.value.code == "busy"


def test_fp8_on_an_older_chip_is_unsupported_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert GemmFp8().unsupported(bench()) == "needs compute capability 8.9"


def test_collectives_check_shared_memory_before_they_judge_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        f_frsize, f_blocks = 4096, 64 * 256

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(os, "statvfs", lambda path: Small)
    why = Collectives().unsupported(bench(peers=[torch.device("cuda", 1)]))
    assert why is not None and "/dev/shm" in why


def test_one_gpu_has_no_collectives_and_that_is_no_failure() -> None:
    assert Collectives().unsupported(bench()) == "one GPU has no peers"


def test_small_collectives_are_no_ceiling_of_bandwidth() -> None:
    assert not any("allreduce" in probe for rule in CEILINGS for probe in rule.probes)


def test_the_load_of_sibling_gpus_stands_beside_a_measurement() -> None:
    class Nvml:
        class Rates:
            gpu = 95

        @staticmethod
        def nvmlDeviceGetCount() -> int:
            return 3

        @staticmethod
        def nvmlDeviceGetHandleByIndex(index: int) -> int:
            return index

        @staticmethod
        def nvmlDeviceGetUUID(handle: int) -> str:
            return f"GPU-{handle}"

        @staticmethod
        def nvmlDeviceGetUtilizationRates(handle: int) -> type:
            return Nvml.Rates

    assert _siblings_busy(Nvml, "GPU-1") == 2


def test_no_profiling_counter_is_read_that_would_lock_out_other_tools() -> None:
    assert not any("prof" in field.name or "sm_active" in field.metric for field in FIELDS)


def test_a_driver_that_hangs_mid_run_ends_the_run_as_timed_out() -> None:
    release = threading.Event()

    def look() -> str | None:
        release.wait()
        return None

    lookout = Lookout(look, hang_after_s=0.2)
    deadline = time.monotonic() + 10
    while lookout() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lookout() == "a driver call has not returned for 0 s"
    assert lookout.hung
    release.set()
    lookout.close()


def test_a_stranger_on_a_peer_gpu_stops_the_run_as_well() -> None:
    own = os.getsid(0)
    first, peer = fake_gpu(0), fake_gpu(1)
    first.processes = [GpuProcess(own, 0)]
    peer.processes = [GpuProcess(own, 0)]
    guard = Guard(FakeDriver([first, peer]), [0, 1], own, 1 << 30, OPTIONS)
    assert guard() is None
    stranger = subprocess.Popen(["sleep", "30"], start_new_session=True)
    peer.processes.append(GpuProcess(stranger.pid, 1 << 30))
    assert guard() == f"another process came to GPU 1: {stranger.pid}"
    stranger.kill()
    stranger.wait()
