"""How quickly a running suite stops when another process takes GPU memory, with PIDs visible and hidden.

`PYTHONPATH=libs/core:libs/runtime:gpu-agents python benchmarks/gpu_agent/intrusion.py OUT.json`
"""

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tonnage_core.gpu_health.guard import ChildMemory, Occupancy
from tonnage_gpu_agent.adapters.nvml import NvmlDriver
from tonnage_gpu_agent.errors import FieldUnsupportedError
from tonnage_gpu_agent.local_run import LocalOptions, local_probe
from tonnage_gpu_agent.port import GpuProcess
from tonnage_gpu_agent.probes import select
from tonnage_gpu_agent.runs import RunOptions, run_suite

DELAY_S = 8.0
TAKEN_BYTES = 256 << 20
INTRUDER = f"""
import sys, time, torch
input()
sys.stdout.write(f"{{time.time()}}\\n"); sys.stdout.flush()
held = torch.empty({TAKEN_BYTES}, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize()
sys.stdout.write(f"{{time.time()}}\\n"); sys.stdout.flush()
time.sleep(30)
"""


class HiddenPids(NvmlDriver):
    """A driver in a container that sees no processes: only memory tells."""

    def processes(self, index: int) -> Sequence[GpuProcess]:
        raise FieldUnsupportedError("processes are hidden")


def intrude(stamps: dict[str, float], workers: list[subprocess.Popen[str]]) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", INTRUDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    workers.append(worker)
    time.sleep(DELAY_S)
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    stamps["begins"] = float(worker.stdout.readline())
    stamps["holds"] = float(worker.stdout.readline())


def attempt(driver: NvmlDriver) -> dict[str, Any]:
    stamps: dict[str, float] = {}
    workers: list[subprocess.Popen[str]] = []
    thread = threading.Thread(target=intrude, args=(stamps, workers))
    thread.start()
    report = local_probe(LocalOptions(suite="full"), driver)
    stopped = time.time()
    thread.join()
    for worker in workers:
        worker.kill()
        worker.wait()
    gpu = report["gpus"][0]
    return {
        "pids_visible": not isinstance(driver, HiddenPids),
        "outcome": gpu["outcome"],
        "verdict": gpu["verdict"]["status"],
        "reason": gpu["verdict"]["reasons"][0] if gpu["verdict"]["reasons"] else "",
        "points_kept": sum(point["status"] == "ok" for point in gpu["probes"]),
        "stopped_after_first_cuda_call_s": round(stopped - stamps["begins"], 3),
        "stopped_after_memory_was_held_s": round(stopped - stamps["holds"], 3),
        "kill_took_s": gpu["stop_latency_s"],
    }


def steps_of(path: list[tuple[float, int, int | None, int, bool]]) -> list[dict[str, Any]]:
    """Where driver-side memory (used less what the allocator holds) rose by 16 MiB or more between two looks."""
    found = []
    for before, after in itertools.pairwise(path):
        rise = (after[1] - after[3]) - (before[1] - before[3])
        if rise >= 16 << 20:
            found.append(
                {
                    "at_s": round(after[0] - path[0][0], 2),
                    "rise_mib": rise >> 20,
                    "warming": after[4],
                    "own_mib": None if after[2] is None else (after[2] - after[3]) >> 20,
                }
            )
    return found


def undisturbed(driver: NvmlDriver) -> dict[str, Any]:
    """A full run that nobody disturbs, judged by memory alone: it must not stop."""
    path: list[tuple[float, int, int | None, int, bool]] = []

    def trace(seen: Occupancy, own: int | None, child: ChildMemory | None) -> None:
        if child is not None and seen.used_bytes is not None:
            path.append((time.monotonic(), seen.used_bytes, own, child.reserved_bytes, child.warming))

    driver.start()
    options = RunOptions("full", select("full"), trace=trace)
    report = run_suite(driver, [driver.device(0)], options)
    return {
        "outcome": report.outcome,
        "detail": report.detail,
        "seconds": round(report.seconds, 1),
        "looks": len(path),
        "rises": steps_of(path),
    }


def main() -> None:
    results = {
        "undisturbed": undisturbed(HiddenPids()),
        "visible": attempt(NvmlDriver()),
        "hidden": attempt(HiddenPids()),
    }
    sys.stdout.write(json.dumps(results, indent=1) + "\n")
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"delay_s": DELAY_S, "taken_bytes": TAKEN_BYTES, **results}, file, indent=1)


if __name__ == "__main__":
    main()
