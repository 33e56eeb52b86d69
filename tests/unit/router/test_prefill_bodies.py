"""The bodies of the two calls of disaggregated serving."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_router.body.prefill import ASK, for_decode, for_prefill, params_of, suits

CHAT, COMPLETIONS = b"/v1/chat/completions", b"/v1/completions"


def test_the_first_call_asks_for_one_token_whole_and_for_the_kv() -> None:
    body = b'{"model":"m","messages":[],"stream":true,"max_tokens":500,"max_completion_tokens":400,"min_tokens":9,'
    body += b'"stream_options":{"include_usage":true},"seed":12345678901234567890123}'
    sent = json.loads(for_prefill(body, b'"other"'))
    assert sent == {
        "model": "other",
        "messages": [],
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "min_tokens": 0,
        "stream_options": None,
        "seed": 12345678901234567890123,
        "kv_transfer_params": json.loads(ASK),
    }


def test_what_is_not_there_is_added_once() -> None:
    sent = json.loads(for_prefill(b'{ "messages" : [] }', None))
    assert sent == {"messages": [], "stream": False, "max_tokens": 1, "kv_transfer_params": json.loads(ASK)}


texts = st.text('ab"\\\u00e9{}[],:', max_size=6)
values = (
    st.none() | st.integers() | texts | st.lists(texts, max_size=3) | st.dictionaries(texts, st.integers(), max_size=3)
)


@given(st.dictionaries(texts, values, min_size=1, max_size=4), st.dictionaries(texts, values, min_size=1, max_size=4))
def test_the_second_call_is_the_clients_body_with_one_member_more(
    body: dict[str, object], params: dict[str, object]
) -> None:
    body.pop("kv_transfer_params", None)
    raw, sent = json.dumps(body).encode(), json.dumps(params, indent=1).encode()
    made = for_decode(raw, sent)
    assert made == b'{"kv_transfer_params":' + sent + b"," + raw[1:]
    assert json.loads(made) == {"kv_transfer_params": params, **body}


@pytest.mark.parametrize(
    ("path", "body", "suited"),
    [
        (CHAT, b'{"messages":[]}', True),
        (COMPLETIONS, b'{"prompt":"x"}', True),
        (COMPLETIONS, b'{"prompt":[1,2]}', True),
        (COMPLETIONS, b'{"prompt":["a"]}', False),
        (COMPLETIONS, b'{"prompt":[ [1],[2]]}', False),
        (COMPLETIONS, b'{"prompt":"x","echo":true}', False),
        (CHAT, b'{"messages":[],"n": 1,"best_of":null}', True),
        (CHAT, b'{"messages":[],"n": 2}', False),
        (COMPLETIONS, b'{"prompt":"x","best_of":4}', False),
        (CHAT, b'{"messages":[],"prompt_logprobs":1}', False),
        (CHAT, b'{"messages":[],"kv_transfer_params":null}', False),
        (b"/v1/embeddings", b'{"input":"x"}', False),
    ],
)
def test_which_requests_can_be_taken_apart(path: bytes, body: bytes, suited: bool) -> None:
    assert suits(body, path) is suited


@pytest.mark.parametrize(
    ("answer", "params"),
    [
        (b'{"id":"1","kv_transfer_params":{"remote_block_ids":[1,2], "big": 12345678901234567890123}}', True),
        (b'{"id":"1","kv_transfer_params":null}', False),
        (b'{"id":"1","kv_transfer_params":{ }}', False),
        (b'{"id":"1"}', False),
        (b'{"id":"1","kv_trans', False),
        (b'{"kv_transfer_params":{"a":}}', False),
        (b'{"kv_transfer_params":{"a":1,}}', False),
        (b'{"kv_transfer_params":{"a":"\xff"}}', False),
        (b"oops", False),
    ],
)
def test_params_are_taken_from_the_answer_as_they_stand(answer: bytes, params: bool) -> None:
    found = params_of(answer)
    assert (found is not None) is params
    assert found is None or found in answer
