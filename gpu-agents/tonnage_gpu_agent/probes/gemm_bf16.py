"""Decode and prefill matrix products in bf16."""

from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.gemm import GemmSweep, multiply, wide
from tonnage_gpu_agent.probes.probe import Bench

SWEEP = GemmSweep("gemm_bf16", wide(torch.bfloat16), multiply, torch.bfloat16, limit=1e-2)


class GemmBf16:
    """cuBLAS through the framework."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs compute capability 8.0 on a GPU."""
        if not bench.rehearsal and torch.cuda.get_device_capability(bench.device) < (8, 0):
            return "needs compute capability 8.0"
        return None

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """B from 1 to 8192."""
        yield from SWEEP.run(bench)


probe = GemmBf16()
