"""Copies from the ring to tensors in host memory, and the memory that makes both sides cheap.

Reads past the page cache reach the disk as one request a piece of contiguous memory: into pages of 4 KiB they are
hundreds of descriptors a MiB, into 2 MiB pages one. The ring's slabs are few and used again, so their 2 MiB pages cost
nothing; the tensors' memory is new and as large as the model, and where a hypervisor takes free memory back, a first
touch of 2 MiB pages costs more than one of 4 KiB. So the disk writes into the slabs, and the processor copies on.
"""

import ctypes

import torch

PAGE_BYTES = 4096
HUGE_BYTES = 2 << 20
POPULATE_FROM_BYTES = 64 << 10
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def aligned_memory(size_bytes: int) -> torch.Tensor:
    """Flat uint8 memory on a page; on 2 MiB pages where it is that large and the system has them."""
    align = HUGE_BYTES if size_bytes >= HUGE_BYTES else PAGE_BYTES
    room = torch.empty(size_bytes + align, dtype=torch.uint8)
    memory = room.narrow(0, -room.data_ptr() % align, size_bytes)
    if align == HUGE_BYTES:
        _libc.madvise(memory.data_ptr(), size_bytes, MADV_HUGEPAGE)  # advice: a system that refuses it loads slower
    return memory


def host_copy(target: int, source: int, size_bytes: int) -> None:
    """Copy between host addresses without the interpreter's lock; the target's new pages come in one call."""
    if size_bytes >= POPULATE_FROM_BYTES:
        first = target // PAGE_BYTES * PAGE_BYTES
        _libc.madvise(first, target + size_bytes - first, MADV_POPULATE_WRITE)  # where unknown, each page faults
    _libc.memcpy(target, source, size_bytes)
