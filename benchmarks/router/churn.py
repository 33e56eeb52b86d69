"""Prompts that never repeat, while endpoints come and go: the router's memory stays within its index's bound."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import httptools
import uvloop
import yaml
from quality_fleet import HOST, end, wait_for

from tonnage_runtime.ports import free_ports

HERE = Path(__file__).resolve().parent
MIB = 2**20


def churn(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """RSS after the first tenth of the prompts and its largest value since, against the index's bound."""
    most = max(settings["endpoints"])
    ports = free_ports(most + 2)
    listed = directory / "endpoints.yaml"
    _list(listed, ports[2:], settings["endpoints"][0])
    env = {
        **os.environ,
        "TONNAGE_ROUTER_PORT": str(ports[0]),
        "TONNAGE_ROUTER_ADMIN_PORT": str(ports[1]),
        "TONNAGE_ROUTER_LOG_LEVEL": "ERROR",
        "TONNAGE_ROUTER_ENDPOINTS_FILE": str(listed),
        "TONNAGE_ROUTER_RELOAD_INTERVAL_S": "0.1",
        "TONNAGE_ROUTER_INDEX_BYTES_PER_ENDPOINT": str(settings["index_bytes_per_endpoint"]),
    }
    commands = [[sys.executable, str(HERE / "engine_stub.py"), "4", *map(str, ports[2:])]]
    commands += [[sys.executable, "-m", "tonnage_router.main"]]
    processes = [subprocess.Popen(command, env=env, start_new_session=True) for command in commands]
    try:
        body = json.dumps({"model": "mock", "prompt": "ready", "max_tokens": 1}).encode()
        wait_for(f"http://{HOST}:{ports[0]}/v1/completions", body)
        load = _Load(settings, ports[0], processes[1].pid, lambda count: _list(listed, ports[2:], count))
        begun = time.monotonic()
        uvloop.run(load.run())
        with urllib.request.urlopen(f"http://{HOST}:{ports[1]}/admin/endpoints", timeout=10) as answer:
            rows = json.load(answer)["endpoints"]
    finally:
        end(processes)
    bound = most * settings["index_bytes_per_endpoint"] / MIB
    first, later = load.rss[0], load.rss[1:]
    return {
        "prompts": load.done,
        "bad": load.bad,
        "seconds": round(time.monotonic() - begun, 1),
        "rss_mib": [round(value, 1) for value in load.rss],
        "index_bound_mib": bound,
        "growth_mib": round(max(later) - first, 1),
        "second_half_growth_mib": round(max(later) - max(load.rss[: len(load.rss) // 2]), 1),
        "index_blocks": sum(row["index_blocks"] for row in rows),
        "counts_left_over": sum(row["requests"] + row["prefill_tokens"] + row["decode_tokens"] for row in rows),
        "holds": not load.bad and max(later) - first <= bound + settings["slack_mib"],
    }


def _list(file: Path, ports: list[int], count: int) -> None:
    rows = [{"url": f"http://{HOST}:{port}", "model": "mock"} for port in ports[:count]]
    fresh = file.with_suffix(".new")
    fresh.write_text(yaml.safe_dump({"endpoints": rows}))
    fresh.replace(file)


class _Load:
    """A closed loop; RSS is read, and the endpoints change, at equal steps of the count."""

    def __init__(self, settings: dict[str, Any], port: int, pid: int, relist: Any) -> None:
        self.settings, self.port, self.pid, self.relist = settings, port, pid, relist
        self.sizes = itertools.cycle(settings["endpoints"])
        self.total = settings["prompts"]
        self.step = max(1, self.total // settings["changes"])
        self.sent = self.done = self.bad = 0
        self.rss: list[float] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        finished = [loop.create_future() for _ in range(self.settings["concurrency"])]
        for future in finished:
            await loop.create_connection(lambda future=future: _Client(self, future), HOST, self.port)
        await asyncio.gather(*finished)

    def next(self) -> bytes | None:
        """The next request, None at the end."""
        if self.sent == self.total:
            return None
        self.sent += 1
        if self.sent % self.step == 0:
            self.relist(next(self.sizes))
        if self.sent % (self.total // 10) == 0:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            self.rss.append(pages * os.sysconf("SC_PAGE_SIZE") / MIB)
        text = f"{self.sent:09d} word {self.sent} " * (self.settings["prompt_bytes"] // 22)
        body = b'{"model":"mock","max_tokens":1,"prompt":"%b"}' % text.encode()
        return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    def answered(self, status: int) -> None:
        """One more answer."""
        self.done += 1
        self.bad += status != 200


class _Client(asyncio.Protocol):
    def __init__(self, load: _Load, finished: "asyncio.Future[None]") -> None:
        self.load, self.finished = load, finished
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.go()

    def go(self) -> None:
        request = self.load.next()
        if request is None:
            self.transport.close()
        else:
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.load.answered(self.parser.get_status_code())
        self.go()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_result(None)
