"""The GPU driver through NVML (nvidia-ml-py, NVIDIA's own bindings)."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pynvml as nv

from tonnage_core.gpu_health.throttle import reasons
from tonnage_gpu_agent.errors import AgentError, DeviceLostError, FieldUnsupportedError, NoGpuError
from tonnage_gpu_agent.port import Device, GpuProcess, MigInstance, Reading

Handle = Any
LOST = (
    nv.NVML_ERROR_GPU_IS_LOST,
    nv.NVML_ERROR_RESET_REQUIRED,
    nv.NVML_ERROR_UNKNOWN,
    nv.NVML_ERROR_NOT_FOUND,
    nv.NVML_ERROR_IRQ_ISSUE,
)
NO_GPU = {
    nv.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver library on this node (libnvidia-ml.so.1 not found)",
    nv.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded on this node",
    nv.NVML_ERROR_NO_PERMISSION: "no permission to open the NVIDIA driver: give the pod the GPU devices",
    nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver library and kernel module differ in version: reload the driver",
}


def _one(value: float) -> list[Reading]:
    return [((), float(value))]


def _utilization(h: Handle) -> list[Reading]:
    rates = nv.nvmlDeviceGetUtilizationRates(h)
    return [(("gpu",), rates.gpu / 100), (("memory_controller",), rates.memory / 100)]


def _memory(h: Handle) -> list[Reading]:
    try:
        info = nv.nvmlDeviceGetMemoryInfo(h, version=nv.nvmlMemory_v2)
        reserved = [(("reserved",), float(info.reserved))]
    except nv.NVMLError:
        info, reserved = nv.nvmlDeviceGetMemoryInfo(h), []
    named = [((state,), float(getattr(info, state))) for state in ("total", "used", "free")]
    return [*named, *reserved]


def _clock(h: Handle) -> list[Reading]:
    domains = {"sm": nv.NVML_CLOCK_SM, "memory": nv.NVML_CLOCK_MEM, "graphics": nv.NVML_CLOCK_GRAPHICS}
    return [((name,), nv.nvmlDeviceGetClockInfo(h, domain) * 1e6) for name, domain in domains.items()]


def _temperature(h: Handle) -> list[Reading]:
    found: list[Reading] = [(("gpu",), float(nv.nvmlDeviceGetTemperature(h, nv.NVML_TEMPERATURE_GPU)))]
    memory = nv.nvmlDeviceGetFieldValues(h, [nv.NVML_FI_DEV_MEMORY_TEMP])[0]
    if memory.nvmlReturn == nv.NVML_SUCCESS:
        found.append((("memory",), float(memory.value.uiVal)))
    return found


def _throttle(h: Handle) -> list[Reading]:
    bits = nv.nvmlDeviceGetCurrentClocksEventReasons(h)
    return [((name,), 1.0) for name in reasons(bits) if not name.startswith("bit_")]


def _ecc(h: Handle, counter: int) -> list[Reading]:
    kinds = {"corrected": nv.NVML_MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
    return [((name,), float(nv.nvmlDeviceGetTotalEccErrors(h, kind, counter))) for name, kind in kinds.items()]


def _remapped(h: Handle) -> list[Reading]:
    corrected, uncorrected, _, _ = nv.nvmlDeviceGetRemappedRows(h)
    return [(("corrected",), float(corrected)), (("uncorrected",), float(uncorrected))]


def _pcie_throughput(h: Handle) -> list[Reading]:
    ways = {"transmit": nv.NVML_PCIE_UTIL_TX_BYTES, "receive": nv.NVML_PCIE_UTIL_RX_BYTES}
    return [((name,), nv.nvmlDeviceGetPcieThroughput(h, way) * 1e3) for name, way in ways.items()]


def _pcie_link(h: Handle) -> list[Reading]:
    return [
        (("generation",), float(nv.nvmlDeviceGetCurrPcieLinkGeneration(h))),
        (("generation_max",), float(nv.nvmlDeviceGetMaxPcieLinkGeneration(h))),
        (("width",), float(nv.nvmlDeviceGetCurrPcieLinkWidth(h))),
        (("width_max",), float(nv.nvmlDeviceGetMaxPcieLinkWidth(h))),
    ]


def _nvlink(h: Handle) -> list[Reading]:
    found: list[Reading] = []
    for link in range(nv.NVML_NVLINK_MAX_LINKS):
        try:
            found.append(((str(link),), float(nv.nvmlDeviceGetNvLinkState(h, link))))
        except nv.NVMLError:
            break
    return found


def _nvlink_errors(h: Handle) -> list[Reading]:
    kinds = {
        "crc": nv.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        "replay": nv.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        "recovery": nv.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    }
    values = nv.nvmlDeviceGetFieldValues(h, list(kinds.values()))
    pairs = zip(kinds, values, strict=True)
    return [((name,), float(v.value.ullVal)) for name, v in pairs if v.nvmlReturn == nv.NVML_SUCCESS]


READERS: dict[str, Callable[[Handle], Iterable[Reading]]] = {
    "utilization": _utilization,
    "memory": _memory,
    "bar1": lambda h: _one(nv.nvmlDeviceGetBAR1MemoryInfo(h).bar1Used),
    "clock": _clock,
    "power": lambda h: _one(nv.nvmlDeviceGetPowerUsage(h) / 1e3),
    "power_limit": lambda h: _one(nv.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3),
    "energy": lambda h: _one(nv.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3),
    "temperature": _temperature,
    "throttle": _throttle,
    "ecc": lambda h: _ecc(h, nv.NVML_VOLATILE_ECC),
    "ecc_lifetime": lambda h: _ecc(h, nv.NVML_AGGREGATE_ECC),
    "remapped_rows": _remapped,
    "remap_pending": lambda h: _one(nv.nvmlDeviceGetRemappedRows(h)[2]),
    "remap_failure": lambda h: _one(nv.nvmlDeviceGetRemappedRows(h)[3]),
    "pcie_replay": lambda h: _one(nv.nvmlDeviceGetPcieReplayCounter(h)),
    "pcie_throughput": _pcie_throughput,
    "pcie_link": _pcie_link,
    "nvlink": _nvlink,
    "nvlink_errors": _nvlink_errors,
    "fan": lambda h: _one(nv.nvmlDeviceGetFanSpeed(h) / 100),
}
"""Field name of `fields.FIELDS` -> how NVML gives it."""


def _translated(error: nv.NVMLError, what: str) -> AgentError:
    if error.value in LOST:
        return DeviceLostError(f"{what}: {error}")
    return FieldUnsupportedError(f"{what}: {error}")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class NvmlDriver:
    """`GpuDriver` over NVML. Handles are looked up for each device apart, so one lost GPU hides no other."""

    def __init__(self) -> None:
        self._handles: dict[int, Handle] = {}
        self._events: Any = None

    def start(self) -> int:
        """Open NVML; the number of GPUs, `NoGpuError` when there is none."""
        try:
            nv.nvmlInit()
            count = int(nv.nvmlDeviceGetCount())
        except nv.NVMLError as error:
            raise NoGpuError(NO_GPU.get(error.value, f"NVML cannot start: {error}")) from error
        if count == 0:
            raise NoGpuError("the NVIDIA driver is loaded and sees no GPU")
        return count

    def _handle(self, index: int) -> Handle:
        if index not in self._handles:
            try:
                self._handles[index] = nv.nvmlDeviceGetHandleByIndex(index)
            except nv.NVMLError as error:
                raise DeviceLostError(f"GPU {index}: {error}") from error
        return self._handles[index]

    def device(self, index: int) -> Device:
        """Identity of a GPU."""
        h = self._handle(index)
        try:
            return Device(
                index=index,
                uuid=_text(nv.nvmlDeviceGetUUID(h)),
                product=_text(nv.nvmlDeviceGetName(h)),
                pci=_text(nv.nvmlDeviceGetPciInfo(h).busId),
                memory_bytes=int(nv.nvmlDeviceGetMemoryInfo(h).total),
                driver=_text(nv.nvmlSystemGetDriverVersion()),
                vbios=_optional(lambda: _text(nv.nvmlDeviceGetVbiosVersion(h)), ""),
                mig=_optional(lambda: nv.nvmlDeviceGetMigMode(h)[0] == nv.NVML_DEVICE_MIG_ENABLE, False),
            )
        except nv.NVMLError as error:
            raise DeviceLostError(f"GPU {index}: {error}") from error

    def read(self, index: int, field: str) -> Sequence[Reading]:
        """Raw readings of one field."""
        try:
            return list(READERS[field](self._handle(index)))
        except nv.NVMLError as error:
            raise _translated(error, f"GPU {index} {field}") from error

    def processes(self, index: int) -> Sequence[GpuProcess]:
        """Compute and graphics processes."""
        h = self._handle(index)
        found: dict[int, GpuProcess] = {}
        try:
            for listed in (nv.nvmlDeviceGetComputeRunningProcesses(h), nv.nvmlDeviceGetGraphicsRunningProcesses(h)):
                for p in listed:
                    used = None if p.usedGpuMemory is None else int(p.usedGpuMemory)
                    found[int(p.pid)] = GpuProcess(int(p.pid), used if used is not None and used < 1 << 50 else None)
        except nv.NVMLError as error:
            raise _translated(error, f"GPU {index} processes") from error
        return list(found.values())

    def mig_instances(self, index: int) -> Sequence[MigInstance]:
        """MIG devices of a GPU."""
        h = self._handle(index)
        found = []
        for slot in range(_optional(lambda: int(nv.nvmlDeviceGetMaxMigDeviceCount(h)), 0)):
            try:
                mig = nv.nvmlDeviceGetMigDeviceHandleByIndex(h, slot)
                memory = int(nv.nvmlDeviceGetMemoryInfo(mig).total)
                found.append(MigInstance(_text(nv.nvmlDeviceGetUUID(mig)), _text(nv.nvmlDeviceGetName(mig)), memory))
            except nv.NVMLError:
                continue
        return found

    def wait_xid(self, timeout_s: float) -> tuple[str, int] | None:
        """The next XID event."""
        try:
            if self._events is None:
                self._events = nv.nvmlEventSetCreate()
                for index in range(int(nv.nvmlDeviceGetCount())):
                    _optional(partial(self._register, index), None)
            event = nv.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
            return _text(nv.nvmlDeviceGetUUID(event.device)), int(event.eventData)
        except nv.NVMLError_Timeout:
            return None
        except nv.NVMLError as error:
            raise _translated(error, "XID events") from error

    def _register(self, index: int) -> None:
        nv.nvmlDeviceRegisterEvents(self._handle(index), nv.nvmlEventTypeXidCriticalError, self._events)

    def stop(self) -> None:
        """Close NVML."""
        _optional(nv.nvmlShutdown, None)


def _optional(call: Callable[[], Any], default: Any) -> Any:
    """The call's answer, or `default` where NVML has none."""
    try:
        return call()
    except (nv.NVMLError, DeviceLostError):
        return default
