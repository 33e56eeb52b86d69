"""Copies between page-locked host memory and the device: in, out, and both at once."""

from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import GIB, Bench, bandwidth, judged
from tonnage_gpu_agent.probes.transfers import both_ways, host_buffer


class TransferPinned:
    """The copy engines' own speed: PCIe's."""

    def unsupported(self, bench: Bench) -> str | None:
        """Any GPU with room for two buffers of 1 GiB."""
        return None if bench.rehearsal or bench.free_bytes() > 3 * GIB else "needs 3 GiB of free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """From 64 KiB to 1 GiB, and both directions of 512 MiB at once."""
        size = bench.sized(GIB, 4096)
        host = host_buffer(bench, size, pinned=True)
        yield from both_ways(bench, host, "pinned")
        if not bench.rehearsal:
            yield self._both_at_once(bench, host, size // 2)

    def _both_at_once(self, bench: Bench, host: torch.Tensor, size: int) -> Measurement:
        out, back = host[:size], host[size : 2 * size]
        into, source = (torch.zeros(size, dtype=torch.uint8, device=bench.device) for _ in range(2))
        source.copy_(back)
        target = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        side = bench.stream()

        def call() -> None:
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                target.copy_(source, non_blocking=True)
            into.copy_(out, non_blocking=True)
            main.wait_stream(side)

        timing = bench.timer.eager([call], budget_ms=300)
        equal = torch.equal(target, back) and torch.equal(into.cpu(), out)
        point = bandwidth("bidirectional_pinned", 2 * size, timing, bytes=size)
        return judged(point, 0.0 if equal else float("inf"), 0.0)


probe = TransferPinned()
