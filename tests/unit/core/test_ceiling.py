"""The ceiling follows the engine's own cache rules."""

import pytest

from tonnage_core.prefix_index.ceiling import ceiling
from tonnage_core.traces import TraceRequest


def request(prompt: int, ids: tuple[int, ...], output: int = 1) -> TraceRequest:
    return TraceRequest(0, 0.0, prompt, output, ids)


def test_a_repeated_prompt_hits_all_but_its_last_block() -> None:
    found = ceiling([request(1024, (1, 2)), request(1024, (1, 2))], 16)
    assert found.hit_tokens == 1024 - 16
    assert found.hit_rate == pytest.approx(1008 / 2048)


def test_full_blocks_alone_are_reused() -> None:
    assert ceiling([request(1000, (1, 2)), request(1000, (1, 2))], 16).hit_tokens == 992


def test_an_id_after_another_prefix_is_another_block() -> None:
    assert ceiling([request(1024, (1, 2)), request(1024, (3, 2))], 16).hit_tokens == 0
    assert ceiling([request(1024, (1, 2)), request(1024, (1, 3))], 16).hit_tokens == 512


def test_a_block_over_the_end_of_a_trace_block_belongs_to_both() -> None:
    assert ceiling([request(1024, (1, 2)), request(1024, (1, 3))], 48).hit_tokens == 480


def test_the_least_recently_used_blocks_go_first_and_tails_before_prefixes() -> None:
    shared = [request(512, (1,)), request(512, (2,)), request(512, (1,))]
    assert ceiling(shared, 16, 64).hit_tokens == 496
    # Room for one and a half prompts: half of the first, its beginning, outlives the second.
    assert ceiling(shared, 16, 48).hit_tokens == 256
    assert ceiling(shared, 16, 32).hit_tokens == 0


def test_generated_blocks_take_room() -> None:
    crowded = [request(512, (1,), output=513), request(512, (2,)), request(512, (1,))]
    assert ceiling(crowded, 16, 96).hit_tokens == 496
    assert ceiling(crowded, 16, 64).hit_tokens == 496
    busy = [request(512, (1,)), request(512, (2,), output=513), request(512, (1,))]
    assert ceiling(busy, 16, 64).hit_tokens == 0


def test_no_requests_have_no_rate() -> None:
    assert ceiling([], 16).hit_rate is None
    with pytest.raises(ValueError, match="block_size is 0"):
        ceiling([], 0)
