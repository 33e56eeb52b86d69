"""What the host-device copy probes share: both directions over sizes, checked bit for bit (guide lab 11)."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import GIB, MIB, Bench, bandwidth, judged

SIZES = (64 << 10, MIB, 16 * MIB, 256 * MIB, GIB)
QUICK_SIZES = (GIB,)


def sizes(bench: Bench) -> Sequence[int]:
    """Bytes a copy: the largest sets the ceiling, the small ones show the fixed cost."""
    return (4096,) if bench.rehearsal else QUICK_SIZES if bench.quick else SIZES


def host_buffer(bench: Bench, nbytes: int, *, pinned: bool) -> torch.Tensor:
    """Random bytes in host memory, page-locked or not."""
    made = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned and not bench.rehearsal)
    words = made.view(torch.int64)
    block = torch.randint(-(1 << 62), 1 << 62, (min(len(words), 1 << 17),))
    for start in range(0, len(words), len(block)):
        words[start : start + len(block)] = block[: len(words) - start] + start
    return made


def both_ways(bench: Bench, host: torch.Tensor, kind: str) -> Iterator[Measurement]:
    """`h2d_<kind>` and `d2h_<kind>` for every size that the buffer holds."""
    pinned = kind == "pinned"
    device = torch.zeros(len(host), dtype=torch.uint8, device=bench.device)
    back = torch.empty_like(host, pin_memory=pinned and not bench.rehearsal)
    for size in sizes(bench):
        down, up = device[:size], back[:size]
        timed = bench.timer.graph if pinned else bench.timer.eager
        in_time = timed([partial(down.copy_, host[:size], non_blocking=pinned)], budget_ms=100)
        out_time = timed([partial(up.copy_, down, non_blocking=pinned)], budget_ms=100)
        error = 0.0 if torch.equal(up, host[:size]) else float("inf")
        yield judged(bandwidth(f"h2d_{kind}", size, in_time, bytes=size), error, 0.0)
        yield judged(bandwidth(f"d2h_{kind}", size, out_time, bytes=size), error, 0.0)
