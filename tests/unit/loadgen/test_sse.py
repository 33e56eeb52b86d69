"""Streams read the same however they are written and cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.loadgen.conftest import DONE, token, usage, whole_stream
from tonnage_loadgen.sse import CompletionStream


def fed(data: bytes, cuts: list[int] | None = None) -> CompletionStream:
    stream = CompletionStream()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        stream.feed(data[start:end], float(number))
    stream.end(99.0)
    return stream


def shape(stream: CompletionStream) -> tuple[int, object, bool, bytes | None]:
    return len(stream.times), stream.usage(), stream.done, stream.error


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_any_cut_and_any_line_end_read_the_same(newline: bytes, cuts: list[int]) -> None:
    data = (b": hello\n\nevent: x\n" + whole_stream(4, prompt=17)).replace(b"\n", newline)
    assert shape(fed(data, cuts)) == shape(fed(whole_stream(4, prompt=17)))


@settings(deadline=None)
@given(st.binary(), st.lists(st.integers(0, 100), max_size=8))
def test_any_bytes_are_read_without_a_crash(data: bytes, cuts: list[int]) -> None:
    stream = fed(b"data: " + data, cuts)
    stream.drop_empty_end()
    stream.usage()
    stream.finish_reason()


@settings(deadline=None)
@given(st.text())
def test_generated_text_cannot_pass_for_framing(text: str) -> None:
    stream = fed(token(text + '\n\ndata: [DONE]\n\n"choices":[{') + usage(1, 1) + DONE)
    assert (len(stream.times), stream.done) == (1, True)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices": [{"index": 0, "text": " a", "finish_reason": null}]}\n\n',
        b'data:{"choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n',
        b'id: 7\nevent: message\ndata: {"choices":[\ndata: {"index":0,"text":" a"}]}\n\n',
    ],
)
def test_other_spellings_of_a_token_event_count(event: bytes) -> None:
    assert len(fed(event * 3).times) == 3


def test_a_last_event_that_only_gives_the_reason_is_no_token() -> None:
    stream = fed(token() + token() + token("", "stop") + DONE)
    assert len(stream.times) == 3
    stream.drop_empty_end()
    assert (len(stream.times), stream.finish_reason()) == (2, "stop")


def test_usage_in_the_last_token_event_is_found() -> None:
    stream = fed(b'data: {"choices":[{"text":"a","finish_reason":"length"}],"usage":{"completion_tokens":1}}\n\n')
    assert stream.usage() == {"completion_tokens": 1}


@pytest.mark.parametrize(
    "event",
    [b'data: {"error": {"message": "x"}}\n\n', b'data: {"object":"error","message":"x"}\n\n', b"data: {oops\n\n"],
)
def test_error_events_and_damage_are_errors(event: bytes) -> None:
    assert fed(token() + event).error is not None


def test_an_event_without_its_blank_line_counts_at_the_end() -> None:
    assert fed(token() + b"data: [DONE]").done
