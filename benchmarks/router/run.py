"""CPU a request of the router and its peers, and how the decision's cost grows with the fleet.

usage: python benchmarks/router/run.py [--short] [--only NAME ...] [--out RESULT.json]
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from decision import measure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PORT, ADMIN, FIRST_BACKEND = 19200, 19201, 19101
NGINX = """worker_processes 1; daemon off; pid nginx.pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u;
  scgi_temp_path s; client_body_buffer_size 64k; upstream b {{ {servers} keepalive 512; }}
  server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;
    location / {{ proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }} }}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one round, ours alone")
    parser.add_argument("--only", nargs="+", default=[], help="these routers")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    if arguments.short:
        settings |= {"rounds": 1, "seconds": 1.0, "concurrency": [16]}
        arguments.only = arguments.only or ["tonnage"]
    decision = {n: round(measure(n, settings["decision"]["requests"]), 1) for n in settings["decision"]["endpoints"]}
    ratio = decision[max(decision)] / decision[min(decision)]
    document = {
        "schema": "tonnage.bench_router/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "settings": settings,
        "decision_us": decision,
        "decision_ratio": round(ratio, 2),
        "data_path": _data_path(settings, arguments.only),
    }
    print(json.dumps({k: v for k, v in document.items() if k != "settings"}, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if ratio <= settings["decision"]["limit_ratio"] else 1


def _data_path(settings: dict[str, Any], only: list[str]) -> dict[str, Any]:
    ports = range(FIRST_BACKEND, FIRST_BACKEND + settings["engines"])
    stub = [sys.executable, str(HERE / "engine_stub.py"), str(settings["stream_tokens"]), *map(str, ports)]
    chosen = {
        name: spec
        for name, spec in settings["routers"].items()
        if name in only or not (only or spec.get("only_by_name"))
    }
    cells: dict[str, dict[str, list[dict[str, float]]]] = {}
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        engines = subprocess.Popen(_pinned(stub, settings["load_cpu"]))
        try:
            for _ in range(settings["rounds"]):
                for name, spec in chosen.items():
                    command = _command(spec, ports, directory)
                    if command is None:
                        missing += [name] if name not in missing else []
                        continue
                    _round(settings, command, _environment(spec, ports, directory), cells.setdefault(name, {}))
        finally:
            engines.kill()
            engines.wait()
    rows = {name: {cell: _median(values) for cell, values in found.items()} for name, found in cells.items()}
    return {"not_installed": missing, "routers": rows, "token_us": _token_us(rows, settings["stream_tokens"])}


def _token_us(rows: dict[str, dict[str, dict[str, float]]], tokens: int) -> dict[str, dict[str, float]]:
    """CPU a token, its request's taken off: a stream's against a JSON answer's of the same request."""
    return {
        name: {
            cell.removeprefix("stream "): round(
                (row["cpu_us"] - cells[f"json {cell.split()[1]}"]["cpu_us"]) / tokens, 2
            )
            for cell, row in cells.items()
            if cell.startswith("stream ") and f"json {cell.split()[1]}" in cells
        }
        for name, cells in rows.items()
    }


def _pinned(command: list[str], cpu: int) -> list[str]:
    return ["taskset", "-c", str(cpu), *command] if shutil.which("taskset") and (os.cpu_count() or 1) > 1 else command


def _command(spec: dict[str, Any], ports: range, directory: str) -> list[str] | None:
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    compiled = spec.get("compiled")
    if compiled is not None and not (ROOT / compiled).is_dir():
        return None
    out: list[str] = []
    for part in spec["command"]:
        if part == "{backends}":
            out += urls
        else:
            out.append(part.format(port=PORT, admin=ADMIN, python=sys.executable, directory=directory, here=HERE))
    return out if shutil.which(out[0]) else None


def _environment(spec: dict[str, Any], ports: range, directory: str) -> dict[str, str]:
    where = Path(directory)
    if spec.get("kind") == "nginx":
        servers = " ".join(f"server 127.0.0.1:{port};" for port in ports)
        (where / "nginx.conf").write_text(NGINX.format(servers=servers, port=PORT))
    if spec.get("kind") != "tonnage":
        return dict(os.environ)
    digest = hashlib.sha256(b"bench-key").hexdigest()
    tenant = {"name": "bench", "key_sha256": digest, "tokens_per_min": 1e12, "requests_per_s": 1e9}
    (where / "tenants.yaml").write_text(yaml.safe_dump({"tenants": [tenant]}))
    endpoints = [{"url": f"http://127.0.0.1:{port}", "model": "mock", "adapter_slots": 4} for port in ports]
    adapters = [{"name": "lora-a", "parent": "mock", "path": "/adapters/a"}]
    before = (str(ROOT / spec["compiled"]),) if "compiled" in spec else ()
    path = {"PYTHONPATH": os.pathsep.join([*before, *filter(None, [os.environ.get("PYTHONPATH")])])}
    return {
        **os.environ,
        **path,
        "TONNAGE_ROUTER_PORT": str(PORT),
        "TONNAGE_ROUTER_ADMIN_PORT": str(ADMIN),
        "TONNAGE_ROUTER_LOG_LEVEL": "WARNING",
        "TONNAGE_ROUTER_ENDPOINTS": json.dumps(endpoints),
        "TONNAGE_ROUTER_ADAPTERS": json.dumps(adapters),
        "TONNAGE_ROUTER_TENANTS_FILE": str(where / "tenants.yaml"),
        **{
            name: value.format(collector=f"http://127.0.0.1:{ports[0]}")
            for name, value in spec.get("environment", {}).items()
        },
    }


def _round(settings: dict[str, Any], command: list[str], env: dict[str, str], cells: dict[str, Any]) -> None:
    process = subprocess.Popen(
        _pinned(command, settings["router_cpu"]), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_ready()
        _load(settings, 8, "json", 0.5)
        for mode in settings["modes"]:
            for concurrency in settings["concurrency"]:
                before, _ = _usage(process.pid)
                row = _load(settings, concurrency, mode, settings["seconds"])
                after, rss = _usage(process.pid)
                row |= {"cpu_us": round(1e6 * (after - before) / max(1, row["requests"]), 1), "rss_mib": round(rss, 1)}
                cells.setdefault(f"{mode} c={concurrency}", []).append(row)
        cells.setdefault("paced", []).append(_paced(settings, process.pid))
    finally:
        process.terminate()
        process.wait()


def _paced(settings: dict[str, Any], pid: int) -> dict[str, float]:
    """What the router adds to a paced stream's first token, both sides of the difference, and CPU a token of short and
    long streams, with its share of the request and of what the router does by itself; from the two, what a token takes
    and what a request does: a stream of no token."""
    paced, short = settings["paced"], settings["stream_tokens"]
    beside = _load(settings, paced["streams"], "paced", paced["seconds"], FIRST_BACKEND)
    through, stream_us = _streams(settings, pid, paced["seconds"], short)
    _, long_us = _streams(settings, pid, 0.0, paced["long_tokens"])
    token_us = (long_us - stream_us) / (paced["long_tokens"] - short)
    return {
        "direct_ttft_p50_ms": beside["ttft_p50_ms"],
        "ttft_p50_ms": through["ttft_p50_ms"],
        "bad": through["bad"],
        "cpu_us_a_token": round(stream_us / short, 1),
        "cpu_us_a_token_of_long_streams": round(long_us / paced["long_tokens"], 1),
        "token_us": round(token_us, 1),
        "request_us": round(stream_us - short * token_us, 1),
        "added_ttft_p50_ms": round(through["ttft_p50_ms"] - beside["ttft_p50_ms"], 3),
    }


def _streams(settings: dict[str, Any], pid: int, seconds: float, tokens: int) -> tuple[dict[str, Any], float]:
    """Paced streams of so many tokens each, and the router's CPU, in microseconds, a stream."""
    before, _ = _usage(pid)
    row = _load(settings, settings["paced"]["streams"], "paced", seconds, tokens=tokens)
    return row, 1e6 * (_usage(pid)[0] - before) / max(1, row["requests"])


def _load(
    settings: dict[str, Any], concurrency: int, mode: str, seconds: float, port: int = PORT, tokens: int = 0
) -> dict[str, Any]:
    numbers = [port, concurrency, seconds, mode, settings["body_kib"], settings["prompts"]]
    numbers.append(tokens or settings["stream_tokens"])
    command = _pinned([sys.executable, str(HERE / "load.py"), *map(str, numbers)], settings["load_cpu"])
    row: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return row


def _wait_ready() -> None:
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer bench-key"}
    for _ in range(200):
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/chat/completions", body, headers)
            with urllib.request.urlopen(request, timeout=3) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError("the router did not answer in 40 s")


def _usage(pid: int) -> tuple[float, float]:
    """CPU seconds and RSS MiB of a process tree."""
    todo, cpu, rss = [pid], 0.0, 0.0
    while todo:
        process = todo.pop()
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        except OSError:
            continue
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        rss += pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        todo += map(int, children)
    return cpu, rss


def _median(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}


if __name__ == "__main__":
    sys.exit(main())
