"""Readers name bad lines and go on; prompts follow the block ids exactly."""

import json
from pathlib import Path

import pytest

from tonnage_core.engine_text import decode, encode
from tonnage_core.trace_prompts import POOL, Vocabulary, block_token_ids, prompt_tokens
from tonnage_core.traces import TraceError, TraceRequest, parse_trace, prompt_token_ids, truncated

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def line(**changes: object) -> bytes:
    document = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    return json.dumps(document).encode() + b"\n"


def reason(bad: bytes) -> str:
    trace = parse_trace(line() + bad + line(timestamp=9))
    assert len(trace.requests) == 2
    assert [each.number for each in trace.bad_lines] == [2]
    return trace.bad_lines[0].reason


def test_the_mooncake_sample_reads_whole() -> None:
    trace = parse_trace((SAMPLES / "mooncake_sample.jsonl").read_bytes())
    assert (len(trace.requests), trace.bad_lines) == (400, ())
    first = trace.requests[0]
    assert (first.input_length, first.output_length, first.hash_ids) == (6758, 500, tuple(range(14)))
    assert trace.requests[199].arrival_s == 72.0


def test_the_azure_sample_reads_whole_and_shares_no_block() -> None:
    trace = parse_trace((SAMPLES / "azure_sample.csv").read_bytes())
    assert (len(trace.requests), trace.bad_lines) == (400, ())
    assert trace.requests[1].arrival_s == pytest.approx(4.314579, abs=1e-6)
    ids = [each for request in trace.requests for each in request.hash_ids]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"{\n", "not JSON"),
        (b"[1, 2]\n", "a JSON object is expected, found list"),
        (b'{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n', "timestamp is nan"),
        (b"{\xff\xfe}\n", "not UTF-8"),
        (b"\x00\x00\n", "not JSON"),
        (line(timestamp=...), "timestamp is missing"),
        (line(timestamp=-1), "timestamp is -1"),
        (line(timestamp="0"), "timestamp is '0'"),
        (line(timestamp=True), "timestamp is True"),
        (line(input_length=...), "input_length is missing"),
        (line(input_length=0), "input_length is 0; a whole number from 1"),
        (line(input_length=600.0), "input_length is 600.0"),
        (line(input_length=10**30), "a whole number from 1 to 16777216"),
        (line(output_length=-3), "output_length is -3"),
        (line(output_length=None), "output_length is None"),
        (line(hash_ids=[0]), "hash_ids has 1 ids; input_length 600 needs 2"),
        (line(hash_ids="01"), "hash_ids is not a list"),
        (line(hash_ids=[0, -1]), "hash_ids holds -1"),
        (line(hash_ids=[0, 1 << 63]), "hash_ids holds 9223372036854775808"),
        (line(hash_ids=[0, 1 << 400]), "hash_ids holds a whole number of 401 bits"),
        (b'{"timestamp": 0, "input_length": ' + b"9" * 5000 + b"}\n", "not JSON"),
        (b'{"timestamp": ' + b"[" * 100_000 + b"}\n", "not JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_left_out(bad: bytes, said: str) -> None:
    assert said in reason(bad)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"x,1,1", "TIMESTAMP is 'x'"),
        (b"2023-11-16 18:15:46,1", "2 columns; the header has 3"),
        (b"2023-11-16 18:15:46,0,1", "ContextTokens is 0"),
        (b"2023-11-16 18:15:46,1,-1", "GeneratedTokens is '-1'"),
        (b"2023-11-16 18:15:46,1," + b"9" * 99, "GeneratedTokens is"),
        (b"2023-11-16 18:15:46,\xc2\xb2,1", "ContextTokens is"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_bad_azure_line_is_named_with_its_number_and_left_out(bad: bytes, said: str) -> None:
    trace = parse_trace(AZURE + b"2023-11-16 18:15:46.6805900,374,44\r\n" + bad + b"\n")
    assert len(trace.requests) == 1
    assert trace.bad_lines[0].number == 3
    assert said in trace.bad_lines[0].reason


def test_strict_stops_at_the_first_bad_line() -> None:
    with pytest.raises(TraceError, match=r"t\.jsonl: line 2: not JSON"):
        parse_trace(line() + b"{\n" + b"{{\n", name="t.jsonl", strict=True)


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"hello\n", b"\x00\xff", b"a,b,c\n1,2,3\n", AZURE])
def test_a_file_that_is_no_trace_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(TraceError, match=r"^f: "):
        parse_trace(data, name="f")


