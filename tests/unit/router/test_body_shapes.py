import struct
from typing import Any

import orjson
import pytest

from tonnage_router.body.facts import BodyFacts
from tonnage_router.body.shapes import PROMPTS, facts, parse
from tonnage_router.errors import BadBodyError

CHAT, COMPLETIONS = b"/v1/chat/completions", b"/v1/completions"


def read(document: dict[str, Any], path: bytes = CHAT) -> BodyFacts:
    return facts(parse(orjson.dumps(document)), PROMPTS[path])


def chat(*messages: Any, **fields: Any) -> bytes:
    return read({"model": "m", "messages": list(messages), **fields}).prompt


def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter() -> None:
    first = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}
    assert chat(*first, {"role": "assistant", "content": "hi"}).startswith(chat(*first))


def test_field_order_does_not_change_the_key() -> None:
    assert chat({"role": "user", "content": "x"}) == chat({"content": "x", "role": "user"})


def test_text_in_another_role_differs() -> None:
    assert chat({"role": "user", "content": "x"}) != chat({"role": "system", "content": "x"})


def test_a_string_and_one_text_part_are_the_same_prompt() -> None:
    assert chat({"role": "user", "content": "x"}) == chat({"role": "user", "content": [{"type": "text", "text": "x"}]})


def test_tools_come_before_the_messages() -> None:
    tool = [{"type": "function", "function": {"name": "f"}}]
    assert chat({"role": "user", "content": "x"}, tools=tool).startswith(orjson.dumps(tool))


def test_tool_calls_with_null_content_differ_by_their_arguments() -> None:
    def call(arguments: str) -> bytes:
        calls = [{"id": "1", "function": {"name": "f", "arguments": arguments}}]
        return chat({"role": "assistant", "content": None, "tool_calls": calls})

    assert call("1") != call("2")


def test_two_images_differ_and_a_large_one_is_not_copied() -> None:
    def image(data: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return chat({"role": "user", "content": [{"type": "text", "text": "what?"}, part]})

    large = "A" * 1_000_000
    assert image(large) != image(large[:-1] + "B")
    assert image(large) != image(large + "A")
    assert len(image(large)) < 1000


@pytest.mark.parametrize("content", [None, 7, [], [None], [{"type": "text", "text": None}], {"a": 1}, [[1]], [{}]])
def test_odd_content_is_read_without_complaint(content: Any) -> None:
    assert b"user" in chat({"role": "user", "content": content})


@pytest.mark.parametrize("messages", [None, "x", [None], ["x"], [{}], {"role": "user"}])
def test_odd_messages_are_the_engines_to_refuse(messages: Any) -> None:
    assert read({"model": "m", "messages": messages}).model == "m"


def test_the_word_user_inside_a_prompt_is_no_session() -> None:
    assert read({"model": "m", "messages": [{"role": "user", "content": '"user": "bob"'}]}).session is None
    assert read({"model": "m", "user": "bob"}).session == "bob"


def test_token_ids_count_exactly_and_hash_by_value() -> None:
    one, two = (read({"model": "m", "prompt": ids}, COMPLETIONS) for ids in ([1, 2, 3], [1, 2, 4]))
    assert one.tokens == two.tokens == 3
    assert one.prompt == struct.pack("<3I", 1, 2, 3) != two.prompt


def test_batches_are_keyed_by_their_members_in_order() -> None:
    assert read({"prompt": ["ab", "cd"]}, COMPLETIONS).prompt == b"abcd"
    assert read({"prompt": [[1], [2, 3]]}, COMPLETIONS).tokens == 3


def test_responses_input_as_text_or_items_and_anthropic_system() -> None:
    text = read({"input": "hi", "instructions": "be brief"}, b"/v1/responses").prompt
    items = read({"input": [{"role": "user", "content": "hi"}], "instructions": "be brief"}, b"/v1/responses").prompt
    assert text == items
    claude = read(
        {"system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "hi"}]}, b"/v1/messages"
    )
    assert b"s" in claude.prompt and b"hi" in claude.prompt


def test_limits_samples_salt_and_usage_option_are_read() -> None:
    found = read({"max_completion_tokens": 5, "n": 3, "cache_salt": "s", "stream_options": {"include_usage": True}})
    assert (found.max_tokens, found.samples, found.salt, found.include_usage) == (5, 3, "s", True)
    odd = read({"max_tokens": -1, "n": "x", "cache_salt": 1, "stream_options": []})
    assert (odd.max_tokens, odd.samples, odd.salt, odd.include_usage) == (None, 1, None, False)


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [("a", 2), ([1, 2, 3], 2), (["a"], 2), (["a", "b", "c"], 6), ([[1], [2]], 4), ([], 2), (["a"] * 20_000, 1 << 14)],
)
def test_each_prompt_of_a_batch_is_answered_n_times(prompt: Any, answers: int) -> None:
    assert read({"model": "m", "prompt": prompt, "n": 2}, COMPLETIONS).samples == answers


@pytest.mark.parametrize("path", [b"/v1/embeddings", b"/v2/rerank", b"/score", b"/classify", b"/tokenize"])
def test_nothing_is_generated_where_no_answer_is(path: bytes) -> None:
    assert read({"model": "m", "input": ["a", "b"]}, path).samples == 0


@pytest.mark.parametrize("digits", [8, 18, 400])
def test_an_answer_asked_longer_than_any_counts_as_long_as_one_may_be(digits: int) -> None:
    body = b'{"model":"m","messages":[],"t":NaN,"max_tokens":%b,"n":%b}' % (b"9" * digits, b"9" * digits)
    found = facts(parse(body), PROMPTS[CHAT])
    assert (found.max_tokens, found.samples) == (1 << 20, 1 << 14)


def test_lone_surrogates_huge_numbers_and_nan_are_taken() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}],"seed":1234567890123456789012345,"t":NaN}'
    assert facts(parse(body), PROMPTS[CHAT]).prompt


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b"[1]", "an array"),
        (b"null", "null"),
        (b'"x"', "a string"),
        (b"{", "not valid"),
        (b"\xff", "valid"),
    ],
)
def test_what_is_no_json_object_is_named(body: bytes, word: str) -> None:
    with pytest.raises(BadBodyError, match=word):
        parse(body)
