"""Device memory written: a buffer filled with one value."""

from collections.abc import Iterator
from functools import partial

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import GIB, MIB, Bench, bandwidth, judged
from tonnage_gpu_agent.probes.streams import stream_sizes


class HbmWrite:
    """`fill_` with a value that no buffer held before."""

    def unsupported(self, bench: Bench) -> str | None:
        """Any device with room for one buffer."""
        return None if bench.free_bytes() > 16 * MIB else "no free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """512 MiB and 4 GiB."""
        for size in stream_sizes(bench, buffers=1):
            target = bench.integers(0, 100, size // 4, dtype=torch.int32)
            timing = bench.timer.eager([partial(target.fill_, 123456789)], budget_ms=80 if size >= GIB else 40)
            right = bool((target == 123456789).all())
            yield judged(bandwidth("hbm_write", size, timing, buffer_bytes=size), 0.0 if right else float("inf"), 0.0)


probe = HbmWrite()
