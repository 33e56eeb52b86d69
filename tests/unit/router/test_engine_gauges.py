from tonnage_router.engine_metrics import parse

PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters="a,b"} 1.8e9
process_start_time_seconds 1.795e9
"""


def test_ranks_are_summed_and_averaged() -> None:
    gauges = parse(PAGE)
    assert (gauges.running, gauges.waiting, gauges.kv_utilisation, gauges.kv_tokens) == (5, 4, 0.5, 16000)
    assert gauges.started_at == 1.795e9


def test_the_newest_lora_series_counts_and_both_sets_are_one() -> None:
    gauges = parse(PAGE)
    assert gauges.max_loras == 4
    assert gauges.running_loras == frozenset({"a", "b"})


def test_what_is_absent_or_no_number_is_unknown_not_zero() -> None:
    gauges = parse(b"vllm:num_requests_waiting nonsense\nvllm:kv_cache_usage_perc{x} e-+\n")
    assert (gauges.waiting, gauges.kv_utilisation, gauges.kv_tokens, gauges.max_loras) == (None, None, None, None)


def test_series_without_labels_say_nothing_of_adapters_or_capacity() -> None:
    gauges = parse(b"vllm:lora_requests_info 1.8e9\nvllm:cache_config_info 1.0\n" + PAGE)
    assert (gauges.max_loras, gauges.kv_tokens) == (4, 16000)
    assert parse(b"vllm:lora_requests_info 1.8e9\n").running_loras is None


def test_sglang_names_are_read() -> None:
    gauges = parse(b'sglang:token_usage{model_name="m"} 0.5\nsglang:num_queue_reqs{model_name="m"} 2\n')
    assert (gauges.kv_utilisation, gauges.waiting) == (0.5, 2)
