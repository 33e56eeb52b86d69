"""The schedule holds whatever the server does, and the delay a server causes shows."""

import gc
from time import process_time

import pytest

from tests.unit.loadgen.conftest import request
from tonnage_core.slo import percentile
from tonnage_loadgen import report
from tonnage_loadgen.open_loop import OpenLoop, Progress
from tonnage_loadgen.paced_mock import Pace, PacedMock
from tonnage_loadgen.replay import ReplayOptions, adjust, replay
from tonnage_loadgen.target import parse_target


async def against(
    pace: Pace, count: int, gap_s: float, seen: list[Progress] | None = None
) -> tuple[PacedMock, dict[str, object], list[float]]:
    mock = PacedMock(pace)
    server = await mock.serve()
    try:
        port = server.sockets[0].getsockname()[1]
        options = ReplayOptions(f"http://127.0.0.1:{port}")
        requests = [request(n, at=n * gap_s) for n in range(count)]
        result = await replay(options, requests, None if seen is None else seen.append)
    finally:
        server.close()
    return mock, report.build(result), [record.ttft_s or 0.0 for record in result.records]


async def test_requests_keep_arriving_while_the_server_stalls_and_the_stall_shows_in_the_tail() -> None:
    mock, document, ttft = await against(Pace(2, 0.001, 0.001, stall=(0.3, 1.3)), 100, 0.02)
    inside = [at for at in mock.arrivals if 0.35 <= at - mock.arrivals[0] < 1.25]
    assert len(inside) >= 20, "an open loop sends through the stall"
    assert document["requests"] == {"sent": 100, "ok": 100, "errors": 0}
    tail = percentile(sorted(ttft), 99)
    assert tail is not None
    assert tail > 0.9, "a request due early in the stall waited for nearly all of it"
    assert sum(each > 0.4 for each in ttft) >= 20


async def test_latency_counts_from_the_intended_instant_even_when_the_generator_is_late() -> None:
    mock = PacedMock(Pace(1, 0.0, 0.0))
    server = await mock.serve()
    body = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"

    def slow_write(number: int) -> bytes:
        end = process_time() + (0.3 if number == 1 else 0.0)
        while process_time() < end:
            pass
        return body

    try:
        target = parse_target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        load = await OpenLoop(target, [0.0, 0.001], slow_write).run()
    finally:
        server.close()
    late = load.exchanges[1]
    assert late.dispatched is not None
    assert late.dispatched - late.intended > 0.25
    assert late.stream.times[0] - late.intended > 0.25
    assert load.lag.cpu_at(late.dispatched) - load.lag.cpu_at(late.intended) > 0.1, "it computed meanwhile"


async def test_a_burst_of_many_requests_at_one_instant_is_sent_whole() -> None:
    mock, document, _ = await against(Pace(1, 0.0, 0.0), 300, 0.0)
    assert document["requests"] == {"sent": 300, "ok": 300, "errors": 0}
    assert len(mock.arrivals) == 300


async def test_progress_is_told_and_ends_complete() -> None:
    seen: list[Progress] = []
    await against(Pace(2, 0.001, 0.001), 5, 0.1, seen)
    assert (seen[-1].total, seen[-1].sent, seen[-1].done, seen[-1].in_flight) == (5, 5, 5, 0)
    assert [each.done for each in seen] == sorted(each.done for each in seen)


async def test_the_garbage_collector_rests_during_the_load_and_works_after_it() -> None:
    during: list[bool] = []
    mock = PacedMock(Pace(1, 0.3, 0.0))
    server = await mock.serve()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        await replay(ReplayOptions(url), [request()], lambda at: during.append(gc.isenabled()))
    finally:
        server.close()
    assert during[0] is False
    assert gc.isenabled()


async def test_an_empty_trace_is_an_empty_report() -> None:
    _, document, _ = await against(Pace(), 0, 1.0)
    assert document["requests"] == {"sent": 0, "ok": 0, "errors": 0}
    assert document["slo_attainment"] is None


def test_speed_limit_and_cuts_change_the_requests_as_documented() -> None:
    requests = [request(0, prompt=600, output=50), request(1, prompt=90, output=20), request(2)]
    chosen, adjusted = adjust(requests, ReplayOptions("u", limit=2, max_input=100), max_model_len=120)
    assert [(r.input_length, r.output_length) for r in chosen] == [(100, 20), (90, 20)]
    assert (adjusted.inputs_cut, adjusted.outputs_cut) == (1, 1)
    same, _ = adjust(requests, ReplayOptions("u"), max_model_len=None)
    assert same == tuple(requests)


def test_a_prompt_beyond_the_context_is_sent_as_it_is() -> None:
    chosen, adjusted = adjust([request(prompt=600, output=5)], ReplayOptions("u"), max_model_len=500)
    assert (chosen[0].output_length, adjusted.outputs_cut) == (5, 0)


@pytest.mark.parametrize("speed", [0.5, 4.0])
async def test_speed_divides_the_arrival_times(speed: float) -> None:
    mock = PacedMock(Pace(1, 0.0, 0.0))
    server = await mock.serve()
    try:
        options = ReplayOptions(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", speed=speed)
        result = await replay(options, [request(0), request(1, at=0.2)])
    finally:
        server.close()
    assert [round(record.intended_s, 6) for record in result.records] == [0.0, 0.2 / speed]
