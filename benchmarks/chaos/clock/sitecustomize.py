"""A wall clock that another process moves: `time.time` plus the seconds in the file that TONNAGE_CHAOS_CLOCK names.

Python imports this at its start when the folder is on PYTHONPATH. Monotonic time stays as it is, as on a machine whose
clock is set.
"""

import mmap
import os
import struct
import time

_path = os.environ.get("TONNAGE_CHAOS_CLOCK")
if _path:
    with open(_path, "rb") as _file:
        _seconds = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
    _true, _true_ns = time.time, time.time_ns

    def _moved() -> float:
        return _true() + struct.unpack_from("<d", _seconds)[0]

    def _moved_ns() -> int:
        return _true_ns() + int(struct.unpack_from("<d", _seconds)[0] * 1e9)

    time.time, time.time_ns = _moved, _moved_ns
