"""Device memory triad: a = b + s * c, two reads and a write (STREAM's fourth kernel)."""

from collections.abc import Iterator
from functools import partial

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import GIB, MIB, Bench, bandwidth, judged, relative_error
from tonnage_gpu_agent.probes.streams import stream_sizes

SCALE = 3.0


class HbmTriad:
    """`torch.add(b, c, alpha=s, out=a)` in float32: one kernel."""

    def unsupported(self, bench: Bench) -> str | None:
        """Any device with room for three buffers."""
        return None if bench.free_bytes() > 48 * MIB else "no free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """512 MiB and 4 GiB a buffer."""
        for size in stream_sizes(bench, buffers=3):
            b, c = (bench.normal(size // 4, dtype=torch.float32) for _ in range(2))
            a = torch.full_like(b, torch.nan)
            timing = bench.timer.eager(
                [partial(torch.add, b, c, alpha=SCALE, out=a)], budget_ms=80 if size >= GIB else 40
            )
            head = slice(0, 1 << 22)
            error = relative_error(a[head], b[head].double() + SCALE * c[head].double())
            error = error if bool(torch.isfinite(a).all()) else float("inf")
            yield judged(bandwidth("hbm_triad", 3 * size, timing, buffer_bytes=size), error, 1e-6)


probe = HbmTriad()
