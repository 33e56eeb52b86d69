"""How much of a GPU's peaks an engine's kernels reach, for printed peaks and for measured ones."""

from dataclasses import dataclass, replace
from functools import lru_cache

from tonnage_core.hardware import GpuSpec, UnknownGpuError, find_gpu


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of a GPU's peaks that kernels reach, and fixed costs; times in seconds. The defaults are of printed peaks.

    Ceilings measured on one H200: reads 4,196 of 4,800 GB/s, 767 of 989 TFLOP/s in a bf16 GEMM of 2,048 rows, 635 in
    fused attention, 54.5 of 64 GB/s over PCIe from pinned memory, 1.1 us a kernel of a CUDA graph. `memory` and `gemm`
    stand below them, inside the 60 to 85 % of peak that the LLM inference guide gives for real systems;
    `all_reduce_s` is its "tens of microseconds" for small messages. `kernel_s` (launch and tail of one kernel) and
    `step_s` were chosen on 63 public measurements of vLLM at up to 64 requests in flight (InferenceX, via
    ai-dynamo/aiconfigurator, Apache-2.0): TPOT is then off by 12 % on average, 8 % in the median, 2 % too low overall.
    """

    memory: float = 0.75
    gemm: float = 0.60
    attention: float = 0.60
    pcie: float = 0.85
    link: float = 0.75
    kernel_s: float = 2.5e-6
    kernels_per_layer: int = 9
    """Two norms, two projections, rotary with cache write, attention, two network projections, activation."""
    all_reduce_s: float = 20e-6
    step_s: float = 1e-3
    """Input preparation, sampling and scheduling that the GPU waits for."""


_HBM_MEASURED = 4227 / 4800
_GEMM_MEASURED = 767 / 989
_PCIE_MEASURED = 54.5 / 64
"""What one healthy H200 measured of its printed peaks (reference GpuProfile): the way from one kind to the other."""


@dataclass(frozen=True, slots=True)
class MeasuredShares:
    """What a card's figures are of its printed ones, when they were measured: divide an efficiency of printed peaks."""

    memory: float = 1.0
    gemm: float = 1.0
    pcie: float = 1.0


@lru_cache(maxsize=256)
def measured_shares(gpu: GpuSpec) -> MeasuredShares:
    """1 for figures of the catalogue, the healthy card's share for measured ones: a measured ceiling is below print."""
    try:
        printed = find_gpu(gpu.name)
    except UnknownGpuError:
        printed = None
    return MeasuredShares(
        memory=_HBM_MEASURED if printed is None or gpu.hbm_gbps != printed.hbm_gbps else 1.0,
        gemm=_GEMM_MEASURED if printed is None or gpu.bf16_tflops != printed.bf16_tflops else 1.0,
        pcie=_PCIE_MEASURED if printed is not None and gpu.pcie_gbps != printed.pcie_gbps else 1.0,
    )


def efficiency_for(gpu: GpuSpec) -> Efficiency:
    """The shares for `gpu`: larger where its figure was measured, since a measured ceiling is below the printed one.

    So a healthy card gives the same step times from its GpuProfile as from the catalogue, and a slow one slower ones.
    """
    shares, of = Efficiency(), measured_shares(gpu)
    return replace(
        shares,
        memory=shares.memory / of.memory,
        gemm=shares.gemm / of.gemm,
        attention=shares.attention / of.gemm,
        pcie=min(1.0, shares.pcie / of.pcie),
    )
