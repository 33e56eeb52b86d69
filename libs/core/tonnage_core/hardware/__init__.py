"""GPUs as data: one dataclass and a catalogue of vendor figures."""

from tonnage_core.hardware.catalogue import find_gpu
from tonnage_core.hardware.spec import GpuSpec, UnknownGpuError

__all__ = ["GpuSpec", "UnknownGpuError", "find_gpu"]
