"""How quickly a running suite stops when another process takes GPU memory, with PIDs visible and hidden.

`PYTHONPATH=libs/core:libs/runtime:gpu-agents python benchmarks/gpu_agent/intrusion.py OUT.json REPORT.json`
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tonnage_core.gpu_health.guard import ChildMemory, GrowthRule, GrowthWatch, Occupancy, watch
from tonnage_gpu_agent.adapters.nvml import NvmlDriver
from tonnage_gpu_agent.errors import FieldUnsupportedError
from tonnage_gpu_agent.local_run import LocalOptions, local_probe
from tonnage_gpu_agent.port import GpuProcess

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
    report = local_probe(LocalOptions(suite="full", gpus=("0",)), driver)
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


def undisturbed(out: str) -> dict[str, Any]:
    """A full run that nobody disturbs, with the driver's word for what is ours; beside it, what a guard that sees
    memory alone would have said at each look. The report goes to `out`."""
    path: list[list[Any]] = []
    shadow = [GrowthWatch(-1)]
    alarms: list[str] = []

    def trace(seen: Occupancy, own: int | None, child: ChildMemory | None) -> None:
        if seen.used_bytes is None:
            return
        if shadow[0].before_bytes < 0:
            shadow[0] = GrowthWatch(seen.used_bytes)
        shadow[0], reason = watch(shadow[0], Occupancy(seen.used_bytes), None, child, GrowthRule())
        if reason:
            alarms.append(reason)
        word = (child.reserved_bytes, child.warming, round(child.age_s, 2)) if child else (None, None, None)
        path.append([round(time.monotonic(), 2), seen.used_bytes, own, *word])

    report = local_probe(LocalOptions(suite="full"), NvmlDriver(), trace)
    with open(out, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    return {"outcome": report["gpus"][0]["outcome"], "false_alarms": alarms, "looks": path}


def main() -> None:
    """`intrusion.py OUT.json REPORT.json`"""
    calm = undisturbed(sys.argv[2])
    results = {"undisturbed": calm, "visible": attempt(NvmlDriver()), "hidden": attempt(HiddenPids())}
    shown = {**results, "undisturbed": {**calm, "looks": len(calm["looks"])}}
    sys.stdout.write(json.dumps(shown, indent=1) + "\n")
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"delay_s": DELAY_S, "taken_bytes": TAKEN_BYTES, **results}, file)


if __name__ == "__main__":
    main()
