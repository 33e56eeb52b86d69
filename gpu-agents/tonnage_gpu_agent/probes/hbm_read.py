"""Device memory read: sums of a large buffer, written nowhere but for a few partial sums."""

from collections.abc import Iterator
from functools import partial

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.kernels.streams import read_sum
from tonnage_gpu_agent.probes.probe import GIB, MIB, Bench, bandwidth, judged, relative_error
from tonnage_gpu_agent.probes.streams import stream_sizes


class HbmRead:
    """A Triton kernel that reads float32; whole numbers, so that the sum is exact."""

    def unsupported(self, bench: Bench) -> str | None:
        """Any device with room for one buffer."""
        return None if bench.free_bytes() > 16 * MIB else "no free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """512 MiB and 4 GiB."""
        for size in stream_sizes(bench, buffers=1):
            source = bench.integers(-4, 5, size // 4, dtype=torch.int32).float()
            sums = torch.full((bench.sized(32 * bench.multiprocessors, 4),), torch.nan, device=bench.device)
            timing = bench.timer.eager([partial(read_sum, source, sums)], budget_ms=80 if size >= GIB else 40)
            error = relative_error(sums.double().sum()[None], source.sum(dtype=torch.float64)[None])
            yield judged(bandwidth("hbm_read", size, timing, buffer_bytes=size), error, 1e-12)


probe = HbmRead()
