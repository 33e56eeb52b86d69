"""A browser, planners over a staged world, and the local fleet as a user starts it."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from prometheus_client import CollectorRegistry

from tonnage_core.autoscaling.observation import Outcome
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports, build_app
from tonnage_planner.ports import ScrapeError
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind, serve

ROOT = Path(__file__).resolve().parents[2]
TONNAGE = [sys.executable, "-c", "from tonnage_cli.main import main; main()"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ROUTER, TOKEN = "http://router:1", "let-me"
WAIT_MS = 45_000
"""Deadline of whatever a test waits for in a page; nothing is judged by how long it took."""
expect.set_options(timeout=WAIT_MS)


@dataclass
class World:
    """What a staged planner sees: answers by URL (text, a document, or what makes one); all else is unreachable."""

    answers: dict[str, Any] = field(default_factory=dict)
    posts: list[str] = field(default_factory=list)
    down: bool = False

    async def text(self, url: str) -> str:
        found = None if self.down else self.answers.get(url.split("?")[0])
        if found is None:
            raise ScrapeError(Outcome.UNREACHABLE, "connection refused")
        made = found() if callable(found) else found
        return made if isinstance(made, str) else json.dumps(made)

    async def addresses(self, url: str) -> Sequence[str]:
        return (url,)

    async def post(self, url: str) -> tuple[int, str]:
        self.posts.append(url)
        return 200, "{}"


def engine_metrics(number: int) -> str:
    """An engine's page: its load by its number, counters that go on (a page that stands still is not believed)."""
    made = time.monotonic()
    running = 0 if number % 7 == 0 else number % 40
    return (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {number % 5}\n"
        f"vllm:kv_cache_usage_perc {(number * 37 % 100) / 100}\nvllm:prompt_tokens_total {number * 1000 + 9 * made}\n"
        f"vllm:generation_tokens_total {number * 100 + made}\n"
        f"vllm:prefix_cache_queries_total {9 * made}\nvllm:prefix_cache_hits_total {number % 10 * made}\n"
    )


def routed(url: str, number: int, **more: Any) -> dict[str, Any]:
    """A router's row of an endpoint."""
    return {
        "id": url.removeprefix("http://"), "url": url, "models": ["org/model"], "role": "both", "healthy": True,
        "problem": None, "draining": False, "drained_by": [], "breaker": "closed", "requests": number % 9,
        "load_tokens": float(number * 31 % 5000), "kv_utilisation": None, "waiting": None, "max_model_len": 32768,
        "gpu_speed": None, "adapters": [], "adapter_slots": None, "kv_events": None, "index_blocks": number,
        "requests_total": number, "failures_total": 0,
    } | more  # fmt: skip


@dataclass(frozen=True)
class Served:
    """A planner on loopback and the world it sees."""

    url: str
    world: World


Stage = Callable[..., Served]


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Start a planner over a world: `stage(world, endpoints, **settings)`."""
    with contextlib.ExitStack() as stack:

        def start(world: World, endpoints: Sequence[EndpointSettings] = (), **settings: Any) -> Served:
            return stack.enter_context(_planner(world, endpoints, settings))

        yield start


@contextlib.contextmanager
def _planner(world: World, endpoints: Sequence[EndpointSettings], more: Mapping[str, Any]) -> Iterator[Served]:
    ports = Ports(StaticEndpoints(endpoints), world, SystemClock(), CollectorRegistry(), poster=world)
    settings = PlannerSettings(**{"scrape_interval_s": 2.0} | dict(more))
    app = build_app(settings, ports)
    sock = bind("127.0.0.1", 0)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    serving = serve(app, sock, drain_timeout_s=1, stop=stop, tls=settings.tls)
    thread = threading.Thread(target=loop.run_until_complete, args=(serving,))
    thread.start()
    try:
        yield Served(f"http{'s' if settings.tls else ''}://127.0.0.1:{sock.getsockname()[1]}", world)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@pytest.fixture(scope="module")  # while it is open this thread has a running loop, in which no async test could start
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page whose every script error fails the test."""
    context = chromium.new_context(
        viewport={"width": 1440, "height": 1000}, color_scheme="dark", ignore_https_errors=True
    )
    context.set_default_timeout(WAIT_MS)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    context.close()
    assert wrong == []


@dataclass(frozen=True)
class LocalFleet:
    """`tonnage up` as it runs: its URLs and what it printed."""

    urls: dict[str, Any]
    printed: str

    def pid(self, name: str) -> int:
        with urllib.request.urlopen(self.urls["fleet"], timeout=30) as answer:
            return int(next(one["pid"] for one in json.load(answer)["processes"] if one["name"] == name))

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """The process stands still meanwhile: it neither answers nor dies."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @property
    def console_with_token(self) -> str:
        found = re.search(r"http://\S+#token=\S+", self.printed)
        assert found is not None, self.printed
        return found[0]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """The fleet after a short replay, still up."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    folder = tmp_path_factory.mktemp("console")
    command = [
        *TONNAGE, "up", "--engines", "2", "--port-base", "0", "--urls-file", "urls.json", "--speed", "20",
        "--replay", str(ROOT / "samples" / "mooncake_sample.jsonl"), "--limit", "30", "--max-input", "3000",
    ]  # fmt: skip
    with (folder / "out.txt").open("w+") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 100
            while "the fleet stays up" not in (printed := (folder / "out.txt").read_text()):
                assert process.poll() is None and time.monotonic() < deadline, printed
                time.sleep(0.2)
            yield LocalFleet(json.loads((folder / "urls.json").read_text()), printed)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
