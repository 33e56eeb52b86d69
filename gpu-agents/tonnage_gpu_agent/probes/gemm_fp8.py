"""Matrix products in fp8 (e4m3), per-tensor scales, bf16 out."""

from collections.abc import Iterator
from functools import lru_cache

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.gemm import GemmSweep
from tonnage_gpu_agent.probes.probe import Bench


def make(bench: Bench, rows: int, columns: int) -> torch.Tensor:
    """Normal values rounded to e4m3."""
    return bench.normal(rows, columns, dtype=torch.bfloat16).to(torch.float8_e4m3fn)


def scaled(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> object:
    """`torch._scaled_mm` wants the second operand column-major: W^T of a row-major W is."""
    one = unit_scale(x.device)
    return torch._scaled_mm(x, w.t(), one, one, out_dtype=y.dtype, out=y)


@lru_cache
def unit_scale(device: torch.device) -> torch.Tensor:
    """A scale of one, made once: making it in a timed call would add a kernel."""
    return torch.ones((), device=device)


SWEEP = GemmSweep("gemm_fp8", make, scaled, torch.bfloat16, limit=1e-2)


class GemmFp8:
    """cuBLASLt through the framework; N and K are multiples of 16 as it demands."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs compute capability 8.9 and a build with `_scaled_mm`."""
        if bench.rehearsal:
            return "fp8 products need a GPU"
        if torch.cuda.get_device_capability(bench.device) < (8, 9):
            return "needs compute capability 8.9"
        return None if hasattr(torch, "_scaled_mm") else "this torch has no _scaled_mm"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """B from 1 to 8192."""
        yield from SWEEP.run(bench)


probe = GemmFp8()
