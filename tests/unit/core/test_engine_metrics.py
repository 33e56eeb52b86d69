"""Engine metric names across versions, and what stays unknown."""

import pytest

from tonnage_core.autoscaling.engine_metrics import WANTED, EngineReading, NoEngineMetricsError, Signal, read_engine
from tonnage_core.autoscaling.exposition import parse


def read(*lines: str) -> EngineReading:
    return read_engine(parse("\n".join(lines) + "\n", WANTED))


def test_vllm_0_9_sends_both_cache_names_and_is_counted_once() -> None:
    reading = read(
        "vllm:num_requests_running 2", "vllm:num_requests_waiting 1",
        "vllm:gpu_cache_usage_perc 0.4", "vllm:kv_cache_usage_perc 0.5",
    )  # fmt: skip
    assert reading.gauges == {Signal.RUNNING: 2, Signal.WAITING: 1, Signal.KV_USAGE: 0.5}
    assert reading.names[Signal.KV_USAGE] == "vllm:kv_cache_usage_perc"
    assert reading.missing == ()


def test_an_old_vllm_is_read_by_its_old_cache_name() -> None:
    reading = read("vllm:num_requests_running 2", "vllm:num_requests_waiting 1", "vllm:gpu_cache_usage_perc 0.4")
    assert reading.gauges[Signal.KV_USAGE] == 0.4
    assert reading.names[Signal.KV_USAGE] == "vllm:gpu_cache_usage_perc"


def test_old_and_new_prefix_counters_are_never_added_up() -> None:
    both = read("vllm:prefix_cache_hits_total 10", "vllm:gpu_prefix_cache_hits_total 10")
    assert both.counters["prefix_hits"] == 10
    assert read("vllm:gpu_prefix_cache_hits_total 7").counters["prefix_hits"] == 7


def test_data_parallel_ranks_add_requests_and_average_cache_shares() -> None:
    reading = read(
        'vllm:num_requests_running{engine="0"} 2', 'vllm:num_requests_running{engine="1"} 4',
        'vllm:num_requests_waiting{engine="0"} 0', 'vllm:num_requests_waiting{engine="1"} 3',
        'vllm:kv_cache_usage_perc{engine="0"} 0.2', 'vllm:kv_cache_usage_perc{engine="1"} 0.6',
    )  # fmt: skip
    assert reading.gauges == {Signal.RUNNING: 6, Signal.WAITING: 3, Signal.KV_USAGE: pytest.approx(0.4)}


def test_waiting_by_reason_stands_in_when_the_sum_is_not_sent() -> None:
    reading = read(
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 3',
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 2',
    )
    assert reading.gauges[Signal.WAITING] == 5


def test_sglang_tensor_parallel_ranks_are_the_same_requests() -> None:
    reading = read(
        'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 5', 'sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 5',
        'sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 1', "sglang:num_queue_reqs 2", "sglang:token_usage 0.3",
    )  # fmt: skip
    assert reading.engine == "sglang"
    assert reading.gauges == {Signal.RUNNING: 6, Signal.WAITING: 2, Signal.KV_USAGE: 0.3}


def test_an_older_tensorrt_llm_has_no_queue_and_says_so() -> None:
    reading = read("trtllm_kv_cache_utilization 0.7", "trtllm_request_success_total 9")
    assert reading.gauges == {Signal.KV_USAGE: 0.7, Signal.RUNNING: None, Signal.WAITING: None}
    assert reading.never_sent == (Signal.WAITING, Signal.RUNNING)
    assert reading.missing == ()


def test_a_newer_tensorrt_llm_sends_its_queue() -> None:
    reading = read(
        "trtllm_kv_cache_utilization 0.7", "trtllm_num_requests_running 4", "trtllm_num_requests_waiting NaN"
    )
    assert reading.gauges[Signal.RUNNING] == 4
    assert (reading.never_sent, reading.missing) == ((), (Signal.WAITING,))


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1.5"])
def test_a_cache_share_that_cannot_be_is_unknown(value: str) -> None:
    reading = read("vllm:num_requests_running 0", "vllm:num_requests_waiting 0", f"vllm:kv_cache_usage_perc {value}")
    assert reading.gauges[Signal.KV_USAGE] is None
    assert reading.missing == (Signal.KV_USAGE,)


@pytest.mark.parametrize("order", [("NaN", "4"), ("4", "NaN")])
def test_one_unknown_rank_leaves_the_sum_unknown(order: tuple[str, str]) -> None:
    lines = [f'sglang:num_running_reqs{{tp_rank="{rank}"}} {value}' for rank, value in enumerate(order)]
    assert read(*lines).gauges[Signal.RUNNING] is None


def test_metrics_of_no_engine_name_the_likely_cause() -> None:
    with pytest.raises(NoEngineMetricsError, match="--enable-metrics"):
        read("# TYPE go_goroutines gauge", "go_goroutines 7")


def test_an_engine_is_known_by_its_families_before_it_served_anything() -> None:
    reading = read("# TYPE vllm:num_requests_running gauge")
    assert reading.engine == "vllm"
    assert set(reading.missing) == set(Signal)
