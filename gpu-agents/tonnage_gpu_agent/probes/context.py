"""The GPU's state beside a measurement: clocks, power, temperature, throttle bits, and how busy its siblings are."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tonnage_core.gpu_health.throttle import reasons


def sampler(uuid: str) -> Callable[[], Mapping[str, Any]]:
    """A function that reads the state of GPU `uuid` through NVML; it gives nothing where there is no NVML.

    A reading takes well under a millisecond and runs while the measured kernels do.
    """
    try:
        import pynvml as nv
    except ImportError:
        return dict
    try:
        nv.nvmlInit()
        handle = nv.nvmlDeviceGetHandleByUUID(uuid)
    except (OSError, nv.NVMLError):
        return dict

    def read() -> Mapping[str, Any]:
        try:
            return {
                "sm_clock_mhz": int(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)),
                "power_w": round(nv.nvmlDeviceGetPowerUsage(handle) / 1e3, 1),
                "temperature_c": int(nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)),
                "throttle": list(reasons(nv.nvmlDeviceGetCurrentClocksEventReasons(handle))),
                "siblings_busy": _siblings_busy(nv, uuid),
            }
        except nv.NVMLError:
            return {}

    return read


def _siblings_busy(nv: Any, uuid: str) -> int:
    """Siblings with work; one that is lost hides no other, nor this GPU's own state."""
    busy = 0
    for index in range(nv.nvmlDeviceGetCount()):
        try:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            found = nv.nvmlDeviceGetUUID(handle)
            if (found.decode() if isinstance(found, bytes) else found) != uuid:
                busy += nv.nvmlDeviceGetUtilizationRates(handle).gpu > 10
        except nv.NVMLError:
            continue
    return busy


def versions() -> dict[str, Any]:
    """Driver, torch, CUDA and Triton versions; absent ones are left out."""
    found: dict[str, Any] = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    try:
        import triton

        found["triton"] = str(triton.__version__)
    except ImportError:
        pass
    return {key: value for key, value in found.items() if value}
