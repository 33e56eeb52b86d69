"""A GPU driver in memory: for tests, and to try the agent where there is no GPU. It can hang, lose a GPU and lie."""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tonnage_gpu_agent.errors import DeviceLostError, FieldUnsupportedError, NoGpuError
from tonnage_gpu_agent.port import Device, GpuProcess, MigInstance, Reading

HEALTHY: dict[str, list[Reading]] = {
    "utilization": [(("gpu",), 0.0), (("memory_controller",), 0.0)],
    "memory": [(("total",), 150109880320.0), (("used",), 629145600.0), (("free",), 149480734720.0)],
    "clock": [(("sm",), 1.98e9), (("memory",), 3.201e9)],
    "power": [((), 118.3)],
    "power_limit": [((), 700.0)],
    "energy": [((), 123456.0)],
    "temperature": [(("gpu",), 38.0), (("memory",), 45.0)],
    "throttle": [(("gpu_idle",), 1.0)],
    "ecc": [(("corrected",), 0.0), (("uncorrected",), 0.0)],
    "ecc_lifetime": [(("corrected",), 0.0), (("uncorrected",), 0.0)],
    "remapped_rows": [(("corrected",), 0.0), (("uncorrected",), 0.0)],
    "remap_pending": [((), 0.0)],
    "remap_failure": [((), 0.0)],
    "pcie_replay": [((), 0.0)],
    "pcie_throughput": [(("transmit",), 0.0), (("receive",), 0.0)],
    "pcie_link": [(("generation",), 5.0), (("width",), 16.0)],
    "nvlink": [(("0",), 1.0), (("1",), 1.0)],
    "nvlink_errors": [(("crc",), 0.0)],
}


@dataclass
class FakeGpu:
    """One fake GPU; tests change its readings, lose it or make its calls hang until `release` is set."""

    device: Device
    readings: dict[str, list[Reading]] = field(default_factory=lambda: {k: list(v) for k, v in HEALTHY.items()})
    lost: bool = False
    hang: bool = False
    release: threading.Event = field(default_factory=threading.Event)
    processes: list[GpuProcess] | None = field(default_factory=list)
    mig_instances: list[MigInstance] = field(default_factory=list)


class FakeDriver:
    """`GpuDriver` over `FakeGpu`s; none raises `NoGpuError` as a node without a driver does."""

    def __init__(self, gpus: Sequence[FakeGpu] = (), why_none: str = "no NVIDIA driver library on this node") -> None:
        self.gpus = list(gpus)
        self.why_none = why_none
        self.xids: queue.Queue[tuple[str, int]] = queue.Queue()
        self.stopped = False

    def _gpu(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        if gpu.hang:
            gpu.release.wait()
        if gpu.lost:
            raise DeviceLostError(f"GPU {index}: GPU is lost")
        return gpu

    def start(self) -> int:
        """The number of GPUs."""
        if not self.gpus:
            raise NoGpuError(self.why_none)
        return len(self.gpus)

    def device(self, index: int) -> Device:
        """Identity of a GPU."""
        return self._gpu(index).device

    def read(self, index: int, field: str) -> Sequence[Reading]:
        """The readings set for a field."""
        gpu = self._gpu(index)
        if field not in gpu.readings:
            raise FieldUnsupportedError(f"GPU {index} {field}: not supported")
        return gpu.readings[field]

    def processes(self, index: int) -> Sequence[GpuProcess]:
        """The processes set; hidden when None."""
        listed = self._gpu(index).processes
        if listed is None:
            raise FieldUnsupportedError(f"GPU {index} processes: not visible")
        return listed

    def mig_instances(self, index: int) -> Sequence[MigInstance]:
        """The MIG instances set."""
        return self._gpu(index).mig_instances

    def wait_xid(self, timeout_s: float) -> tuple[str, int] | None:
        """The next XID put into `xids`."""
        try:
            return self.xids.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def stop(self) -> None:
        """Remember that the driver was closed."""
        self.stopped = True


def fake_gpu(index: int = 0, product: str = "NVIDIA H200") -> FakeGpu:
    """A healthy, idle GPU."""
    uuid = f"GPU-00000000-0000-0000-0000-{index:012d}"
    pci = f"00000000:{0x10 + index:02x}:00.0"
    return FakeGpu(Device(index, uuid, product, pci, 150109880320, "580.159.04", "96.00.D9.00.01"))
