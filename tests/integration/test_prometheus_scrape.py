"""Debian's Prometheus, with the chart's own scrape configuration, scrapes the running services on loopback."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sight.loopback import (
    Service,
    ask,
    chart_scrape_config,
    get,
    needs_prometheus,
    on_loopback,
    prometheus,
    start,
    wait_for,
)

PARTS = ("router", "planner", "agent", "coldstart")
pytestmark = needs_prometheus


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    folder = tmp_path_factory.mktemp("fleet")
    with contextlib.ExitStack() as stack:
        engine = start(stack, "sim", "tonnage_sim.main", folder, MODEL="meta-llama/Llama-3.1-8B")
        endpoints = json.dumps([{"url": f"http://{engine}", "model": "meta-llama/Llama-3.1-8B"}])
        router = start(stack, "router", "tonnage_router.main", folder, ENDPOINTS=endpoints, metrics_port="ADMIN_PORT")
        planner = start(
            stack,
            "planner",
            "tonnage_planner.main",
            folder,
            ENDPOINTS=endpoints,
            ROUTER_URL=f"http://{router}",
            SCRAPE_INTERVAL_S="0.5",
        )
        agent = start(stack, "agent", "tonnage_gpu_agent.main", folder, DRIVER="fake")
        cache = str(folder / "cache")
        coldstart = start(stack, "coldstart", "tonnage_coldstart.main", folder, CACHE_DIR=cache)
        yield [
            Service("tonnage-router", router),
            Service("tonnage-planner", planner),
            Service("tonnage-agent", agent),
            Service("tonnage-coldstart", coldstart),
            Service("tonnage-engines", engine),
        ]


def test_promtool_accepts_the_charts_scrape_configuration(tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(chart_scrape_config()))
    run = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("part", PARTS)
def test_promtool_finds_no_fault_in_our_metrics(part: str, fleet: list[Service]) -> None:
    (service,) = (s for s in fleet if s.job == f"tonnage-{part}")
    own = b"".join(
        line
        for line in get(f"http://{service.metrics}/metrics").splitlines(keepends=True)
        if b"tonnage_" in line and b"_created" not in line
    )
    run = subprocess.run(["promtool", "check", "metrics"], input=own, capture_output=True, check=False)
    assert run.returncode == 0, run.stdout.decode() + run.stderr.decode()


@pytest.fixture(scope="module")
def server(fleet: list[Service], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prometheus(on_loopback(chart_scrape_config(), fleet), tmp_path_factory.mktemp("prometheus")) as url:
        yield url


def targets(server: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(server, "targets")["activeTargets"]
    return found


def query(server: str, text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(server, "query", query=text)["result"]
    return found


def test_every_target_is_up(server: str, fleet: list[Service]) -> None:
    wait_for(
        "every target scraped",
        lambda: [t["health"] != "unknown" for t in targets(server)] == [True] * len(fleet),
    )
    seen = {t["labels"]["job"]: (t["health"], t["lastError"]) for t in targets(server)}
    assert seen == {service.job: ("up", "") for service in fleet}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('tonnage_planner_desired_replicas{component="planner"}', "1"),
        ('sum(tonnage_planner_endpoint_state{state="fresh"})', "1"),
        ('tonnage_router_endpoint_up{component="router"}', "1"),
        ("sum(tonnage_gpu_device_info)", "1"),
        ("tonnage_coldstart_cache_entries", "0"),
        ('sum(vllm:num_requests_running{job="tonnage-engines"})', "0"),
    ],
)
def test_each_parts_metrics_can_be_asked_for(server: str, text: str, value: str) -> None:
    wait_for(text, lambda: [result["value"][1] for result in query(server, text)] == [value])
