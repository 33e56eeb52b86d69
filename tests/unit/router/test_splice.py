import json

import pytest

from tonnage_router.body.splice import apply, ask_usage, set_text
from tonnage_router.body.sse import UsageStripper
from tonnage_router.errors import BadBodyError


def salted(body: bytes) -> bytes:
    return apply(body, set_text(body, "cache_salt", "s"))


def test_a_new_member_goes_first_and_every_other_byte_stays() -> None:
    body = b' { "model" : "m" ,"x":1234567890123456789012345}\n'
    assert salted(body) == b' { "cache_salt":"s","model" : "m" ,"x":1234567890123456789012345}\n'


def test_an_empty_object_gets_no_comma() -> None:
    assert salted(b"{ }") == b'{ "cache_salt":"s"}'


def test_every_duplicate_is_replaced() -> None:
    body = b'{"model":"a","x":{"model":"inner"},"model" : "b"}'
    assert apply(body, set_text(body, "model", "new")) == b'{"model":"new","x":{"model":"inner"},"model" : "new"}'


def test_a_key_written_with_escapes_is_found() -> None:
    body = b'{"\\u006dodel":"a"}'
    assert apply(body, set_text(body, "model", "b")) == b'{"\\u006dodel":"b"}'


def test_a_key_inside_a_string_or_a_nested_object_is_not_touched() -> None:
    body = b'{"messages":[{"content":"\\"model\\":\\"x\\" } ] \\\\"}],"model":"a"}'
    assert apply(body, set_text(body, "model", "b")) == body.replace(b'"a"', b'"b"')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"a":1}', b'{"stream_options":{"include_usage":true},"a":1}'),
        (b'{"stream_options":null}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":{}}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":{"x":[1,{}]}}', b'{"stream_options":{"include_usage":true,"x":[1,{}]}}'),
        (b'{"stream_options":{"include_usage":false}}', b'{"stream_options":{"include_usage":true}}'),
    ],
)
def test_usage_is_asked_for_in_every_form(before: bytes, after: bytes) -> None:
    assert apply(before, ask_usage(before)) == after


@pytest.mark.parametrize("body", [b"[]", b"", b'{"a"', b'{"a":', b"{a:1}"])
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadBodyError):
        salted(body)


def test_a_long_string_of_escapes_is_skipped() -> None:
    body = json.dumps({"x": '\\"' * 200_000, "model": "a"}).encode()
    assert apply(body, set_text(body, "model", "b")).endswith(b'"model": "b"}')


CHUNK = b'data: {"choices":[{"delta":{"content":"a \\"usage\\""}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 2, 3, 11, 50, 1000])
def test_the_injected_usage_event_is_taken_out_wherever_it_is_cut(size: int) -> None:
    stream, stripper, out = CHUNK * 2 + USAGE + DONE, UsageStripper(), b""
    for start in range(0, len(stream), size):
        out += stripper.feed(stream[start : start + size])
    assert out + stripper.end() == CHUNK * 2 + DONE


def test_whole_events_pass_at_once_and_a_last_cut_event_is_not_lost() -> None:
    stripper = UsageStripper()
    assert stripper.feed(CHUNK) == CHUNK
    assert stripper.feed(CHUNK + b"data: {") == CHUNK
    assert stripper.end() == b"data: {"
