import orjson
import pytest

from tonnage_router.body.usage import BodyTap, StreamTap, Usage

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
CHUNK = b'data: {"choices":[{"delta":{"content":"usage of \\"usage\\""}}],"usage":null}\n\n'
STREAM = CHUNK * 3 + b"data: " + orjson.dumps({"choices": [], "usage": USAGE}) + b"\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_usage_is_found_wherever_the_stream_is_cut(size: int) -> None:
    tap = StreamTap()
    for start in range(0, len(STREAM), size):
        tap.feed(STREAM[start : start + size])
    assert tap.usage() == Usage(7, 3, 4)


def test_a_stream_without_usage_has_none() -> None:
    tap = StreamTap()
    tap.feed(CHUNK + b"data: [DONE]\n\n")
    assert tap.usage() is None


def test_the_last_of_continuous_usages_counts() -> None:
    tap = StreamTap()
    for count in range(1, 5):
        tap.feed(b'data: {"usage":{"prompt_tokens":7,"completion_tokens":%d}}\r\n\r\n' % count)
    assert tap.usage() == Usage(7, 4)


def test_the_responses_form_is_read() -> None:
    tap = StreamTap()
    tap.feed(b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":5,"output_tokens":2}}}\n\n')
    assert tap.usage() == Usage(5, 2)


@pytest.mark.parametrize("size", [1, 40, 10_000])
def test_the_messages_form_is_read_from_its_first_and_last_event(size: int) -> None:
    stream = (
        b'event: message_start\ndata: {"message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":4}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    tap = StreamTap()
    for start in range(0, len(stream), size):
        tap.feed(stream[start : start + size])
    assert tap.usage() == Usage(9, 4)


def test_a_json_answer_in_pieces() -> None:
    body = orjson.dumps({"choices": [], "usage": USAGE})
    tap = BodyTap()
    for start in range(0, len(body), 5):
        tap.feed(body[start : start + 5])
    assert tap.usage() == Usage(7, 3, 4)


def test_usage_behind_megabytes_of_embeddings() -> None:
    tap = BodyTap()
    for _ in range(40):
        tap.feed(b"0.123456789," * 10_000)
    tap.feed(b'],"usage": {"prompt_tokens": 9, "total_tokens": 9}}')
    assert tap.usage() == Usage(9, 0)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"not json", b'{"usage":3}', b'{"usage":{"prompt_tokens":"x"}}', b'{"usage":']
)
def test_an_answer_without_readable_usage_has_none(body: bytes) -> None:
    tap = BodyTap()
    tap.feed(body)
    assert tap.usage() is None


@pytest.mark.parametrize("size", [1, 8, 400])
def test_what_only_looks_like_usage_does_not_hide_what_was_seen(size: int) -> None:
    good = b'data: {"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\n'
    tap = StreamTap()
    stream = good + b': "usage":{}\n\ndata: {"usage":{"prompt\n\ndata: [DONE]\n\n'
    for at in range(0, len(stream), size):
        tap.feed(stream[at : at + size])
    assert tap.usage() == Usage(4, 2)


@pytest.mark.parametrize("tokens", ["-1", "1" + "0" * 400, "true", "1e3"])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("padding", [0, 20_000])
def test_a_number_that_cannot_be_a_count_is_no_usage(tokens: str, name: str, padding: int) -> None:
    usage = {"prompt_tokens": "7", "completion_tokens": "3"} | {name: tokens}
    told = ",".join(f'"{key}":{value}' for key, value in usage.items())
    tap = BodyTap()
    tap.feed(f'{{"pad":"{"x" * padding}","usage":{{{told}}}}}'.encode())
    assert tap.usage() is None


TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


@pytest.mark.parametrize(
    ("payload", "events"),
    [
        (TOKEN, 1),
        (TOKEN * 3, 3),
        (b": still there\n\n", 0),
        (b": still there\n\n" + TOKEN, 1),
        (TOKEN + b": still there\n\n", 1),
        (b"event: content_block_delta\n" + TOKEN, 1),
        (b"id: 5\n" + TOKEN + b"event: x\n" + TOKEN, 2),
    ],
)
def test_events_count_alike_in_a_piece_and_in_a_chunk(payload: bytes, events: int) -> None:
    piece, chunk, fed = StreamTap(), StreamTap(), StreamTap()
    line = b"%x\r\n" % len(payload)
    assert piece.passes(payload)
    assert chunk.passes_chunk(line + payload + b"\r\n", len(line))
    fed.feed(payload)
    assert (piece.events, chunk.events, fed.events) == (events,) * 3


@pytest.mark.parametrize("payload", [b'data: {"usage":{}}\n\n', b"data: cut", b"data: a\n\ndata: cut\n"])
def test_what_must_be_read_is_counted_once(payload: bytes) -> None:
    tap = StreamTap()
    line = b"%x\r\n" % len(payload)
    assert not tap.passes_chunk(line + payload + b"\r\n", len(line)) and not tap.passes(payload)
    tap.feed(payload)
    assert tap.events == payload.count(b"data:")
