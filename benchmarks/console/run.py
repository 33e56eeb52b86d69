"""The console's Fleet page in chromium on loopback: first paint, first rows, scrolling, and what an answer costs.

usage: python benchmarks/console/run.py [--short] [--out RESULT.json]
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Browser, sync_playwright
from prometheus_client import CollectorRegistry

from tonnage_core.autoscaling.observation import Outcome
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports, build_app
from tonnage_planner.ports import ScrapeError
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind, serve

HERE = Path(__file__).resolve().parent
ROUTER = "http://router:1"
MARKS = """() => Object.fromEntries([...performance.getEntriesByType('paint'), ...performance.getEntriesByType('mark')]
    .map((entry) => [entry.name, entry.startTime]))"""
SCROLL = """async (steps) => {
  const grid = document.querySelector('.grid-scroll'), gaps = [];
  let before = performance.now();
  for (let i = 0; i < steps; i += 1) {
    grid.scrollTop += 190;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    gaps.push(now - before);
    before = now;
  }
  return gaps;
}"""


class Staged:
    """A fleet of engines and their router, answered from memory: what is measured is the planner and the page."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._engines = {f"{url}/metrics": number for number, url in enumerate(urls)}
        rows = [
            {"id": url.removeprefix("http://"), "url": url, "models": ["org/model"], "healthy": True, "requests": 3}
            for url in urls
        ]
        self._router = json.dumps({"policy": "prefix", "endpoints": rows})

    async def text(self, url: str) -> str:
        """The answer of an engine or the router."""
        if url == f"{ROUTER}/admin/endpoints":
            return self._router
        if url in self._engines:
            return _metrics(self._engines[url])
        raise ScrapeError(Outcome.UNREACHABLE, "connection refused")

    async def addresses(self, url: str) -> Sequence[str]:
        """The address itself."""
        return (url,)


def _metrics(number: int) -> str:
    return (
        f"vllm:num_requests_running {number % 40}\nvllm:num_requests_waiting {number % 5}\n"
        f"vllm:kv_cache_usage_perc {(number * 37 % 100) / 100}\nvllm:generation_tokens_total {time.monotonic()}\n"
    )


@contextlib.contextmanager
def planner(engines: int, **settings: Any) -> Iterator[str]:
    """A planner that has seen every engine; its URL."""
    urls = [f"http://10.0.{n // 250}.{n % 250}:8000" for n in range(engines)]
    listed = [EndpointSettings(url=url, model="org/model", pool=f"pool-{n % 4}") for n, url in enumerate(urls)]
    ports = Ports(StaticEndpoints(listed), Staged(urls), SystemClock(), CollectorRegistry())
    app = build_app(PlannerSettings(router_url=ROUTER, **settings), ports)
    sock = bind("127.0.0.1", 0)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(app, sock, drain_timeout_s=1, stop=stop),))
    thread.start()
    try:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        while len(_fleet(url)["endpoints"]) < engines or _fleet(url)["endpoints"][-1]["running"] is None:
            time.sleep(0.5)
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def _fleet(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/v1/console/fleet") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def answer_cost(url: str, rounds: int) -> dict[str, float]:
    """CPU of this process for one fresh answer, and its size; ms and bytes. The engines are not scraped meanwhile."""
    times, size = [], 0
    for _ in range(rounds):
        time.sleep(0.6)  # answers within half a second are shared
        started = time.process_time()
        with urllib.request.urlopen(f"{url}/v1/console/fleet") as answer:
            size = len(answer.read())
        times.append((time.process_time() - started) * 1e3)
    return {"cpu_ms_least": round(min(times), 2), "cpu_ms_median": round(statistics.median(times), 2), "bytes": size}


def measure(browser: Browser, url: str, settings: dict[str, Any], loads: int) -> dict[str, Any]:
    """Loads in fresh contexts, nothing cached: milliseconds from the navigation's start."""
    marks: list[dict[str, float]] = []
    gaps: list[float] = []
    for load in range(loads):
        context = browser.new_context(viewport=settings["viewport"])
        page = context.new_page()
        page.goto(f"{url}/console/fleet")
        page.wait_for_selector("[data-ready]", timeout=120_000)
        page.wait_for_selector(".grid-row", timeout=120_000)
        marks.append(page.evaluate(MARKS))
        if load == loads - 1:
            gaps = page.evaluate(SCROLL, settings["scrolls"])
        context.close()
    return {
        "first_contentful_paint_ms": _spread([mark["first-contentful-paint"] for mark in marks]),
        "rows_drawn_ms": _spread([mark["tonnage-fleet"] for mark in marks]),
        "scroll_frame_ms": {"p50": _rank(gaps, 0.5), "p95": _rank(gaps, 0.95)},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 1), "min": round(min(values), 1), "max": round(max(values), 1)}


def _rank(values: Sequence[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 1) if values else float("nan")


def main() -> int:
    """Measure, print a line a size, write the result; 1 when the first paint is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("console: skipped, chromium is not installed (apt-get install chromium)")
        return 0
    loads = settings["short_loads"] if arguments.short else settings["loads"]
    found: dict[str, Any] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        measure_one = browser.new_page()  # the browser's own start is none of the page's
        measure_one.goto("about:blank")
        for engines in settings["endpoints"]:
            with planner(engines) as url:
                before = os.getloadavg()[0]
                found[str(engines)] = {
                    **measure(browser, url, settings, loads),
                    "load_average": round(before, 1),
                }
            with planner(engines, scrape_interval_s=3600.0, stale_after_s=36000.0) as url:
                found[str(engines)]["answer"] = answer_cost(url, loads)
            print(f"{engines} endpoints: {json.dumps(found[str(engines)])}")
        version = browser.version
        browser.close()
    within = all(
        one["first_contentful_paint_ms"]["median"] <= settings["first_paint_limit_ms"] for one in found.values()
    )
    document = {
        "schema": "tonnage.bench_console/1", "chromium": version,
        "cores": os.cpu_count(), "python": platform.python_version(),
        "settings": settings, "loads": loads, "endpoints": found, "within_limit": within,
    }  # fmt: skip
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
