"""Copies to the device by the driver's own call.

The framework's copy gives up the interpreter's lock three times; sixteen readers then spend more time on handing the
lock round than on copying. The call takes microseconds, so it keeps the lock.
"""

import ctypes
import logging

import torch

from tonnage_coldstart.errors import DeviceMemoryError

log = logging.getLogger("tonnage.coldstart.loader")


class DeviceCopy:
    """Asynchronous copies from pinned host memory, in the order of one stream."""

    def __init__(self, driver: ctypes.PyDLL, stream: "torch.cuda.Stream") -> None:
        self._call = driver.cuMemcpyHtoDAsync_v2
        self._call.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._call.restype = ctypes.c_int
        self._stream = stream.cuda_stream

    def __call__(self, target: int, source: int, size_bytes: int) -> None:
        """Copy `size_bytes` from host address `source` to device address `target`. Raises `DeviceMemoryError`."""
        code = self._call(target, source, size_bytes, self._stream)
        if code:
            raise DeviceMemoryError(f"the CUDA driver refused a copy to the device (error {code})")


def device_copy(stream: "torch.cuda.Stream | None") -> DeviceCopy | None:
    """A copier for `stream`, or None where the driver's library cannot be called: the framework copies then."""
    if stream is None:
        return None
    try:
        return DeviceCopy(ctypes.PyDLL("libcuda.so.1"), stream)
    except (OSError, AttributeError) as error:
        log.info("copying through the framework", extra={"error": str(error)[:200]})
        return None
