"""Staging and loading on the CPU: how near to a raw copy, and beside the public loaders.

usage: python benchmarks/coldstart/run.py [--short] [--folder DIR] [--nginx PATH] [--out RESULT.json]

Needs nginx as the range server and, for its comparison, runai-model-streamer; what is missing is left out and said.
"""

import argparse
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import yaml
from checkpoint import make

HERE = Path(__file__).resolve().parent
CONF = """
worker_processes 1;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; keepalive_requests 100000; default_type application/octet-stream;
  client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u;
  scgi_temp_path {root}/s;
  server {{ listen 127.0.0.1:{port}; root {served}; }}
}}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a small checkpoint, few rounds")
    parser.add_argument(
        "--folder", type=Path, help="where the checkpoint is made and staged; a temporary one by default"
    )
    parser.add_argument("--nginx", default=shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin"))
    parser.add_argument("--out", type=Path, help="write the result here too")
    given = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    settings |= settings.pop("short") if given.short else {}
    settings.pop("short", None)
    with tempfile.TemporaryDirectory() as made:
        document = run(settings, given, given.folder or Path(made))
    print(json.dumps(document, indent=1))
    if given.out:
        given.out.write_text(json.dumps(document, indent=1) + "\n")
    return (
        0 if given.short or all(one["holds"] for one in document["ratios"].values() if one["holds"] is not None) else 1
    )


def run(settings: dict[str, Any], given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    checkpoint = make(
        folder / "served" / "model",
        total_bytes=int(settings["gib"] * 2**30),
        shards=settings["shards"],
        hidden=settings["hidden"],
    )
    left_out = []
    loads = ["load_ours", "load_safe_open"]
    if importlib.util.find_spec("runai_model_streamer"):
        loads.append("load_runai")
    else:
        left_out.append("load_runai: runai-model-streamer is not installed")
    figures = rounds(settings, [*loads, "disk_alone"], lambda name: one_load(name, checkpoint, settings))
    warm = [f"warm_{name}" for name in loads]
    figures |= rounds(settings, warm, lambda name: one_warm_load(name, checkpoint, settings))
    if given.nginx:
        with served(given.nginx, folder) as url:
            figures |= rounds(settings, ["stage", "raw_copy"], lambda name: one_copy(name, url, folder, settings))
    else:
        left_out.append("stage, raw_copy: nginx is not installed")
    return {
        "schema": "tonnage.benchmark/1",
        "benchmark": "coldstart",
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "settings": settings,
        "bytes": sum(path.stat().st_size for path in checkpoint.glob("*.safetensors")),
        "methods": {name: summary(runs) for name, runs in figures.items()},
        "left_out": left_out,
        "ratios": ratios(figures, settings["limits"]),
    }


def rounds(settings: dict[str, Any], names: list[str], one: Any) -> dict[str, list[dict[str, Any]]]:
    """Each method once a round, in a new order; the first round warms the disk and is left out."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(settings["rounds"] + 1):
        order = sorted(names)
        Random(number).shuffle(order)
        for name in order:
            figures = one(name)
            print(f"round {number} {name:16} {figures['seconds']:.2f} s, CPU {figures['cpu_s']:.2f} s", file=sys.stderr)
            if number:
                found[name].append(figures)
    return found


def one_load(name: str, checkpoint: Path, settings: dict[str, Any]) -> dict[str, Any]:
    for path in checkpoint.glob("*.safetensors"):
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return measured(name, str(checkpoint), "-", settings["threads"], settings)


def one_warm_load(name: str, checkpoint: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """From the page cache: the loaders' own work, whatever the disk."""
    for path in checkpoint.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.read(8 << 20):
                pass
    return measured(name.removeprefix("warm_"), str(checkpoint), "-", settings["threads"], settings)


def one_copy(name: str, url: str, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    target = folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    figures = measured(name, f"{url}/model", str(target), settings["connections"], settings)
    shutil.rmtree(target, ignore_errors=True)
    return figures


def measured(name: str, source: str, target: str, width: int, settings: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "cpu_variants.py"), name, source, target, str(width)]
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0", "RUNAI_STREAMER_CONCURRENCY": str(width)}
    done = subprocess.run(
        [*command, str(settings["chunk_mib"])], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def served(nginx: str, folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "nginx").mkdir(exist_ok=True)
    configuration = folder / "nginx" / "nginx.conf"
    root = folder / "nginx"
    configuration.write_text(CONF.format(root=root, port=port, served=folder / "served"))
    user = "user root;" if os.getuid() == 0 else ""
    server = subprocess.Popen(
        [nginx, "-p", str(root), "-c", str(configuration), "-g", f"daemon off;{user}"], stderr=subprocess.DEVNULL
    )
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if server.poll() is not None:
                raise SystemExit(f"nginx ended with {server.returncode}; see {root}/error.log")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [one["seconds"] for one in runs]
    return {
        "median_s": statistics.median(seconds),
        "seconds": seconds,
        "cpu_s": statistics.median(one["cpu_s"] for one in runs),
        "rss_beyond_mib": max(one["rss_beyond_mib"] for one in runs),
        "verified": all(one["verified"] for one in runs),
    }


def ratios(figures: dict[str, list[dict[str, Any]]], limits: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Median seconds of the other side over ours, the same for CPU seconds, and whether the limit, if any, holds."""
    pairs = {
        "stage_to_raw_copy": ("raw_copy", "stage"),
        "load_to_runai_streamer": ("load_runai", "load_ours"),
        "load_to_safe_open_clone": ("load_safe_open", "load_ours"),
        "load_to_disk_alone": ("disk_alone", "load_ours"),
        "warm_load_to_runai_streamer": ("warm_load_runai", "warm_load_ours"),
        "warm_load_to_safe_open_clone": ("warm_load_safe_open", "warm_load_ours"),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (other, ours) in pairs.items():
        if not figures.get(other) or not figures.get(ours):
            found[name] = {"ratio": None, "limit": limits.get(name), "holds": None}
            continue
        one, two = summary(figures[other]), summary(figures[ours])
        ratio = one["median_s"] / two["median_s"]
        cpu = one["cpu_s"] / two["cpu_s"]
        limit = limits.get(name)
        holds = None if limit is None else ratio >= limit
        found[name] = {"ratio": ratio, "cpu_ratio": cpu, "limit": limit, "holds": holds}
    beyond, most = max(one["rss_beyond_mib"] for one in figures["load_ours"]), limits["rss_beyond_tensors_mib"]
    found["rss_beyond_tensors_mib"] = {"value": beyond, "limit": most, "holds": beyond <= most}
    return found


if __name__ == "__main__":
    sys.exit(main())
