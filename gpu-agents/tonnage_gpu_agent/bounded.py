"""Calls that may block for ever, as any call into a GPU driver may: bounded in time, in a thread that may be left."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tonnage_gpu_agent.errors import DriverHungError

T = TypeVar("T")


def bounded(call: Callable[[], T], seconds: float, what: str) -> T:
    """What `call` gives or raises; `DriverHungError` when it has not returned after `seconds`."""
    done = threading.Event()
    found: dict[str, Any] = {}

    def run() -> None:
        try:
            found["value"] = call()
        except Exception as error:  # noqa: BLE001 - raised again below, in the caller's thread
            found["error"] = error
        finally:
            done.set()

    threading.Thread(target=run, name="gpu-bounded", daemon=True).start()
    if not done.wait(seconds):
        raise DriverHungError(f"{what}: a driver call has not returned for {seconds:.0f} s")
    if "error" in found:
        raise found["error"]
    value: T = found["value"]
    return value
