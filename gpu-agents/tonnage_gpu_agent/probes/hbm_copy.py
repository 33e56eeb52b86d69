"""Device memory copied to device memory: bytes read plus bytes written (guide lab 10b's reference line)."""

from collections.abc import Iterator
from functools import partial

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import GIB, MIB, Bench, bandwidth, judged
from tonnage_gpu_agent.probes.streams import stream_sizes


class HbmCopy:
    """`y.copy_(x)`; the copy is compared bit for bit."""

    def unsupported(self, bench: Bench) -> str | None:
        """Any device with room for two buffers."""
        return None if bench.free_bytes() > 32 * MIB else "no free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """512 MiB and 4 GiB."""
        for size in stream_sizes(bench, buffers=2):
            source = bench.integers(0, 1 << 30, size // 4, dtype=torch.int32)
            target = torch.full_like(source, -1)
            target.copy_(source)
            equal = bool(torch.equal(source, target))
            target.fill_(-1)
            timing = bench.timer.eager([partial(target.copy_, source)], budget_ms=120 if size >= GIB else 40)
            equal = equal and bool(torch.equal(source, target))
            point = bandwidth("hbm_copy", 2 * size, timing, buffer_bytes=size)
            yield judged(point, 0.0 if equal else float("inf"), 0.0)


probe = HbmCopy()
