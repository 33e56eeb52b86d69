"""The planner's loop on a fake clock and fake endpoints."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from tonnage_core.autoscaling.observation import Knowledge, Outcome
from tonnage_planner.fleet import Fleet
from tonnage_planner.metrics import PlannerMetrics
from tonnage_planner.ports import ScrapeError
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_planner.starts import EVERY_S
from tonnage_planner.watch import Watch, router_waiting
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.errors import SettingsError

IDLE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
BUSY = "vllm:num_requests_running 10\nvllm:num_requests_waiting 20\nvllm:kv_cache_usage_perc 0.9\n"
STARTS = (
    '{"schema": "tonnage.starts/1", "starts": [{"pool": "m", "name": "m-0", "total_s": 333.0, "spans": '
    '[{"phase": "pull", "start_s": 100.0, "end_s": null}]}]}'
)


class FakeScraper:
    """Answers from a table; a value that is an outcome fails, one that is an event waits."""

    def __init__(self, answers: Mapping[str, str | Outcome | asyncio.Event]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []

    async def text(self, url: str) -> str:
        self.asked.append(url)
        base = url.removesuffix("/metrics")
        answer = self.answers.get(base, Outcome.HTTP_ERROR)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            raise ScrapeError(Outcome.TIMEOUT, "waited")
        if isinstance(answer, Outcome):
            raise ScrapeError(answer, "as told")
        return answer

    async def addresses(self, url: str) -> Sequence[str]:
        return (url,)


class FakeSource:
    """A list that can change or fail."""

    def __init__(self, *urls: str) -> None:
        self.urls: Sequence[str] | None = urls

    def endpoints(self) -> Sequence[EndpointSettings]:
        if self.urls is None:
            raise SettingsError("endpoints.yaml: not valid YAML")
        return [EndpointSettings(url=url, model="m") for url in self.urls]


class Bench:
    """A watch with its fakes."""

    def __init__(
        self,
        answers: Mapping[str, str | Outcome | asyncio.Event],
        *,
        router_url: str | None = None,
        coldstart_urls: tuple[str, ...] = (),
    ) -> None:
        settings = PlannerSettings(router_url=router_url, coldstart_urls=coldstart_urls, scrape_interval_s=2)
        self.clock, self.fleet, self.registry = ManualClock(), Fleet(settings), CollectorRegistry()
        self.scraper = FakeScraper(answers)
        self.source = FakeSource(*(url for url in answers if url != router_url and "/v1/" not in url))
        metrics = PlannerMetrics(self.registry)
        metrics.fleet.attach(self.fleet, self.clock)
        self.watch = Watch(
            settings, self.fleet, source=self.source, scraper=self.scraper, metrics=metrics, clock=self.clock
        )

    async def round(self, *, settle: bool = True) -> None:
        self.watch.tick()
        if settle:
            await self.watch.settle()
        else:
            await asyncio.sleep(0.01)
        self.clock.advance(2)

    def states(self) -> dict[str, Knowledge]:
        return {seen.url: seen.knowledge for seen in self.fleet.observations(self.clock.monotonic())}

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


async def test_decides_once_every_endpoint_was_tried() -> None:
    bench = Bench({"http://a": IDLE, "http://b": Outcome.TIMEOUT})
    await bench.round()
    assert bench.fleet.decided == {}
    await bench.round()
    assert bench.fleet.decided["m"].decision.target == 2
    assert bench.gauge("tonnage_planner_desired_replicas", pool="m") == 2


async def test_load_moves_the_target_and_the_change_names_its_signal() -> None:
    bench = Bench({"http://a": IDLE})
    for _ in range(2):
        await bench.round()
    bench.scraper.answers["http://a"] = BUSY
    for _ in range(2):
        await bench.round()
    assert bench.gauge("tonnage_planner_desired_replicas", pool="m") == 2
    moved = bench.gauge("tonnage_planner_target_changes_total", pool="m", direction="up", signal="kv_usage")
    assert moved == 1


async def test_a_hanging_endpoint_delays_no_other_and_is_not_asked_twice_at_once() -> None:
    hang = asyncio.Event()
    bench = Bench({"http://a": IDLE, "http://hang": hang})
    for _ in range(4):
        await bench.round(settle=False)
    assert bench.states()["http://a"] is Knowledge.FRESH
    assert bench.scraper.asked.count("http://a/metrics") == 4
    assert bench.scraper.asked.count("http://hang/metrics") == 1
    hang.set()
    await bench.watch.settle()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Outcome.TIMEOUT, "timeout"),
        (Outcome.UNREACHABLE, "unreachable"),
        (Outcome.HTTP_ERROR, "http_error"),
        (Outcome.TOO_LARGE, "too_large"),
        ("vllm:num_requests_running one\n", "unparsable"),
        ("go_goroutines 7\n", "no_engine_metrics"),
    ],
)
async def test_a_failed_scrape_leaves_the_endpoint_unknown_and_is_counted(answer: str | Outcome, outcome: str) -> None:
    bench = Bench({"http://a": answer})
    await bench.round()
    (seen,) = bench.fleet.observations(bench.clock.monotonic())
    assert seen.knowledge is Knowledge.UNKNOWN
    assert seen.reading is None
    assert outcome in seen.reason
    assert bench.gauge("tonnage_planner_scrapes_total", outcome=outcome) == 1


@pytest.mark.parametrize("json_body", ['[{"iter": 1, "numActiveRequests": 2}]', "[]\n", '[{"iter": 1}]\n'])
async def test_an_engine_with_json_under_metrics_is_read_at_its_other_path(json_body: str) -> None:
    bench = Bench({"http://trt": json_body})
    bench.scraper.answers["http://trt/prometheus"] = "trtllm_kv_cache_utilization 0.5\n"
    for _ in range(3):
        await bench.round()
    assert bench.states() == {"http://trt": Knowledge.FRESH}
    first, other = "http://trt/metrics", "http://trt/prometheus/metrics"
    assert bench.scraper.asked == [first, other, other, other]


async def test_a_dead_endpoint_turns_stale_and_then_its_series_say_unknown_not_zero() -> None:
    bench = Bench({"http://a": BUSY})
    await bench.round()
    bench.scraper.answers["http://a"] = Outcome.UNREACHABLE
    for _ in range(6):
        await bench.round()
    assert bench.states() == {"http://a": Knowledge.STALE}
    assert bench.gauge("tonnage_planner_endpoint_state", pool="m", endpoint="http://a", state="stale") == 1
    running = bench.gauge("tonnage_planner_pool_requests", pool="m", state="running")
    assert running is not None and running != running  # NaN


async def test_an_endpoint_that_leaves_the_list_leaves_every_metric() -> None:
    bench = Bench({"http://a": IDLE, "http://b": IDLE})
    await bench.round()
    bench.source.urls = ["http://a"]
    await bench.round()
    assert list(bench.states()) == ["http://a"]
    assert bench.gauge("tonnage_planner_endpoint_state", pool="m", endpoint="http://b", state="fresh") is None


async def test_an_endpoint_that_joins_is_pending_and_holds_no_decision_up() -> None:
    bench = Bench({"http://a": IDLE, "http://new": Outcome.UNREACHABLE})
    bench.source.urls = ["http://a"]
    for _ in range(2):
        await bench.round()
    bench.source.urls = ["http://a", "http://new"]
    await bench.round()
    assert bench.states()["http://new"] is Knowledge.PENDING
    assert bench.fleet.decided["m"].at_s == bench.clock.monotonic() - 2


async def test_a_list_that_cannot_be_read_keeps_the_last_one_and_shows() -> None:
    bench = Bench({"http://a": IDLE})
    await bench.round()
    bench.source.urls = None
    await bench.round()
    assert bench.states() == {"http://a": Knowledge.FRESH}
    assert bench.gauge("tonnage_planner_endpoint_list_readable") == 0
    bench.source.urls = ["http://a"]
    await bench.round()
    assert bench.gauge("tonnage_planner_endpoint_list_readable") == 1


async def test_the_routers_queue_counts_as_waiting() -> None:
    router = 'tonnage_router_queue_requests{pool="m"} 30\n'
    bench = Bench({"http://a": IDLE, "http://r": router}, router_url="http://r")
    for _ in range(3):
        await bench.round()
    assert bench.fleet.decided["m"].decision.target == 2
    assert bench.fleet.decided["m"].decision.load.router is not None


async def test_a_router_that_does_not_name_the_pool_is_unknown_not_empty() -> None:
    bench = Bench({"http://a": IDLE, "http://r": "up 1\n"}, router_url="http://r")
    for _ in range(3):
        await bench.round()
    router = bench.fleet.decided["m"].decision.load.router
    assert router is not None and router.waiting is None


def test_router_queues_add_up_by_pool_and_nan_is_unknown() -> None:
    name = "tonnage_router_queue_requests"
    text = f'{name}{{pool="a"}} 1\n{name}{{pool="a"}} 2\n{name}{{pool="b"}} NaN\n{name}{{pool="b"}} 1\n'
    assert router_waiting([text, f'{name}{{pool="a"}} 4\n']) == {"a": 7.0}


async def test_the_loop_ends_its_scrapes_when_it_is_cancelled() -> None:
    bench = Bench({"http://hang": asyncio.Event()})
    running = asyncio.create_task(bench.watch.run())
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.watch.in_flight == 0


async def test_the_planner_asks_each_cold_start_service_now_and_then() -> None:
    cold = "http://cold:8092"
    bench = Bench({"http://a": IDLE, f"{cold}/v1/starts": STARTS}, coldstart_urls=(cold, "http://dead:1"))
    for _ in range(3):
        await bench.round()
    assert dict(bench.fleet.states["m"].outlook.starts) == {"start:m-0@100": 333.0}
    assert bench.scraper.asked.count(f"{cold}/v1/starts") == 1
    bench.clock.advance(EVERY_S)
    await bench.round()
    assert bench.scraper.asked.count(f"{cold}/v1/starts") == 2
    assert bench.gauge("tonnage_planner_start_scrapes_total", outcome="ok") == 2
    assert bench.gauge("tonnage_planner_start_scrapes_total", outcome="http_error") == 2
