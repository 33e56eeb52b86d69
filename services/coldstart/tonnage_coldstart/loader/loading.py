"""`load`: a model's tensors on a device, verified, all or none."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tonnage_coldstart.errors import DeviceMemoryError
from tonnage_coldstart.loader.host_copy import HUGE_BYTES, PAGE_BYTES
from tonnage_coldstart.loader.lanes import Lanes, Target, new_stream
from tonnage_coldstart.loader.ring import Ring, keep_ring, take_ring
from tonnage_coldstart.loader.weights import Weights, open_weights
from tonnage_core.coldstart.errors import CorruptFileError
from tonnage_core.coldstart.safetensors_header import Tensor
from tonnage_core.errors import BadInputError

NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
    "C64": "complex64",
}
"""Safetensors dtype -> torch's name of it."""
DEVICE_SLAB_BYTES = 8 << 20
MAX_THREADS = 256


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load."""

    threads: int | None = None
    """Readers, at most 256; None: one a core, at least 8 and at most 16."""
    spare_slabs: int = 4
    """Slabs of the ring beyond one a reader: what a device may be busy with while every reader fills one."""
    slab_bytes: int | None = None
    """Bytes of a slab, a power of two of at least a page; chunks that fit are read together. None: 8 MiB for a device,
    2 MiB, one large page, for host memory."""
    verify: bool = True
    """Check each chunk's CRC32C, where the directory has a manifest."""
    direct: bool | None = None
    """Read past the page cache (O_DIRECT): always, never, or (None) what it does not hold."""
    drop_behind: bool = False
    """Tell the page cache to let the files' pages go once they are read: the pod's memory is not charged for them."""

    def __post_init__(self) -> None:
        """Raises `BadInputError` for what no load can be done with."""
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise BadInputError(f"threads {self.threads}: 1 to {MAX_THREADS} are expected")
        if self.spare_slabs < 0:
            raise BadInputError(f"spare_slabs {self.spare_slabs}: none or more are expected")
        size = self.slab_bytes
        if size is not None and (size < PAGE_BYTES or size & (size - 1)):
            raise BadInputError(f"slab_bytes {size}: a power of two of at least {PAGE_BYTES} is expected")

    def slab_for(self, place: torch.device) -> int:
        """Bytes of a slab of a load to `place`."""
        return self.slab_bytes or (HUGE_BYTES if place.type == "cpu" else DEVICE_SLAB_BYTES)


class Loaded(dict[str, torch.Tensor]):
    """Tensors by name; `report` is the `tonnage.load/1` document. Tensors of one file share one allocation."""

    def __init__(self, tensors: dict[str, torch.Tensor], report: dict[str, Any]) -> None:
        super().__init__(tensors)
        self.report = report


def load_directory(path: Path, device: str, options: LoadOptions) -> Loaded:
    """Load every shard of `path`. Raises `TonnageError`; after an error nothing of the model is left on the device."""
    started = time.perf_counter()
    place = place_of(device)
    weights = open_weights(path, direct=options.direct)
    try:
        require_dtypes(weights)
        planned = time.perf_counter()
        arenas = allocate([file.arena.size_bytes for file in weights.files], place)
        try:
            ring = _fill(weights, arenas, place, options)
        except BaseException:
            free(arenas)
            raise
        tensors = _tensors(weights, arenas)
    finally:
        weights.close()
    ended = time.perf_counter()
    phases = {"plan_s": planned - started, "fetch_s": None, "verify_s": None, "h2d_s": ended - planned}
    return Loaded(tensors, report(path, weights, options, ring, phases, ended - started))


def place_of(device: str) -> torch.device:
    """The device of a name that this machine has: cpu, cuda or cuda:N. Raises `BadInputError`."""
    try:
        place = torch.device(device)
    except (RuntimeError, ValueError) as error:
        raise BadInputError(f"device {device!r}: cpu, cuda or cuda:N is expected") from error
    if place.type not in ("cpu", "cuda") or (place.type == "cpu" and place.index):
        raise BadInputError(f"device {device!r}: cpu, cuda or cuda:N is expected")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise BadInputError(f"device {device!r}: this machine has no CUDA device; use cpu")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise BadInputError(
            f"device {device!r}: this machine has {torch.cuda.device_count()} CUDA devices, from cuda:0"
        )
    return place


