"""Which core runs what while a CPU engine is measured: its steps on one, its HTTP server and the clients on the others.

vLLM binds its worker to a core, and not its scheduler process, which spins between steps and hands its core to whoever
asks. Where the kernel leaves it decides how long a token takes.
"""

import contextlib
import os
from pathlib import Path

WORKER, SCHEDULER = "VLLM::Worker", "VLLM::EngineCore"


def settle(engine: int) -> dict[str, list[int]]:
    """Bind the engine's scheduler to its worker's core, its other processes and this one (with all it starts) to the
    rest; returns the cores by process. Raises `SystemExit` where there is no such worker or no other core."""
    try:
        names = {process: _title(process) for process in _tree(engine)}
    except (FileNotFoundError, ProcessLookupError):
        raise SystemExit(f"process {engine} is not there, or one that it started ended just now") from None
    workers = [process for process, name in names.items() if name.startswith(WORKER)]
    inside = set().union(*(_cores(process) for process in workers))
    outside = os.sched_getaffinity(0) - inside
    if not workers or not outside:
        raise SystemExit(f"process {engine} has no {WORKER} that is bound to some of this machine's cores")
    for process, name in names.items():
        if process not in workers:
            _bind(process, inside if name.startswith(SCHEDULER) else outside)
    os.sched_setaffinity(0, outside)
    return {f"{name.split()[0]} {process}": sorted(os.sched_getaffinity(process)) for process, name in names.items()}


def _cores(worker: int) -> set[int]:
    """Of the thread that is bound to the fewest: the one that computes."""
    threads = [os.sched_getaffinity(int(each)) for each in os.listdir(f"/proc/{worker}/task")]
    return min(threads, key=len)


def _bind(process: int, cores: set[int]) -> None:
    for thread in os.listdir(f"/proc/{process}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def _tree(process: int) -> list[int]:
    """The process and all that it started."""
    found = [process]
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += _tree(int(child))
    return found


def _title(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip() or "?"
