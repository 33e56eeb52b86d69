"""What an endpoint's past scrapes are worth now."""

import pytest

from tonnage_core.autoscaling.engine_metrics import EngineReading, Signal
from tonnage_core.autoscaling.observation import (
    Attempt,
    Knowledge,
    Observation,
    Outcome,
    Track,
    advance,
    counter_rates,
    observe,
)


def make_reading(**counters: float | None) -> EngineReading:
    gauges: dict[Signal, float | None] = {Signal.RUNNING: 1.0, Signal.WAITING: 0.0, Signal.KV_USAGE: 0.1}
    return EngineReading("vllm", gauges, counters, {}, (), ())


def seen(track: Track, now_s: float) -> Observation:
    return observe(track, now_s, stale_after_s=10, start_grace_s=60)


def test_an_endpoint_there_from_the_start_is_unknown_until_it_is_read() -> None:
    track = Track("u", "p", listed_at_s=0)
    assert seen(track, 5).knowledge is Knowledge.UNKNOWN
    assert seen(track, 5).value(Signal.RUNNING) is None
    assert seen(track, 5).unknown_for_s == 5


def test_an_endpoint_that_joins_is_pending_for_its_start() -> None:
    track = Track("u", "p", listed_at_s=0, joined=True)
    assert seen(track, 60).knowledge is Knowledge.PENDING
    assert seen(track, 61).knowledge is Knowledge.STUCK
    answering = advance(track, Attempt(1, Outcome.HTTP_ERROR, detail="HTTP status 404"))
    assert seen(answering, 61).knowledge is Knowledge.UNKNOWN, "it is up, and may well serve"


def test_a_reading_ages_from_fresh_to_stale_and_is_then_no_longer_used() -> None:
    track = advance(Track("u", "p", listed_at_s=0), Attempt(1, Outcome.OK, make_reading()))
    track = advance(track, Attempt(3, Outcome.TIMEOUT, detail="no complete answer in 1 s"))
    assert seen(track, 11).value(Signal.RUNNING) == 1.0
    stale = seen(track, 11.1)
    assert stale.knowledge is Knowledge.STALE
    assert stale.value(Signal.RUNNING) is None
    assert stale.reason == "timeout: no complete answer in 1 s"
    assert stale.age_s == pytest.approx(10.1)


def test_counters_give_rates_and_a_reset_counts_from_zero() -> None:
    track = Track("u", "p", listed_at_s=0)
    for at, tokens in ((0.0, 100.0), (2.0, 300.0)):
        track = advance(track, Attempt(at, Outcome.OK, make_reading(tokens=tokens)))
    assert track.rates_per_s == {"tokens": 100.0}
    track = advance(track, Attempt(4, Outcome.OK, make_reading(tokens=50.0)))
    assert track.rates_per_s == {"tokens": 25.0}
    assert track.restarts == 1


def test_rates_span_a_failed_scrape() -> None:
    track = advance(Track("u", "p", listed_at_s=0), Attempt(0, Outcome.OK, make_reading(tokens=0.0)))
    track = advance(track, Attempt(2, Outcome.UNPARSABLE))
    assert track.failures == 1
    track = advance(track, Attempt(4, Outcome.OK, make_reading(tokens=8.0)))
    assert track.failures == 0
    assert track.rates_per_s == {"tokens": 2.0}


def test_a_counter_unknown_at_either_end_has_no_rate() -> None:
    rates, reset = counter_rates({"a": None, "b": 1.0}, {"a": 2.0, "b": None, "c": 1.0}, 1.0)
    assert rates == {"a": None, "b": None, "c": None}
    assert reset is False
