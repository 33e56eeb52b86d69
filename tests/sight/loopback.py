"""Prometheus and our processes on loopback: the chart's rendered configuration with addresses instead of discovery."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart

from tonnage_runtime.ports import free_port

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed: apt-get install prometheus",
)


@dataclass(frozen=True)
class Service:
    """A started service: its scrape job, and the host:port of its metrics."""

    job: str
    metrics: str


def get(url: str) -> bytes:
    """The body of a 2xx answer."""
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
def running(
    command: list[str], environ: Mapping[str, str], log: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with `environ` instead of our own TONNAGE_ variables; told to end on the way out."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TONNAGE_")}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=clean | dict(environ), stdout=subprocess.DEVNULL, stderr=output, cwd=cwd
        ) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
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


def rendered_objects(ending: str, **values: Any) -> list[dict[str, Any]]:
    """The objects of the chart's template that ends so, with the parts of these tests on."""
    asked = {
        "metrics": {"scrapeConfig": {"enabled": True}, "rules": {"configMap": {"enabled": True}}, "interval": "1s"},
        "endpoints": [{"url": "http://engine-0:8000", "model": "m"}],
    }
    with Chart.load(CHART) as chart:
        manifests = chart.render({**asked, **values}, name="demo", namespace="fleet")
    (text,) = (text for path, text in manifests.items() if path.endswith(ending))
    return [document for document in yaml.safe_load_all(text) if document]


def rendered(ending: str, **values: Any) -> dict[str, str]:
    """The data of the only ConfigMap in that template."""
    (found,) = rendered_objects(ending, **values)
    data: dict[str, str] = found["data"]
    return data


def chart_scrape_config(**values: Any) -> dict[str, Any]:
    """`prometheus-scrape.yaml` of the rendered chart."""
    config: dict[str, Any] = yaml.safe_load(rendered("scrape-configmap.yaml", **values)["prometheus-scrape.yaml"])
    return config


def on_loopback(config: dict[str, Any], services: Sequence[Service], **labels: str) -> dict[str, Any]:
    """The same jobs with the cluster's discovery replaced by the services' addresses, and further labels."""
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs.keys() == {service.job for service in services}
    for job in jobs.values():
        told = {**job.get("static_configs", [{}])[0].get("labels", {}), **labels}
        # The address is a loopback one, whatever the path and scheme of the endpoint that stood here.
        told = {name: value for name, value in told.items() if not name.startswith("__")}
        addresses = [service.metrics for service in services if service.job == job["job_name"]]
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": addresses, "labels": told}]
    return config


@contextlib.contextmanager
def prometheus(config: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """A Prometheus with this configuration and an empty store in `folder`; its URL."""
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(dict(config)))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=warn"]
    with running(command, {}, folder / "log"):
        wait_for("prometheus ready", lambda: answers(f"http://{address}/-/ready"))
        yield f"http://{address}"


def ask(server: str, path: str, **parameters: object) -> Any:
    """`data` of an answer of Prometheus' API; a query it refuses raises with its words."""
    url = f"{server}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        return json.loads(get(url))["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{parameters}: {error.read().decode()}") from error
