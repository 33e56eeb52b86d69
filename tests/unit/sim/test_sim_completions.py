"""/v1/completions of a simulated engine."""

import pytest

from tonnage_core import engine_text
from tonnage_core.traces import TraceRequest, prompt_token_ids

from .conftest import Sim, Start

PROMPT = list(range(1000, 1100))


async def test_max_tokens_come_out_when_the_end_of_turn_is_ignored(sim: Sim) -> None:
    answer = await sim.complete(PROMPT, max_tokens=7)
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(engine_text.encode(answer["choices"][0]["text"])) == 7


async def test_the_default_is_sixteen_tokens(sim: Sim) -> None:
    answer = await sim.post("/v1/completions", prompt=PROMPT, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("text", [False, True])
async def test_a_traces_input_length_is_exact(sim: Sim, text: bool) -> None:
    request = TraceRequest(0, 0.0, 1234, 5, (7, 8, 9))
    ids = prompt_token_ids(request)
    answer = await sim.complete(engine_text.decode(ids) if text else ids)
    assert answer["usage"]["prompt_tokens"] == 1234


async def test_text_and_token_prompts_share_cache_blocks(sim: Sim) -> None:
    ids = list(range(2000, 2100))
    await sim.complete(ids)
    answer = await sim.complete(engine_text.decode(ids))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


async def test_a_prompt_of_whole_blocks_computes_its_last_block_again(sim: Sim) -> None:
    ids = list(range(3000, 3064))
    await sim.complete(ids)
    answer = await sim.complete(ids)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 48


async def test_salt_and_adapter_have_caches_of_their_own(start: Start) -> None:
    sim = await start(max_loras=2, lora_modules={"lora-a": "a"})
    cached = [
        (await sim.complete(PROMPT, **how))["usage"]["prompt_tokens_details"]["cached_tokens"]
        for how in ({}, {}, {"cache_salt": "s"}, {"cache_salt": "s"}, {"model": "lora-a"}, {"model": "lora-a"})
    ]
    assert cached == [0, 96, 0, 96, 0, 96]


async def test_equal_requests_get_equal_answers_and_seeds_change_them(sim: Sim) -> None:
    texts = [(await sim.complete(PROMPT, seed=seed))["choices"][0]["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


async def test_n_samples_differ_and_the_prompt_counts_once(sim: Sim) -> None:
    answer = await sim.complete(PROMPT, n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({choice["text"] for choice in answer["choices"]}) == 3
    assert answer["usage"]["prompt_tokens"] == 100
    assert answer["usage"]["completion_tokens"] == 12


async def test_a_batch_of_prompts_has_n_choices_each(sim: Sim) -> None:
    answer = await sim.complete([PROMPT, PROMPT[:50]], n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 150


async def test_a_batch_of_texts_is_encoded_one_by_one(sim: Sim) -> None:
    answer = await sim.complete([" babab babab", "x"])
    assert answer["usage"]["prompt_tokens"] == 3


async def test_echo_repeats_the_prompt(sim: Sim) -> None:
    plain = await sim.complete(" babab", seed=3)
    echoed = await sim.complete(" babab", seed=3, echo=True)
    assert echoed["choices"][0]["text"] == " babab" + plain["choices"][0]["text"]


async def test_echo_with_no_tokens_is_the_prompt_alone(sim: Sim) -> None:
    answer = await sim.complete("abc", echo=True, max_tokens=0)
    assert answer["choices"][0]["text"] == "abc"
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_stop_string_ends_the_answer_before_it(sim: Sim) -> None:
    whole = (await sim.complete(PROMPT, max_tokens=20))["choices"][0]["text"]
    stop = whole[33:36]
    choice = (await sim.complete(PROMPT, max_tokens=20, stop=[stop]))["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def test_a_stop_string_may_stay_in_the_text(sim: Sim) -> None:
    whole = (await sim.complete(PROMPT, max_tokens=20))["choices"][0]["text"]
    stop = whole[33:36]
    asked = {"max_tokens": 20, "stop": stop, "include_stop_str_in_output": True}
    assert (await sim.complete(PROMPT, **asked))["choices"][0]["text"] == whole[: whole.index(stop) + 3]


async def test_a_stop_token_ends_the_answer(sim: Sim) -> None:
    ids = (await sim.complete(PROMPT, max_tokens=20, return_token_ids=True))["choices"][0]["token_ids"]
    answer = await sim.complete(PROMPT, max_tokens=20, stop_token_ids=[ids[5]], return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == ids[: ids.index(ids[5]) + 1]
    assert answer["choices"][0]["stop_reason"] == ids[5]


async def test_an_answer_may_end_of_its_own_accord(start: Start) -> None:
    sim = await start(output_tokens_median=10, output_tokens_sigma=0.0)
    answer = await sim.complete(PROMPT, max_tokens=1000, ignore_eos=False)
    assert answer["usage"]["completion_tokens"] == 10
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(engine_text.encode(answer["choices"][0]["text"])) == 9


async def test_min_tokens_put_the_end_off(start: Start) -> None:
    sim = await start(output_tokens_median=10, output_tokens_sigma=0.0)
    answer = await sim.complete(PROMPT, max_tokens=1000, min_tokens=40, ignore_eos=False)
    assert answer["usage"]["completion_tokens"] == 40


async def test_the_context_limits_the_output(sim: Sim) -> None:
    answer = await sim.complete([5] * 4000, max_tokens=200)
    assert answer["usage"]["completion_tokens"] == 96


async def test_truncation_keeps_the_side_asked_for(sim: Sim) -> None:
    for side, kept in (("left", [7, 8]), ("right", [5, 6])):
        answer = await sim.complete([5, 6, 7, 8], truncate_prompt_tokens=2, truncation_side=side, return_token_ids=True)
        assert answer["choices"][0]["prompt_token_ids"] == kept


async def test_log_probabilities_have_the_shape_asked_for(sim: Sim) -> None:
    logprobs = (await sim.complete(" babab", logprobs=2))["choices"][0]["logprobs"]
    assert [len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [4] * 4
    assert logprobs["text_offset"] == [0, 6, 12, 18]


async def test_a_request_without_details_has_none(start: Start) -> None:
    sim = await start(enable_prompt_tokens_details=False)
    assert (await sim.complete(PROMPT))["usage"]["prompt_tokens_details"] is None


async def test_the_request_id_comes_from_the_header(sim: Sim) -> None:
    answer = await sim.http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "mine"})
    assert answer.json()["id"] == "cmpl-mine"


async def test_embeddings_are_unit_vectors_that_depend_on_the_text(sim: Sim) -> None:
    answer = await sim.post("/v1/embeddings", input=["a", "a", "b"], dimensions=32)
    first, second, third = (row["embedding"] for row in answer["data"])
    assert first == second != third
    assert sum(x * x for x in first) == pytest.approx(1.0)
    assert answer["usage"]["prompt_tokens"] == 3
