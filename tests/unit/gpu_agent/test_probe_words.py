"""What a probe process says of its GPU and of itself: a point's context beside a lost sibling, ranks told at once."""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tonnage_gpu_agent.probes import context, main
from tonnage_gpu_agent.probes.main import Channel, Phase, make_bench

OWN = "GPU-own"


class LostError(Exception):
    """Stands in for the driver's error."""


class Nvml:
    """Three GPUs; ours is the first, the second is lost in one of its calls, the third works."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
    NVMLError = LostError

    def __init__(self, lost_in: str) -> None:
        self.lost_in = lost_in

    def nvmlInit(self) -> None:
        pass

    def __getattr__(self, call: str) -> Any:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetHandleByUUID": lambda uuid: 0,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetCount": lambda: 3,
            "nvmlDeviceGetUUID": lambda handle: OWN if handle == 0 else f"GPU-{handle}",
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=95),
            "nvmlDeviceGetClockInfo": lambda handle, domain: 1980,
            "nvmlDeviceGetPowerUsage": lambda handle: 412300,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x40,
        }

        def answer(*arguments: Any) -> Any:
            if call == self.lost_in and arguments and arguments[0] == 1:
                raise LostError("GPU is lost")
            return answers[call](*arguments)

        return answer


@pytest.mark.parametrize(
    "lost_in", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetUtilizationRates"]
)
def test_a_lost_sibling_takes_no_clocks_and_temperature_from_a_point(
    lost_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(lost_in))
    assert context.sampler(OWN)() == {
        "sm_clock_mhz": 1980,
        "power_w": 412.3,
        "temperature_c": 61,
        "throttle": ["hw_thermal_slowdown"],
        "siblings_busy": 1,
    }


class StarvedThread:
    """A thread that never gets the interpreter."""

    def __init__(self, **kind: Any) -> None:
        pass

    def start(self) -> None:
        pass


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def heard(pipe: tuple[int, int]) -> list[dict[str, Any]]:
    """What is in the pipe by now; there must be something."""
    return [json.loads(line) for line in os.read(pipe[0], 1 << 16).decode().splitlines()]


@pytest.fixture
def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="H200", total_memory=1 << 37, L2_cache_size=1 << 25, multi_processor_count=132)
    for name, value in (("set_device", lambda device: None), ("get_device_properties", lambda device: properties),
                        ("device_count", lambda: 2), ("memory_reserved", lambda: 4096)):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    generator = torch.Generator()
    monkeypatch.setattr(torch, "Generator", lambda device: generator)
    monkeypatch.setattr(context, "sampler", lambda uuid: dict)
    monkeypatch.setattr(main, "start_libraries", lambda torch, device: None)
    monkeypatch.setattr(main, "SETTLE_S", 0.0)
    monkeypatch.setattr(main, "RELEASE_S", 0.0)
    monkeypatch.setattr(main, "threading", SimpleNamespace(Thread=StarvedThread, Lock=threading.Lock))


def test_the_guard_hears_of_ranks_before_they_start_although_the_memory_thread_is_starved(
    as_if_on_a_gpu: None, pipe: tuple[int, int]
) -> None:
    arguments = argparse.Namespace(suite="full", rehearse=False, device=OWN, seed=0, scratch_dir="")
    bench = make_bench(arguments, Channel(pipe[1]))
    assert [message["type"] for message in heard(pipe)] == ["hello"]
    with bench.helping():
        (begun,) = heard(pipe)
    assert begun == {"type": "memory", "reserved": 4096, "warming": True, "helpers": True}
    (ended,) = heard(pipe)
    assert ended["helpers"] is False


def test_ranks_that_fail_are_still_said_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "RELEASE_S", 0.0)
    phase, said = Phase(), []
    phase.say = lambda: said.append(phase.helpers)
    with pytest.raises(OSError), phase.helping():
        raise OSError("a rank died")
    assert said == [True, False]
