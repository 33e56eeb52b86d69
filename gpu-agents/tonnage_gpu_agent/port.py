"""The port to a GPU driver: what the agent asks of NVML, so that a fake can hang, lose a device or lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Reading = tuple[tuple[str, ...], float]
"""Values of a field's own labels, and the reading."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the driver names it. `pci` is the bus address; `mig` is true when MIG mode is on."""

    index: int
    uuid: str
    product: str
    pci: str = ""
    memory_bytes: int | None = None
    driver: str = ""
    vbios: str = ""
    mig: bool = False


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds GPU memory; the driver may hide how much."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG device of a GPU."""

    uuid: str
    profile: str
    memory_bytes: int | None


class GpuDriver(Protocol):
    """Every call may block for ever; the agent calls each device from its own thread and watches the clock."""

    def start(self) -> int:
        """Open the driver; the number of GPUs. `NoGpuError` says why there is none."""
        ...

    def device(self, index: int) -> Device:
        """Identity of a GPU; `DeviceLostError` when it does not answer."""
        ...

    def read(self, index: int, field: str) -> Sequence[Reading]:
        """Raw readings of a field of `fields.FIELDS`; `FieldUnsupportedError`, `DeviceLostError`."""
        ...

    def processes(self, index: int) -> Sequence[GpuProcess]:
        """Processes with memory on the GPU, this container's view; `FieldUnsupportedError` when hidden."""
        ...

    def mig_instances(self, index: int) -> Sequence[MigInstance]:
        """MIG devices of a GPU; none when MIG is off."""
        ...

    def wait_xid(self, timeout_s: float) -> tuple[str, int] | None:
        """The next XID event as (uuid, code), or None after `timeout_s`."""
        ...

    def stop(self) -> None:
        """Close the driver."""
        ...
