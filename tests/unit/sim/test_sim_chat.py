"""/v1/chat/completions of a simulated engine."""

from tonnage_core import engine_text
from tonnage_core.engine_text import decode

from .conftest import Sim, Start

QUESTION = decode(list(range(5000, 5100)))


async def test_a_second_turn_finds_the_first_one_and_its_answer_in_the_cache(sim: Sim) -> None:
    first = await sim.chat(QUESTION, max_tokens=64, ignore_eos=True)
    answer = first["choices"][0]["message"]["content"]
    second = await sim.chat(QUESTION, answer, " babab", max_tokens=4)
    known = first["usage"]["prompt_tokens"] + 64 - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16


async def test_an_answer_that_ended_itself_is_found_with_its_end_of_turn(start: Start) -> None:
    sim = await start(output_tokens_median=76, output_tokens_sigma=0.0, block_size=8)
    first = await sim.chat(QUESTION)
    assert first["choices"][0]["finish_reason"] == "stop"
    assert first["usage"]["completion_tokens"] == 76
    answer = first["choices"][0]["message"]["content"]
    second = await sim.chat(QUESTION, answer, " babab", max_tokens=4)
    known = first["usage"]["prompt_tokens"] + 76 - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 8 * 8


async def test_tokenize_counts_what_a_chat_is_charged(sim: Sim) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": QUESTION}]
    counted = await sim.post("/tokenize", messages=messages)
    charged = await sim.post("/v1/chat/completions", messages=messages, max_tokens=1)
    assert counted["count"] == charged["usage"]["prompt_tokens"]


async def test_detokenize_undoes_tokenize(sim: Sim) -> None:
    tokens = (await sim.post("/tokenize", prompt="Grüße babab"))["tokens"]
    assert (await sim.post("/detokenize", tokens=tokens))["prompt"] == "Grüße babab"


async def test_max_completion_tokens_win(sim: Sim) -> None:
    answer = await sim.chat("hi", max_tokens=9, max_completion_tokens=3, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 3


async def test_without_a_limit_the_context_is_the_limit(sim: Sim) -> None:
    answer = await sim.chat("hi", ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 4096


async def test_parts_and_unknown_roles_are_text(sim: Sim) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "wizard", "content": parts}]
    answer = await sim.post("/v1/chat/completions", messages=messages, max_tokens=1, return_prompt_text=True)
    assert answer["prompt_text"] == "<|system|>wizard\na\nb<|end|><|assistant|>"


async def test_a_final_message_can_be_continued(sim: Sim) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": " babab"}]
    how = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    answer = await sim.post("/v1/chat/completions", messages=messages, max_tokens=1, **how)
    assert answer["prompt_token_ids"][-1] == engine_text.encode(" babab")[0]


async def test_created_cache_tokens_are_the_full_blocks_computed(sim: Sim) -> None:
    first = await sim.chat(QUESTION, max_tokens=1)
    again = await sim.chat(QUESTION, max_tokens=1)
    assert first["usage"]["prompt_tokens_details"]["created_cache_tokens"] == 96
    assert again["usage"]["prompt_tokens_details"]["created_cache_tokens"] == 0
