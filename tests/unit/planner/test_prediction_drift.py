"""Predicted against seen: what live traffic shows a token to take, beside the time model's answer for the same load."""

import logging
import math
from collections.abc import Mapping

import pytest

from tonnage_core.autoscaling.engine_metrics import EngineReading, Signal
from tonnage_core.autoscaling.live_tokens import LiveTokens, follow, seen_tokens
from tonnage_core.autoscaling.observation import Attempt, Knowledge, Observation, Outcome
from tonnage_planner.drift import Drift, DriftWatch
from tonnage_planner.fleet import Fleet
from tonnage_planner.metrics import FleetCollector
from tonnage_planner.settings import EndpointSettings, PlannerSettings, PolicySettings
from tonnage_runtime.clock import SystemClock

MODEL = "meta-llama/Llama-3.1-8B"
RATES = {
    "token_gap_seconds": 8.0,
    "token_gaps": 400.0,
    "first_tokens": 2.0,
    "finished_requests": 2.0,
    "prompt_tokens": 2000.0,
    "prefix_hits": 500.0,
    "generation_tokens": 400.0,
}


def replica(
    rates: Mapping[str, float | None] = RATES, running: float = 8, knowledge: Knowledge = Knowledge.FRESH
) -> Observation:
    reading = EngineReading("vllm", {Signal.RUNNING: running}, {}, {}, (), ())
    return Observation("http://a:1", MODEL, knowledge, "", 0.0, 0.0, reading, rates_per_s=rates)


def after(*seen: Observation, seconds: int = 20) -> LiveTokens:
    live = LiveTokens()
    for second in range(seconds):
        live = follow(live, seen, float(second))
    return live


def test_means_are_of_requests_and_tokens() -> None:
    found = seen_tokens(after(replica()))
    assert found is not None
    assert (found.token_s, found.isl, found.prefix, found.osl) == pytest.approx((0.02, 1000, 250, 200))
    assert found.concurrency == 8


def test_the_busy_replica_says_how_many_run_at_once_and_the_idle_one_does_not_dilute_it() -> None:
    idle = replica(dict.fromkeys(RATES, 0.0), running=0)
    found = seen_tokens(after(replica(), idle, idle, idle))
    assert found is not None
    assert found.concurrency == 8


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replica(dict.fromkeys(RATES, 0.0)), id="no traffic"),
        pytest.param(replica(RATES | {"token_gaps": None}), id="an engine that does not count gaps"),
        pytest.param(replica(knowledge=Knowledge.STALE), id="a stale reading"),
    ],
)
def test_what_is_not_seen_is_unknown(seen: Observation) -> None:
    assert seen_tokens(after(seen)) is None


def test_old_traffic_fades() -> None:
    live = after(replica(), seconds=60)
    slower = replica(RATES | {"token_gap_seconds": 16.0})
    for second in range(60, 1000):
        live = follow(live, [slower], float(second))
    found = seen_tokens(live)
    assert found is not None
    assert found.token_s == pytest.approx(0.04, rel=0.01)


def test_drift_is_seen_over_predicted_and_moves_with_what_is_seen() -> None:
    drifts = []
    for gap_s in (8.0, 16.0):
        watch = DriftWatch()
        for second in range(30):
            seen = [replica(RATES | {"token_gap_seconds": gap_s})]
            watch.look(MODEL, seen, float(second), PolicySettings(gpu="H200-SXM-141GB"))
        drifts.append(watch.by_pool[MODEL])
    assert drifts[0].predicted_s == drifts[1].predicted_s
    assert drifts[0].ratio is not None and drifts[1].ratio is not None
    assert drifts[1].ratio == pytest.approx(2 * drifts[0].ratio)


def test_without_a_gpu_there_is_no_prediction_and_a_model_nobody_knows_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = DriftWatch()
    for second in range(60):
        watch.look("plain", [replica()], float(second), PolicySettings())
        watch.look("odd", [replica()], float(second), PolicySettings(gpu="H200-SXM-141GB", model="no/such-model"))
    assert watch.by_pool["plain"] == Drift(watch.by_pool["odd"].seen_s, None)
    assert watch.by_pool["odd"].ratio is None
    assert [r.levelno for r in caplog.records if "no prediction" in r.message] == [logging.WARNING]
    watch.keep(["odd"])
    assert list(watch.by_pool) == ["odd"]


def scraped(settings: PlannerSettings, looks: int = 30) -> dict[str, float]:
    fleet, engine = Fleet(settings), EndpointSettings(url="http://a:1", model=MODEL)
    clock = SystemClock()
    for second in range(looks):
        fleet.list_endpoints([engine], float(second))
        counters = {name: rate * second for name, rate in RATES.items()}
        gauges = {Signal.RUNNING: 8.0, Signal.WAITING: 0.0, Signal.KV_USAGE: 0.1}
        fleet.record("http://a:1", Attempt(float(second), Outcome.OK, EngineReading("v", gauges, counters, {}, (), ())))
        fleet.decide(float(second))
    collector = FleetCollector()
    collector.attach(fleet, clock)
    return {sample.name: sample.value for family in collector.collect() for sample in family.samples}


def test_the_page_has_drift_cost_and_horizon_of_a_pool_with_a_gpu_and_a_price() -> None:
    page = scraped(PlannerSettings(policy=PolicySettings(gpu="H200-SXM-141GB", usd_per_replica_hour=3.5, start_s=40)))
    assert page["tonnage_planner_seen_token_seconds"] == pytest.approx(0.02)
    assert page["tonnage_planner_prediction_drift_ratio"] == pytest.approx(
        page["tonnage_planner_seen_token_seconds"] / page["tonnage_planner_predicted_token_seconds"]
    )
    assert page["tonnage_planner_cost_usd_per_hour"] == 3.5
    assert page["tonnage_planner_start_horizon_seconds"] == 40


def test_unknown_is_nan_and_a_price_nobody_gave_is_no_series() -> None:
    page = scraped(PlannerSettings())
    assert math.isnan(page["tonnage_planner_predicted_token_seconds"])
    assert math.isnan(page["tonnage_planner_prediction_drift_ratio"])
    assert "tonnage_planner_cost_usd_per_hour" not in page