def test_a_file_of_bad_lines_alone_is_an_error_that_names_the_first() -> None:
    with pytest.raises(TraceError, match=r"line 1: output_length is 0.*no line is a request"):
        parse_trace(line(output_length=0))


def test_requests_stand_in_order_of_arrival_from_the_first_one_on() -> None:
    trace = parse_trace(line(timestamp=5000, output_length=1) + line(timestamp=2000, output_length=2))
    assert [(r.index, r.arrival_s, r.output_length) for r in trace.requests] == [(0, 0.0, 2), (1, 3.0, 1)]


def test_a_byte_order_mark_and_blank_lines_are_passed_over_and_counted_as_lines() -> None:
    trace = parse_trace(b"\xef\xbb\xbf\n" + line() + b"\r\n{\n")
    assert len(trace.requests) == 1
    assert trace.bad_lines[0].number == 4


def test_equal_block_ids_give_equal_tokens_and_unequal_ones_differ_from_the_first() -> None:
    ids = [0, 1, 2, 255, 256, 65_535]
    blocks = {each: block_token_ids(each) for each in ids}
    assert blocks == {each: block_token_ids(each) for each in ids}
    assert len({block[0] for block in blocks.values()}) == len(ids)


def test_ids_equal_modulo_the_vocabulary_differ_within_four_tokens() -> None:
    heads = {tuple(block_token_ids(7 + n * 65_536)[:4]) for n in range(1000)}
    assert len(heads) == 1000


def test_a_block_is_of_words_that_survive_a_trip_through_text() -> None:
    tokens = block_token_ids((1 << 63) - 1, 512)
    assert len(tokens) == 512
    assert encode(decode(tokens)) == tokens


def test_a_prompt_is_exactly_as_long_as_the_trace_says() -> None:
    request = TraceRequest(0, 0.0, 1025, 1, (4, 5, 6))
    tokens = prompt_token_ids(request)
    assert len(tokens) == 1025
    assert tokens[:512] == block_token_ids(4)
    assert tokens[1024:] == block_token_ids(6)[:1]


def test_a_truncated_prompt_is_the_beginning_of_the_whole_one() -> None:
    request = TraceRequest(3, 1.5, 1500, 9, (4, 5, 6))
    cut = truncated(request, 700)
    assert (cut.index, cut.arrival_s, cut.input_length, cut.output_length, cut.hash_ids) == (3, 1.5, 700, 9, (4, 5))
    assert prompt_token_ids(cut) == prompt_token_ids(request)[:700]
    assert truncated(request, 1500) is request


def test_a_small_vocabulary_still_tells_any_two_ids_apart() -> None:
    few = Vocabulary([11, 12, 13])
    blocks = {tuple(block_token_ids(n, 64, few)) for n in (0, 1, 2, 3, 9, 1 << 40, (1 << 63) - 1)}
    assert len(blocks) == 7
    assert {token for block in blocks for token in block} <= {11, 12, 13}


def test_impossible_blocks_are_refused() -> None:
    for hash_id, size in ((-1, 512), (1 << 63, 512), (0, 0), (0, POOL + 1)):
        with pytest.raises(ValueError, match="outside"):
            block_token_ids(hash_id, size)
    with pytest.raises(ValueError, match="do not hold"):
        prompt_tokens([1], 513)
    with pytest.raises(ValueError, match="vocabulary of 1"):
        Vocabulary([1])
