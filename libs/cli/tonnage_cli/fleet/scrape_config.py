"""A Prometheus configuration for the local fleet: the chart's jobs, with this fleet's addresses."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

INTERVAL = "2s"
JOBS = {"router": "admin", "planner": "planner", "agent": "agent", "coldstart": "coldstart", "bench": "bench"}
"""Part -> the URL whose `/metrics` is the part's."""


def scrape_config(urls: Mapping[str, str | list[str]]) -> dict[str, Any]:
    """What `prometheus --config.file` takes, from the fleet's URLs by name; parts without a URL are left out."""
    jobs = [_job(part, [str(urls[name])]) for part, name in JOBS.items() if name in urls]
    return {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "scrape_configs": [*jobs, _job("engines", urls["engines"], component="engine")],
    }


def _job(part: str, addresses: str | list[str], component: str | None = None) -> dict[str, Any]:
    hosts = [urlsplit(url).netloc for url in addresses]
    return {
        "job_name": f"tonnage-{part}",
        "static_configs": [{"targets": hosts, "labels": {"component": component or part}}],
    }
