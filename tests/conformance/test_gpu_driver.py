"""One suite over both drivers: NVML's adapter on stubbed library calls, and the fake that tests use."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.adapters.nvml import READERS, NvmlDriver
from tonnage_gpu_agent.errors import DeviceLostError, FieldUnsupportedError, NoGpuError
from tonnage_gpu_agent.fields import BY_NAME, FIELDS, plausible
from tonnage_gpu_agent.port import GpuDriver

UUID = "GPU-00000000-0000-0000-0000-000000000000"


def _value(kind: int) -> SimpleNamespace:
    return SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=SimpleNamespace(uiVal=45, ullVal=0))


def _link(handle: Any, link: int) -> int:
    if link >= 18:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return 1


def _memory(handle: Any, version: Any = None) -> SimpleNamespace:
    return SimpleNamespace(total=150754820096, used=629145600, free=150125674496, reserved=600000000)


CALLS: dict[str, Callable[..., Any]] = {
    "nvmlInit": lambda: None,
    "nvmlShutdown": lambda: None,
    "nvmlDeviceGetCount": lambda: 1,
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlDeviceGetUUID": lambda h: UUID,
    "nvmlDeviceGetName": lambda h: "NVIDIA H200",
    "nvmlDeviceGetPciInfo": lambda h: SimpleNamespace(busId="00000000:10:00.0"),
    "nvmlSystemGetDriverVersion": lambda: "580.159.04",
    "nvmlDeviceGetVbiosVersion": lambda h: "96.00.D9.00.01",
    "nvmlDeviceGetMigMode": lambda h: [0, 0],
    "nvmlDeviceGetMaxMigDeviceCount": lambda h: 0,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=3, memory=1),
    "nvmlDeviceGetBAR1MemoryInfo": lambda h: SimpleNamespace(bar1Used=1 << 20),
    "nvmlDeviceGetClockInfo": lambda h, domain: 1980,
    "nvmlDeviceGetPowerUsage": lambda h: 118300,
    "nvmlDeviceGetEnforcedPowerLimit": lambda h: 700000,
    "nvmlDeviceGetTotalEnergyConsumption": lambda h: 123456000,
    "nvmlDeviceGetTemperature": lambda h, sensor: 38,
    "nvmlDeviceGetFieldValues": lambda h, kinds: [_value(kind) for kind in kinds],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda h: 0x5,
    "nvmlDeviceGetTotalEccErrors": lambda h, kind, counter: 0,
    "nvmlDeviceGetRemappedRows": lambda h: (0, 0, 0, 0),
    "nvmlDeviceGetPcieReplayCounter": lambda h: 0,
    "nvmlDeviceGetPcieThroughput": lambda h, way: 12,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda h: 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda h: 5,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda h: 16,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda h: 16,
    "nvmlDeviceGetNvLinkState": _link,
    "nvmlDeviceGetFanSpeed": lambda h: 30,
    "nvmlDeviceGetComputeRunningProcesses": lambda h: [SimpleNamespace(pid=7, usedGpuMemory=1 << 30)],
    "nvmlDeviceGetGraphicsRunningProcesses": lambda h: [SimpleNamespace(pid=8, usedGpuMemory=None)],
}


@pytest.fixture(params=["nvml", "fake"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GpuDriver:
    if request.param == "fake":
        return FakeDriver([fake_gpu()])
    for name, call in CALLS.items():
        monkeypatch.setattr(pynvml, name, call)
    return NvmlDriver()


def test_a_driver_names_its_gpus(driver: GpuDriver) -> None:
    assert driver.start() == 1
    device = driver.device(0)
    assert (device.uuid, device.product, device.pci) == (UUID, "NVIDIA H200", "00000000:10:00.0")
    assert device.memory_bytes and not device.mig
    driver.stop()


@pytest.mark.parametrize("name", [field.name for field in FIELDS])
def test_every_field_reads_plausible_values_under_its_labels(driver: GpuDriver, name: str) -> None:
    driver.start()
    try:
        readings = driver.read(0, name)
    except FieldUnsupportedError:
        return
    kept, dropped = plausible(BY_NAME[name], readings)
    assert kept and not dropped
    assert {len(labels) for labels, _ in kept} == {len(BY_NAME[name].labels)}
    assert len({labels for labels, _ in kept}) == len(kept)


def test_processes_have_a_pid_and_maybe_memory(driver: GpuDriver) -> None:
    driver.start()
    for process in driver.processes(0):
        assert process.pid > 0
        assert process.used_bytes is None or process.used_bytes >= 0


def test_a_gpu_without_mig_has_no_instances(driver: GpuDriver) -> None:
    driver.start()
    assert list(driver.mig_instances(0)) == []


def test_the_nvml_adapter_reads_every_field() -> None:
    assert READERS.keys() == BY_NAME.keys()


@pytest.mark.parametrize(
    "code, error",
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, FieldUnsupportedError),
        (pynvml.NVML_ERROR_NO_PERMISSION, FieldUnsupportedError),
        (pynvml.NVML_ERROR_GPU_IS_LOST, DeviceLostError),
        (pynvml.NVML_ERROR_RESET_REQUIRED, DeviceLostError),
    ],
)
def test_nvml_errors_are_translated(monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]) -> None:
    def fail(handle: Any) -> int:
        raise pynvml.NVMLError(code)

    for name, call in CALLS.items():
        monkeypatch.setattr(pynvml, name, call)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", fail)
    driver = NvmlDriver()
    driver.start()
    with pytest.raises(error, match="GPU 0 power"):
        driver.read(0, "power")
    assert driver.read(0, "clock")


@pytest.mark.parametrize(
    "code, words",
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver library"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "differ in version"),
    ],
)
def test_no_driver_is_no_gpu_with_the_reason(monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    with pytest.raises(NoGpuError, match=words):
        NvmlDriver().start()
