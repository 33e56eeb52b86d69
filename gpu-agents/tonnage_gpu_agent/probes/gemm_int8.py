"""Matrix products in int8, int32 out; checked for equality."""

from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.gemm import GemmSweep
from tonnage_gpu_agent.probes.probe import Bench


def make(bench: Bench, rows: int, columns: int) -> torch.Tensor:
    """Whole numbers of [-127, 127]."""
    return bench.integers(-127, 128, rows, columns, dtype=torch.int8)


def multiply(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> object:
    """`torch._int_mm`, which wants more than 16 rows: the sweep pads."""
    return torch._int_mm(x, w.t(), out=y)


SWEEP = GemmSweep("gemm_int8", make, multiply, torch.int32, limit=0.0, least_rows=32)


class GemmInt8:
    """cuBLASLt through the framework."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs compute capability 7.5 and a build with `_int_mm`."""
        if not bench.rehearsal and torch.cuda.get_device_capability(bench.device) < (7, 5):
            return "needs compute capability 7.5"
        return None if hasattr(torch, "_int_mm") else "this torch has no _int_mm"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """B from 1 to 8192."""
        yield from SWEEP.run(bench)


probe = GemmInt8()
