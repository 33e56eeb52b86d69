"""Memory of the agent over many scrapes: `python benchmarks/gpu_agent/soak.py SCRAPES OUT.json`.

Two fake GPUs; every tenth scrape one is lost and comes back, and XIDs of changing codes arrive, as over weeks.
"""

import json
import logging
import sys
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.metrics import AgentMetrics, Published
from tonnage_gpu_agent.telemetry import DeviceWatch
from tonnage_gpu_agent.xids import XidLog
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.metrics import exposition


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def main() -> None:
    logging.disable()
    scrapes = int(sys.argv[1])
    registry, clock, driver = CollectorRegistry(), ManualClock(), FakeDriver([fake_gpu(0), fake_gpu(1)])
    metrics = AgentMetrics(registry)
    watches = [DeviceWatch(driver, i, clock, interval_s=5.0, hang_after_s=10.0) for i in range(2)]
    metrics.sources.views = lambda: [watch.view() for watch in watches]
    metrics.sources.published = lambda uuid: Published("OK", 1.0, {"hbm_copy_gbps": 4227.0})
    xids = XidLog(lambda event: metrics.xids.labels("0", event.uuid, "other", "unlisted").inc())
    path, began = [], time.monotonic()
    for number in range(scrapes + 1):
        driver.gpus[1].lost = number % 10 == 0
        for watch in watches:
            watch.read_once()
        xids.add("GPU-0", 1000 + number, float(number), "driver")
        body, _ = exposition(registry, "")
        clock.advance(15.0)
        if number % max(1, scrapes // 10) == 0:
            path.append({"scrapes": number, "rss_mib": round(rss_mib(), 2), "body_bytes": len(body)})
            sys.stdout.write(f"{path[-1]}\n")
            sys.stdout.flush()
    document = {
        "schema": "tonnage.bench_soak/1",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "scrapes": scrapes,
        "seconds": round(time.monotonic() - began, 1),
        "path": path,
    }
    Path(sys.argv[2]).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
