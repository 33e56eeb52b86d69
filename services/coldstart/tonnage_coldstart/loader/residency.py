"""Whether the page cache holds a range of a file, without reading or starting to read it: Linux's `cachestat` (6.5)."""

import ctypes

CACHESTAT = 451
PAGE_BYTES = 4096


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def resident(descriptor: int, start: int, length: int) -> bool:
    """Whether every page of the range is in the page cache; True also where the kernel cannot tell or may not."""
    asked, found = _Range(start, length), _Stat()
    number, flags = ctypes.c_long(CACHESTAT), ctypes.c_uint(0)
    if _libc.syscall(number, ctypes.c_uint(descriptor), ctypes.byref(asked), ctypes.byref(found), flags) != 0:
        return True
    pages = (start + length - 1) // PAGE_BYTES - start // PAGE_BYTES + 1
    return bool(found.cached >= pages)
