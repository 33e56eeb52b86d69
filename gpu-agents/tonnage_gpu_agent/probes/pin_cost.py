"""What page-locking host memory costs: why a loader pins a ring once instead of a model each time."""

import time
from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.probes.probe import GIB, MIB, Bench


class PinCost:
    """Allocation of fresh page-locked memory, by the wall clock; the allocator must not have kept the block."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs a driver to lock pages for."""
        return "a host alone locks no pages for a device" if bench.rehearsal else None

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Seconds a GiB, at 256 MiB and 2 GiB."""
        for size in (256 * MIB, 2 * GIB)[: 1 if bench.quick else None]:
            torch._C._host_emptyCache()
            began = time.perf_counter()
            block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            took = time.perf_counter() - began
            del block
            torch._C._host_emptyCache()
            yield Measurement(
                "pin_cost",
                PointStatus.OK,
                took * GIB / size,
                "s/GiB",
                bytes=size,
                params={"bytes": size, "us": took * 1e6},
            )


probe = PinCost()
