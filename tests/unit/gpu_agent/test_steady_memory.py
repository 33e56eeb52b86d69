"""The agent's memory stays flat while it is scraped; 100,000 scrapes are in benchmarks/gpu_agent/soak.py."""

import json
import tracemalloc
from pathlib import Path

from prometheus_client import CollectorRegistry

from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.metrics import AgentMetrics, Published
from tonnage_gpu_agent.telemetry import DeviceWatch
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.metrics import exposition

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def test_scrapes_leave_nothing_behind() -> None:
    registry, clock, driver = CollectorRegistry(), ManualClock(), FakeDriver([fake_gpu()])
    metrics = AgentMetrics(registry)
    watch = DeviceWatch(driver, 0, clock, interval_s=5.0, hang_after_s=10.0)
    metrics.sources.views = lambda: [watch.view()]
    metrics.sources.published = lambda uuid: Published("OK", 1.0, {"hbm_copy_gbps": 4227.0})

    def scrape(times: int) -> None:
        for number in range(times):
            driver.gpus[0].lost = number % 10 == 0
            watch.read_once()
            exposition(registry, "")

    scrape(50)
    tracemalloc.start()
    scrape(50)
    before = tracemalloc.get_traced_memory()[0]
    scrape(200)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 64 * 1024


def test_a_hundred_thousand_scrapes_were_flat() -> None:
    path = json.loads((RESULTS / "2026-11-30-gpu-agent-soak.json").read_text())["path"]
    assert path[-1]["scrapes"] == 100_000
    assert path[-1]["rss_mib"] - path[1]["rss_mib"] < 2.0
