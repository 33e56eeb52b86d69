"""What a simulated engine costs: CPU microseconds a streamed token, CPU milliseconds a request.

usage: python benchmarks/sim/run.py [--short] [--only CASE] [--out RESULT.json]
"""

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tonnage_core import engine_text

HERE = Path(__file__).resolve().parent


def main() -> int:
    arguments = _arguments()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    wanted = [name for name in settings["cases"] if arguments.only in (None, name)]
    results = {name: _measure(settings, name, short=arguments.short) for name in wanted}
    for name, result in results.items():
        print(f"{name:22}", "  ".join(f"{key} {value}" for key, value in result.items()))
    if arguments.out:
        document = {
            "schema": "tonnage.benchmark.sim/1",
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "load_average": [round(load, 1) for load in os.getloadavg()],
            "settings": settings,
            "results": results,
        }
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if _within(settings["limits"], results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the requests")
    parser.add_argument("--only", help="one case")
    parser.add_argument("--out", type=Path, help="write the result here")
    return parser.parse_args()


def _within(limits: dict[str, float], results: dict[str, dict[str, Any]]) -> bool:
    token = results.get("streams", {}).get("cpu_us_per_token", 0)
    prompts = [results.get(f"long_prompts_{kind}", {}).get("cpu_ms_per_request", 0) for kind in ("text", "tokens")]
    return bool(token <= limits["cpu_us_per_token"] and max(prompts) <= limits["cpu_ms_per_12k_prompt"])


def _measure(settings: dict[str, Any], name: str, *, short: bool) -> dict[str, Any]:
    case = settings["cases"][name]
    factor = settings["short_factor"] if short else 1
    port = _free_port()
    process = _start(settings, case, port)
    try:
        _wait(port)
        asyncio.run(_warm(port))
        before, wall = _cpu_s(process.pid), time.perf_counter()
        if "scrapes" in case:
            count = max(1, int(case["scrapes"] * factor))
            asyncio.run(_scrape(port, count))
            return {"cpu_ms_per_scrape": round(1e3 * (_cpu_s(process.pid) - before) / count, 2)}
        requests = max(case["concurrency"], int(case["requests"] * factor))
        size = asyncio.run(_load(settings, case, port, requests))
        return _result(case, requests, size, _cpu_s(process.pid) - before, time.perf_counter() - wall)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _result(case: dict[str, Any], requests: int, size: int, cpu_s: float, wall_s: float) -> dict[str, Any]:
    tokens = requests * case["output_tokens"]
    return {
        "requests": requests,
        "tokens": tokens,
        "cpu_s": round(cpu_s, 2),
        "wall_s": round(wall_s, 2),
        "cpu_ms_per_request": round(1e3 * cpu_s / requests, 3),
        "cpu_us_per_token": round(1e6 * cpu_s / tokens, 2),
        "tokens_per_wall_s": round(tokens / wall_s),
        "bytes_received": size,
    }


def _start(settings: dict[str, Any], case: dict[str, Any], port: int) -> subprocess.Popen[bytes]:
    env = {
        "TONNAGE_SIM_PORT": str(port),
        "TONNAGE_SIM_MODEL": settings["model"],
        "TONNAGE_SIM_GPU": settings["gpu"],
        "TONNAGE_SIM_BLOCK_SIZE": str(settings["block_size"]),
        "TONNAGE_SIM_SEED": str(settings["seed"]),
        "TONNAGE_SIM_TIME_SCALE": str(case.get("time_scale", 1)),
        "TONNAGE_SIM_LOG_LEVEL": "WARNING",
    }
    return subprocess.Popen([sys.executable, "-m", "tonnage_sim.main"], env={**os.environ, **env})


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait(port: int) -> None:
    for _ in range(200):
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("the simulator did not start")


def _cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _warm(port: int) -> None:
    body = {"prompt": " babab", "max_tokens": 2, "ignore_eos": True, "stream": True}
    await _post(port, [_request(body)] * 3)


async def _scrape(port: int, count: int) -> None:
    await _post(port, [b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"] * count)


async def _load(settings: dict[str, Any], case: dict[str, Any], port: int, requests: int) -> int:
    rng = random.Random(settings["seed"])
    made = []
    for _ in range(requests):
        ids = [rng.randrange(engine_text.WORD_BASE, engine_text.TOKENS) for _ in range(case["prompt_tokens"])]
        prompt = ids if case.get("token_ids") else engine_text.decode(ids)
        body = {"prompt": prompt, "max_tokens": case["output_tokens"], "ignore_eos": True, "stream": case["stream"]}
        made.append(_request(body))
    lanes = [made[i :: case["concurrency"]] for i in range(case["concurrency"])]
    return sum(await asyncio.gather(*(_post(port, lane) for lane in lanes)))


def _request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


async def _post(port: int, requests: list[bytes]) -> int:
    """Send requests one after another on one connection; returns the bytes received."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    received = 0
    for request in requests:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"refused: {head.decode()}")
        received += len(head) + await _body(reader, head)
    writer.close()
    await writer.wait_closed()
    return received


async def _body(reader: asyncio.StreamReader, head: bytes) -> int:
    length = head.lower().partition(b"content-length: ")[2]
    if length:
        return len(await reader.readexactly(int(length.split(b"\r\n")[0])))
    size, tail = 0, b""
    while not tail.endswith(b"0\r\n\r\n"):
        data = await reader.read(1 << 18)
        size += len(data)
        tail = (tail + data)[-5:]
    return size


if __name__ == "__main__":
    sys.exit(main())
