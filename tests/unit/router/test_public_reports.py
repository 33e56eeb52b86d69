"""Each public report on a request router that applies to this one, and the test that fails if it comes back."""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
SCHEDULER = "unit/core_scheduling/test_scheduler.py"
HOT = "unit/core_scheduling/test_hot_spots.py"
HASH = "unit/core_prefix_index/test_block_hash.py"
SHAPES = "unit/router/test_body_shapes.py"
BREAKER = "unit/core_flow_control/test_breaker.py"
BYTES, FAIL, REFUSE, LORA, TENANTS, QUEUE, DISCOVERY, WHOLE = (
    f"integration/router/test_router_{name}.py"
    for name in ("bytes", "failures", "refusals", "lora", "tenants", "queue", "discovery", "reports")
)
EVENTS = "unit/core_prefix_index/test_kv_events.py"
DISAGGREGATION = "integration/router/test_router_disaggregation.py"
REPORTS = {
    "production-stack#957": (SCHEDULER, "a_shared_system_prompt_does_not_beat_load"),
    "production-stack#1073": (HOT, "near_ties_are_broken_at_random"),
    "production-stack#1035": (HOT, "the_first_holder_of_a_prefix_loses_it_when_busy"),
    "sglang#14305": (HOT, "a_cold_prompt_goes_to_the_least_loaded_not_to_the_least_used_or_emptiest"),
    "sglang#27547": (HOT, "a_cold_burst_during_slow_prefill_is_spread_before_any_answer_starts"),
    "aibrix#2422": (SCHEDULER, "a_burst_of_equal_prompts_counts_each_choice_at_once"),
    "vllm-router#215": (FAIL, "a_thousand_aborts_leave_every_counter_at_exactly_zero"),
    "aibrix#1246": (WHOLE, "time_outs_errors_and_failing_closes_leave_no_count"),
    "vllm-router#254": (HOT, "an_unhealthy_idle_endpoint_changes_nothing"),
    "GIE#2561": (HOT, "a_short_prompt_that_is_wholly_cached_makes_no_hot_spot"),
    "aibrix#917": (HASH, "a_block_in_the_middle_hashes_by_its_parent"),
    "prime-rl#3255": (SCHEDULER, "a_session_stays_until_its_home_is_overloaded"),
    "prime-rl#2822": (WHOLE, "request_ids_never_scatter_a_conversation"),
    "vllm-router overhead notes, user": (SHAPES, "the_word_user_inside_a_prompt_is_no_session"),
    "vllm-router overhead notes, ids": (SHAPES, "token_ids_count_exactly_and_hash_by_value"),
    "vllm-router cache_aware sessions": (WHOLE, "sessions_of_like_names_are_different_sessions"),
    "production-stack#331": (WHOLE, "an_adapter_loaded_behind_the_routers_back_is_routable_and_gone_again"),
    "llm-d-router#2605": (WHOLE, "adapters_in_flight_are_not_taken_for_adapters_resident"),
    "vllm#44701": (HASH, "an_adapter_and_a_salt_of_one_name_give_different_seeds"),
    "llm-d-router#1494": (LORA, "an_adapter_and_its_base_never_share_prefixes"),
    "dynamo#8197": (TENANTS, "isolated_tenants_never_share_prefixes"),
    "kthena#1077": (LORA, "known_adapters_are_listed_with_their_parent_before_they_are_loaded"),
    "sglang#12745": (WHOLE, "a_model_name_with_a_colon_is_an_exact_name"),
    "production-stack#389": (TENANTS, "an_alias_is_rewritten_upstream"),
    "production-stack#1091": (DISCOVERY, "endpoints_join_and_leave_with_the_file_and_streams_end"),
    "production-stack#656": (DISCOVERY, "an_address_that_changes_its_spec_starts_without_prefixes"),
    "production-stack#601": ("integration/router/test_router_admin.py", "a_drained_endpoint_gets_nothing"),
    "production-stack#749": (FAIL, "a_silent_engine_times_out_and_another_answers"),
    "sglang#25811": (WHOLE, "too_long_prompts_do_not_take_the_fleet_down"),
    "sglang#39464": (FAIL, "back_pressure_everywhere_is_passed_on_with_its_retry_after"),
    "sglang#31206": (WHOLE, "a_half_open_breaker_ends_in_a_decision_under_many_requests"),
    "sglang#31206, alone": (BREAKER, "a_probe_that_never_ends_loses_its_place"),
    "sglang#15611": (FAIL, "an_unknown_model_is_404_and_a_known_one_without_endpoint_503"),
    "llm-d-router#2047": (QUEUE, "what_waits_too_long_is_429_when_endpoints_exist"),
    "vllm-router#281": (TENANTS, "over_the_rate_is_429_with_a_true_retry_after"),
    "production-stack#634": (FAIL, "a_client_that_leaves_while_waiting_frees_the_engine"),
    "smg#2136": (FAIL, "a_client_that_leaves_while_waiting_frees_the_engine"),
    "GIE#1626": ("unit/router/test_usage_taps.py", "usage_is_found_wherever_the_stream_is_cut"),
    "open-webui#29628": (FAIL, "an_engine_that_dies_in_a_stream_gives_an_error_event_and_no_done"),
    "sglang#27523": (WHOLE, "an_engines_error_keeps_its_length_and_every_byte"),
    "sglang#33331": (BYTES, "end_to_end_headers_pass_and_hop_by_hop_ones_do_not"),
    "production-stack#827": (BYTES, "a_compressed_answer_keeps_its_bytes_and_its_encoding"),
    "vllm-router#161": (BYTES, "a_chat_body_reaches_the_engine_byte_for_byte"),
    "vllm-router kv_aware review": (BYTES, "every_prompt_shape_reaches_the_engine"),
    "sglang#38714": (BYTES, "a_40_mib_body_passes_unchanged"),
    "sglang#38735": (REFUSE, "a_body_over_the_limit_is_413_before_it_is_sent"),
    "GIE#2988": (REFUSE, "total_buffered_bytes_are_bounded"),
    "production-stack#1017": (REFUSE, "a_body_that_cannot_be_routed_is_400_in_openai_form"),
    "litellm#22761": (SHAPES, "odd_content_is_read_without_complaint"),
    "litellm#26102": (BYTES, "each_piece_of_a_stream_is_passed_on_at_once"),
    "dynamo#10774": (HOT, "prompts_that_never_repeat_leave_memory_flat"),
    "litellm#13546": (SHAPES, "two_images_differ_and_a_large_one_is_not_copied"),
    "GIE#2699": ("integration/router/test_router_ranks.py", "ranks_are_chosen_by_their_own_caches"),
    "GIE#2391": (DISAGGREGATION, "the_endpoint_that_computed_the_prompt_is_credited_with_it"),
    "llm-d-router#2927": (EVENTS, "an_adapter_and_its_base_share_nothing"),
    "litellm#34836": (WHOLE, "an_endpoint_that_refuses_connections_is_out_at_the_next_choice"),
    "production-stack#448": (WHOLE, "health_answers_while_a_thousand_requests_wait"),
    "sglang#26486": (DISAGGREGATION, "several_samples_of_a_prompt_are_not_taken_apart"),
    "smg#1789": (SCHEDULER, "a_large_fleet_is_scored_on_a_shortlist_that_holds_the_prefix_holder"),
}


@pytest.mark.parametrize("report", REPORTS)
def test_the_report_has_its_test(report: str) -> None:
    file, name = REPORTS[report]
    assert f"def test_{name}" in (TESTS / file).read_text()
