"""What a probe plugin is and what it works with."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.probes.timing import Timer, Timing

_CUDA: Any = torch.cuda
GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bench:
    """A device to measure and how. In a rehearsal (host device) sizes shrink to a handful of elements.

    `peers` are the other GPUs of the run; `helping` goes around processes that a probe starts on them. Buffers are
    drawn from `generator`, never zeros: those hide unwritten outputs and run faster than data.
    """

    device: torch.device
    timer: Timer
    generator: torch.Generator
    quick: bool = False
    l2_bytes: int = 0
    multiprocessors: int = 1
    peers: Sequence[torch.device] = ()
    scratch_dir: str = ""
    helping: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def rehearsal(self) -> bool:
        """There is no GPU: run the logic at toy sizes."""
        return self.device.type != "cuda"

    def sized(self, full: int, rehearsal: int) -> int:
        """`full` on a GPU, `rehearsal` on a host."""
        return rehearsal if self.rehearsal else full

    @property
    def half(self) -> torch.dtype:
        """bf16 on a GPU; float32 in a rehearsal, since Triton's interpreter has no bf16 products."""
        return torch.float32 if self.rehearsal else torch.bfloat16

    def copies(self, nbytes: int) -> int:
        """How many distinct buffers of `nbytes` a rotation needs so that none is found in the L2 cache again."""
        return 2 if self.rehearsal else max(4, math.ceil(4 * self.l2_bytes / max(nbytes, 1)))

    def free_bytes(self) -> int:
        """Device memory that can be allocated now."""
        return 64 * MIB if self.rehearsal else int(torch.cuda.mem_get_info(self.device)[0])

    def stream(self) -> torch.cuda.Stream:
        """A second stream of the device."""
        made: torch.cuda.Stream = _CUDA.Stream(self.device)
        return made

    def normal(self, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        """Normally distributed values of standard deviation `scale`."""
        made = torch.empty(*shape, dtype=dtype, device=self.device)
        return made.normal_(0.0, scale, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Integers of [low, high)."""
        return torch.randint(low, high, shape, dtype=dtype, device=self.device, generator=self.generator)


class Probe(Protocol):
    """One file, one object `probe`. `points` yields as it goes, so that a killed run keeps what was measured."""

    def unsupported(self, bench: Bench) -> str | None:
        """Why this device or software cannot run the probe, or None."""
        ...

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Measure. An exception ends this probe only, with status `error`."""
        ...


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """||out - ref|| / ||ref|| in float64; infinite when an element is not finite."""
    wide, ref = out.double(), reference.double()
    if not bool(torch.isfinite(wide).all()):
        return math.inf
    norm = float(torch.linalg.vector_norm(ref))
    return float(torch.linalg.vector_norm(wide - ref)) / norm if norm else float(torch.linalg.vector_norm(wide))


def judged(point: Measurement, error: float, limit: float) -> Measurement:
    """The point with its error; `wrong` when that exceeds `limit` (NaN does), whatever its speed."""
    if error <= limit:
        return replace(point, relative_error=error)
    text = f"relative error {error:.3g} is over {limit:g}"
    return replace(point, status=PointStatus.WRONG, relative_error=error if math.isfinite(error) else None, detail=text)


def bandwidth(name: str, nbytes: int, timing: Timing, **params: float | str) -> Measurement:
    """A point in GB/s for `nbytes` moved a call."""
    return Measurement(
        name=name,
        status=PointStatus.OK,
        value=nbytes / timing.us / 1e3,
        unit="GB/s",
        bytes=nbytes,
        params={**params, "us": timing.us, "spread": timing.spread},
        context=timing.context,
    )


def rate(name: str, flops: int, nbytes: int, timing: Timing, **params: float | str) -> Measurement:
    """A point in TFLOP/s for `flops` a call; a multiply-add is two."""
    return Measurement(
        name=name,
        status=PointStatus.OK,
        value=flops / timing.us / 1e6,
        unit="TFLOP/s",
        bytes=nbytes,
        flops=flops,
        params={**params, "us": timing.us, "spread": timing.spread},
        context=timing.context,
    )


def duration(name: str, timing: Timing, *, flops: int = 0, nbytes: int = 0, **params: float | str) -> Measurement:
    """A point in microseconds a call."""
    return Measurement(
        name=name,
        status=PointStatus.OK,
        value=timing.us,
        unit="us",
        bytes=nbytes or None,
        flops=flops or None,
        params={**params, "us": timing.us, "spread": timing.spread},
        context=timing.context,
    )


def without(name: str, why: str, **params: float | str) -> Measurement:
    """A point that this device or software cannot have."""
    return Measurement(name=name, status=PointStatus.UNSUPPORTED, detail=why, params=params)
