"""Prompts written fast equal prompts written slowly."""

import orjson
import pytest

from tests.unit.loadgen.conftest import request
from tonnage_core.engine_text import decode
from tonnage_core.trace_prompts import Vocabulary
from tonnage_core.traces import TraceRequest, prompt_token_ids
from tonnage_loadgen.prompt_bytes import RequestFields, RequestTemplate, TextPrompts, TokenPrompts
from tonnage_loadgen.target import parse_target

REQUESTS = [
    request(prompt=1),
    request(prompt=3, first_id=70_000),
    request(prompt=512),
    request(prompt=1300, first_id=(1 << 63) - 4),
]


@pytest.mark.parametrize("each", REQUESTS)
def test_text_is_the_text_of_the_prompts_tokens(each: TraceRequest) -> None:
    assert orjson.loads(TextPrompts()(each)) == decode(prompt_token_ids(each))


@pytest.mark.parametrize("each", REQUESTS)
@pytest.mark.parametrize("vocabulary", [None, Vocabulary([5, 99, 1234, 70_000])])
def test_token_ids_are_the_prompts_tokens(each: TraceRequest, vocabulary: Vocabulary | None) -> None:
    assert orjson.loads(TokenPrompts(vocabulary)(each)) == prompt_token_ids(each, vocabulary)


def test_text_for_another_tokenizer_has_fewer_words_and_keeps_shared_prefixes() -> None:
    write = TextPrompts(1 / 6)
    one = orjson.loads(write(TraceRequest(0, 0.0, 1024, 1, (1, 2))))
    other = orjson.loads(write(TraceRequest(0, 0.0, 1200, 1, (1, 3, 4))))
    assert one.count(" ") == 2 * (512 // 6)
    assert one[: 6 * 85] == other[: 6 * 85]
    assert one[6 * 85 : 6 * 86] != other[6 * 85 : 6 * 86]


def test_the_head_carries_length_headers_and_request_id() -> None:
    fields = RequestFields('m"x', headers=(("authorization", "k"),))
    template = RequestTemplate(parse_target("http://[::1]/p/v1"), TextPrompts(), fields)
    head, _, body = template.write(request(7)).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /p/v1/completions HTTP/1.1"
    assert {b"host: [::1]:80", b"authorization: k", b"x-request-id: tonnage-7"} < set(lines)
    assert b"content-length: %d" % len(body) in lines
    assert orjson.loads(body)["model"] == 'm"x'