def allocate(sizes: Sequence[int], place: torch.device) -> list[torch.Tensor]:
    """One flat buffer a size on `place`, all or none. Raises `DeviceMemoryError`."""
    arenas: list[torch.Tensor] = []
    try:
        for size in sizes:
            arenas.append(torch.empty(size, dtype=torch.uint8, device=place))
    except RuntimeError as error:
        free(arenas)
        raise DeviceMemoryError(
            f"no room on {place} for {sum(sizes)} bytes of weights ({str(error).splitlines()[0][:160]})"
        ) from error
    return arenas


def free(arenas: list[torch.Tensor]) -> None:
    """Give the memory back now, whoever still holds the tensors, as a traceback does."""
    for arena in arenas:
        arena.untyped_storage().resize_(0)


def _fill(weights: Weights, arenas: list[torch.Tensor], place: torch.device, options: LoadOptions) -> Ring:
    stream = new_stream(place) if place.type == "cuda" else None
    slab_bytes = options.slab_for(place)
    run_chunks = max(1, slab_bytes // weights.chunk_bytes)
    lanes = Lanes(
        weights,
        Target(arenas, stream),
        verify=options.verify,
        run_chunks=run_chunks,
        drop_behind=options.drop_behind,
    )
    runs = -(-weights.size_bytes // (run_chunks * weights.chunk_bytes))
    threads = max(1, min(options.threads or default_threads(), runs))
    with borrowed_ring(threads, options.spare_slabs, slab_bytes, place) as ring:
        lanes.run([partial(Lanes.through, ring=ring)] * threads)
    return ring


@contextlib.contextmanager
def borrowed_ring(threads: int, spare: int, slab_bytes: int, place: torch.device) -> Iterator[Ring]:
    """A ring for one load to `place`, kept for the next; what the device still computes is waited for first.

    Copies within host memory are done when they return: such a ring has no spare slabs.
    """
    on_device = place.type == "cuda"
    ring = take_ring(threads, spare if on_device else 0, slab_bytes, pinned=on_device)
    try:
        if on_device:
            torch.cuda.current_stream(place).synchronize()
        yield ring
    finally:
        keep_ring(ring)


def default_threads() -> int:
    """Readers for this machine: enough to hide a disk's latency on few cores, no more than help on many."""
    return max(8, min(16, os.cpu_count() or 8))


def _tensors(weights: Weights, arenas: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for file, arena in zip(weights.files, arenas, strict=True):
        for tensor, offset in zip(file.arena.header.tensors, file.arena.offsets, strict=True):
            flat = arena[offset : offset + tensor.size_bytes]
            found[tensor.name] = flat.view(dtype_of(file.name, tensor)).view(tensor.shape)
    return found


def require_dtypes(weights: Weights) -> None:
    """Every dtype is known to this torch, before memory is taken."""
    for file in weights.files:
        for tensor in file.arena.header.tensors:
            dtype_of(file.name, tensor)


def dtype_of(file: str, tensor: Tensor) -> torch.dtype:
    """torch's dtype of a tensor. Raises `CorruptFileError` naming it when torch has none."""
    found = getattr(torch, NAMES.get(tensor.dtype, ""), None)
    if not isinstance(found, torch.dtype):
        raise CorruptFileError(
            file, f"dtype {tensor.dtype} is unknown to torch {torch.__version__}", tensor=tensor.name
        )
    return found


def report(
    path: Path,
    weights: Weights,
    options: LoadOptions,
    ring: Ring,
    phases: dict[str, float | None],
    seconds: float,
) -> dict[str, Any]:
    """`tonnage.load/1`. `gbps` is in GB/s over all seconds."""
    return {
        "schema": "tonnage.load/1",
        "version": 1,
        "path": str(path),
        "bytes": weights.size_bytes,
        "source_bytes": weights.size_bytes,
        "cache_hit": True,
        "tensors": sum(len(file.arena.header.tensors) for file in weights.files),
        "verified": options.verify and weights.checkable,
        "seconds": seconds,
        "gbps": weights.size_bytes / seconds / 1e9 if seconds > 0 else None,
        "ring": {"bytes": ring.size_bytes, "pinned": ring.pinned},
        "direct": {True: "always", False: "never", None: "uncached"}[options.direct],
        "phases": phases,
    }
