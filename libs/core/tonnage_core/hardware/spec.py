"""One GPU model as the formulas see it: memory, bandwidths and dense compute ceilings."""

from dataclasses import dataclass

from tonnage_core.errors import BadInputError
from tonnage_core.hardware.collectives import AllReduceCurve
from tonnage_core.units import GIB


class UnknownGpuError(BadInputError):
    """No GPU of the catalogue has that name or alias."""


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Vendor figures of one GPU. None: not supported or not published; unknown is never zero.

    `memory_gib` is what CUDA reports as total (2^30 bytes), less than the printed size; `hbm_gbps`, `nvlink_gbps` and
    `pcie_gbps` are GB/s, links in one direction; `*_tflops` and `*_tops` are dense.
    """

    name: str
    aliases: tuple[str, ...]
    memory_gib: float
    hbm_gbps: float
    bf16_tflops: float
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    fp4_tflops: float | None = None
    fp32_tflops: float | None = None
    nvlink_gbps: float | None = None
    pcie_gbps: float | None = None
    tdp_w: float | None = None
    source: str = ""
    all_reduces: tuple[AllReduceCurve, ...] = ()
    """Measured over 2 and more such GPUs of one node, where a GpuProfile has them; one a number of ranks."""

    @property
    def memory_bytes(self) -> float:
        """Total device memory in bytes."""
        return self.memory_gib * GIB
