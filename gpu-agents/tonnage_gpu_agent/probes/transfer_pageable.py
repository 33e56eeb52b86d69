"""Copies between ordinary host memory and the device: what a loader without pinned buffers gets."""

from collections.abc import Iterator

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import GIB, Bench
from tonnage_gpu_agent.probes.transfers import both_ways, host_buffer


class TransferPageable:
    """The driver stages every copy through its own pinned buffers."""

    def unsupported(self, bench: Bench) -> str | None:
        """Any GPU with room for 1 GiB."""
        return None if bench.rehearsal or bench.free_bytes() > 2 * GIB else "needs 2 GiB of free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """From 64 KiB to 1 GiB."""
        yield from both_ways(bench, host_buffer(bench, bench.sized(GIB, 4096), pinned=False), "pageable")


probe = TransferPageable()
