"""What `load` is measured against: a plain pinned ring, reads alone, copies alone, and the public loaders."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tonnage_coldstart.loader.ring import Slab
from tonnage_core.coldstart.fetch_plan import CHUNK_BYTES, Chunk, chunks_of


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in weight_files(folder))


def plain_ring(
    folder: Path,
    device: str,
    threads: int,
    *,
    copy: bool = True,
    direct: bool = False,
    slab_bytes: int = CHUNK_BYTES,
) -> None:
    """Whole files into flat device buffers through pinned slabs: no tensors, no checks. `copy` off: reads only."""
    paths = weight_files(folder)
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    descriptors = [os.open(path, flags) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    targets = [torch.empty(size if copy else 0, dtype=torch.uint8, device=device) for size in sizes]
    chunks = (chunk for number, size in enumerate(sizes) for chunk in chunks_of(number, size, slab_bytes))
    lock, cuda = threading.Lock(), device.startswith("cuda")
    stream = torch.cuda.Stream() if cuda else None

    def work() -> None:
        for chunk, slab in zip(_shared(chunks, lock), _turns(cuda, slab_bytes), strict=False):
            slab.wait()
            length = -(-chunk.length // 4096) * 4096 if direct else chunk.length
            os.preadv(descriptors[chunk.file], [slab.view[:length]], chunk.start)
            if copy:
                with torch.cuda.stream(stream):
                    part = targets[chunk.file][chunk.start : chunk.start + chunk.length]
                    part.copy_(slab.tensor[: chunk.length], non_blocking=True)
                    if stream is not None:
                        slab.busy = torch.cuda.Event()
                        slab.busy.record(stream)

    _run([work] * threads)
    if stream is not None:
        stream.synchronize()
    for descriptor in descriptors:
        os.close(descriptor)


_slabs: dict[tuple[int, int], list[Slab]] = {}


def _turns(cuda: bool, slab_bytes: int) -> Iterator[Slab]:
    """Two slabs a thread, by turns; kept between rounds as a loader keeps its ring."""
    name = int(threading.current_thread().name.rpartition("-")[2])
    slabs = _slabs.setdefault((name, slab_bytes), [])
    while len(slabs) < 2:
        slabs.append(Slab(slab_bytes, pinned=cuda))
    while True:
        yield from slabs


def _shared(chunks: Iterator[Chunk], lock: threading.Lock) -> Iterator[Chunk]:
    while True:
        with lock:
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk


def _run(work: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=one, name=f"reader-{number}") for number, one in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def h2d_alone(device: str, size_bytes: int = 1 << 30, repeats: int = 8) -> float:
    """GB/s of pinned host memory to the device, nothing else running."""
    source = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device.startswith("cuda"))
    target = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    target.copy_(source, non_blocking=True)
    _synchronise(device)
    started = time.perf_counter()
    for _ in range(repeats):
        target.copy_(source, non_blocking=True)
    _synchronise(device)
    return size_bytes * repeats / (time.perf_counter() - started) / 1e9


def safetensors_load(folder: Path, device: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        found |= load_file(path, device=device)
    _synchronise(device)
    return found


def fastsafetensors_load(folder: Path, device: str) -> dict[str, torch.Tensor]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    place = f"{device}:0" if device == "cuda" else device  # it wants the number too
    loader = SafeTensorsFileLoader(SingleGroup(), device=place, nogds=True)
    loader.add_filenames({0: [str(path) for path in weight_files(folder)]})
    buffers = loader.copy_files_to_device()
    found = {name: buffers.get_tensor(name).clone() for name in buffers.key_to_rank_lidx}
    _synchronise(device)
    buffers.close()
    loader.close()
    return found


def drop_cache(folder: Path) -> None:
    """Take the files' pages out of the page cache; they must be on the disk for that."""
    for path in weight_files(folder):
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm_cache(folder: Path) -> None:
    """Read every file once."""
    for path in weight_files(folder):
        with path.open("rb", buffering=0) as file:
            while file.read(64 << 20):
                pass


def _synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
