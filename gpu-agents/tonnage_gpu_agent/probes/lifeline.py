"""Probe processes end with the process that started them, however that ends: nothing may keep a GPU unwatched."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends to this process when the thread that started it ends."""


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends. Nothing happens where there is no such call."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
