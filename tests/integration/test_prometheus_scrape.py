"""Debian's Prometheus, with the chart's own scrape configuration, scrapes the running services on loopback."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart

from tonnage_runtime.ports import free_port

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
PARTS = ("router", "planner", "agent", "coldstart")
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed: apt-get install prometheus",
)


@dataclass(frozen=True)
class Service:
    """A started service and where its metrics are."""

    job: str
    metrics: str
    """host:port"""


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        body: bytes = response.read()
        return body


def answers(url: str) -> bool:
    """True for a 2xx answer; raises OSError for any other or none."""
    with urllib.request.urlopen(url, timeout=5):
        return True


def wait_for(what: str, ready: Callable[[], bool], within_s: float = 90.0) -> None:
    """Poll `ready` until it is true; its OSErrors count as not yet."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if ready():
                return
        time.sleep(0.2)
    raise AssertionError(f"{what}: not after {within_s:g} s")


@contextlib.contextmanager
def running(command: list[str], environ: Mapping[str, str], log: Path) -> Iterator[None]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TONNAGE_")}
    with log.open("wb") as output, subprocess.Popen(command, env=clean | dict(environ), stderr=output) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def start(stack: contextlib.ExitStack, part: str, module: str, folder: Path, **settings: str) -> str:
    """Start one service on a free port; its metrics address, once it is healthy."""
    port = free_port()
    where = settings.pop("metrics_port", "PORT")
    environ = {"HOST": "127.0.0.1", "PORT": "0", **settings, where: str(port)}
    prefixed = {f"TONNAGE_{part.upper()}_{name}": value for name, value in environ.items()}
    stack.enter_context(running([sys.executable, "-m", module], prefixed, folder / f"{part}.log"))
    address = f"127.0.0.1:{port}"
    wait_for(f"{part} healthy", lambda: answers(f"http://{address}/healthz"))
    return address


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


def chart_scrape_config() -> dict[str, Any]:
    """`prometheus-scrape.yaml` of the rendered chart, with every part of this test on."""
    values = {
        "metrics": {"scrapeConfig": {"enabled": True}, "interval": "1s"},
        "endpoints": [{"url": "http://engine-0:8000", "model": "m"}],
    }
    with Chart.load(CHART) as chart:
        manifests = chart.render(values, name="demo", namespace="fleet")
    (text,) = (t for path, t in manifests.items() if path.endswith("scrape-configmap.yaml"))
    config: dict[str, Any] = yaml.safe_load(yaml.safe_load(text)["data"]["prometheus-scrape.yaml"])
    return config


def on_loopback(config: dict[str, Any], services: list[Service]) -> dict[str, Any]:
    """The same jobs with the cluster's discovery replaced by the services' addresses."""
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs.keys() == {service.job for service in services}
    for service in services:
        jobs[service.job].pop("dns_sd_configs", None)
        jobs[service.job]["static_configs"] = [{"targets": [service.metrics]}]
    return config


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
def prometheus(fleet: list[Service], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(on_loopback(chart_scrape_config(), fleet)))
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with running(command, {}, folder / "log"):
        wait_for("prometheus ready", lambda: answers(f"http://{address}/-/ready"))
        yield f"http://{address}"


def targets(prometheus: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(get(f"{prometheus}/api/v1/targets"))["data"]["activeTargets"]
    return found


def query(prometheus: str, text: str) -> list[dict[str, Any]]:
    answer = json.loads(get(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': text})}"))
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def test_every_target_is_up(prometheus: str, fleet: list[Service]) -> None:
    wait_for(
        "every target scraped",
        lambda: [t["health"] != "unknown" for t in targets(prometheus)] == [True] * len(fleet),
    )
    seen = {t["labels"]["job"]: (t["health"], t["lastError"]) for t in targets(prometheus)}
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
def test_each_parts_metrics_can_be_asked_for(prometheus: str, text: str, value: str) -> None:
    wait_for(text, lambda: [result["value"][1] for result in query(prometheus, text)] == [value])


def test_prometheus_understands_every_query_of_every_dashboard(prometheus: str) -> None:
    asked = [
        target["expr"].replace("$pool", ".*")
        for path in sorted((CHART / "dashboards").glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(asked) > 20
    for text in asked:
        query(prometheus, text)
