"""A run is void when the generator itself, not the machine or the server, was the bottleneck."""

from collections.abc import Sequence

import pytest

from tonnage_core.slo import RequestRecord
from tonnage_loadgen.exchange import Exchange, Outcome
from tonnage_loadgen.loop_lag import LoopLag
from tonnage_loadgen.open_loop import Load
from tonnage_loadgen.verdict import ClientVerdict, judge


def lag_of(*samples: tuple[float, float, float]) -> LoopLag:
    """Samples of (instant, CPU seconds so far, lag)."""
    lag = LoopLag()
    for at, cpu, late in samples:
        lag.at.append(at)
        lag.cpu.append(cpu)
        lag.lag.append(late)
    return lag


def judged(lag: LoopLag, delays: Sequence[float], *, ttft: float = 0.03, outcome: str = Outcome.OK) -> ClientVerdict:
    exchanges, records = [], []
    for number, delay in enumerate(delays):
        exchange = Exchange(number, 1.0)
        exchange.dispatched = 1.0 + delay
        exchanges.append(exchange)
        records.append(
            RequestRecord(number, 10, 1.0, dispatched_s=1.0 + delay, first_s=1.0 + ttft, last_s=2.0, outcome=outcome)
        )
    return judge(Load(tuple(exchanges), lag, 0.0, 2.0, 1, 0), records)


CALM = lag_of((0.0, 0.0, 0.0), (1.0, 0.1, 0.001), (2.0, 0.2, 0.001))


def test_a_punctual_generator_is_not_bound() -> None:
    verdict = judged(CALM, [0.001] * 100)
    assert (verdict.bound, verdict.reason) == (False, None)


def test_delay_the_generator_computed_through_voids_the_run() -> None:
    verdict = judged(lag_of((0.9, 0.0, 0.0), (1.2, 0.3, 0.28)), [0.1] * 100)
    assert verdict.bound
    assert verdict.reason is not None
    assert "the generator's own work delayed requests by 100.0 ms" in verdict.reason


def test_delay_while_the_machine_ran_others_is_said_and_does_not_void_the_run() -> None:
    verdict = judged(lag_of((0.9, 0.0, 0.0), (1.2, 0.003, 0.28)), [0.1] * 100)
    assert not verdict.bound
    assert verdict.reason is not None
    assert "busy with other work" in verdict.reason


def test_work_that_is_the_lesser_part_of_a_delay_does_not_void_the_run() -> None:
    assert not judged(lag_of((0.9, 0.0, 0.0), (1.2, 0.06, 0.28)), [0.1] * 100).bound


def test_a_tenth_of_the_median_ttft_is_allowed() -> None:
    lag = lag_of((0.9, 0.0, 0.0), (1.2, 0.3, 0.09))
    assert not judged(lag, [0.1] * 100, ttft=1.5).bound
    assert judged(lag, [0.1] * 100, ttft=0.5).bound


def test_streams_read_late_void_the_run_even_if_every_request_left_in_time() -> None:
    lag = lag_of(*((n * 0.07, n * 0.069, 0.05) for n in range(40)))
    verdict = judged(lag, [0.0] * 100)
    assert verdict.bound
    assert verdict.reason is not None
    assert "event loop" in verdict.reason


def test_running_out_of_sockets_voids_the_run() -> None:
    verdict = judged(CALM, [0.0], outcome=Outcome.CLIENT_LIMIT)
    assert verdict.bound
    assert verdict.reason is not None
    assert "ulimit -n" in verdict.reason


def test_cpu_between_samples_is_linear_and_never_more_than_the_delay() -> None:
    lag = lag_of((1.0, 5.0, 0.0), (2.0, 5.6, 0.0))
    assert lag.cpu_at(1.5) == pytest.approx(5.3)
    assert (lag.cpu_at(0.0), lag.cpu_at(9.0)) == (5.0, 5.6)
    assert lag.own(1.0, 2.0) == pytest.approx(0.6)
    assert lag_of((1.0, 0.0, 0.0), (2.0, 8.0, 0.0)).own(1.0, 2.0) == pytest.approx(1.0)


def test_the_document_has_null_for_what_is_not_known() -> None:
    document = judged(LoopLag(), []).document()
    assert document["lateness_ms_p99"] is None
    assert document["bound"] is False
    assert document["cpu_s"] == 0.0
