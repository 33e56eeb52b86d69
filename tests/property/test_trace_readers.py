"""Any bytes in: requests or one error of our own, never a crash; prompts keep the trace's lengths and prefixes."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tonnage_core.prefix_index.ceiling import ceiling
from tonnage_core.trace_prompts import MAX_HASH_ID, Vocabulary, block_token_ids
from tonnage_core.traces import MAX_TOKENS, Trace, TraceError, TraceRequest, parse_trace, prompt_token_ids, truncated

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
number = st.one_of(
    st.integers(), st.integers(-2, 3000), st.floats(), st.sampled_from([1 << 63, 10**400, -(10**400), True, None])
)
values = st.one_of(
    number, st.text(max_size=8), st.lists(number, max_size=5), st.dictionaries(st.text(max_size=3), number)
)
objects = st.dictionaries(
    st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids", "other"]), values, max_size=5
)
json_lines = st.lists(objects.map(lambda each: json.dumps(each).encode()), max_size=6).map(b"\n".join)
cells = st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace"))
csv_lines = st.lists(st.lists(cells, max_size=4).map(b",".join), max_size=6).map(lambda rows: HEADER + b"\n".join(rows))
stamps = st.datetimes(timezones=st.one_of(st.none(), st.timezones())).map(lambda t: t.isoformat().encode())
csv_good = st.lists(stamps, min_size=1, max_size=4).map(lambda rows: HEADER + b"".join(t + b",9,9\n" for t in rows))


def read(data: bytes) -> Trace | None:
    try:
        return parse_trace(data)
    except TraceError as error:
        assert "\n" not in str(error)
        return None


@settings(deadline=None)
@given(st.one_of(st.binary(), st.binary().map(lambda b: b"{" + b), json_lines, csv_lines, csv_good))
@example(b"{\x00}")
@example(b'{"timestamp": 1e400}')
@example(HEADER + b"0001-01-01T00:00:00+23:59,9,9")
@example(HEADER + b"9999-12-31T23:59:59-23:59,9,9")
def test_any_bytes_are_read_without_a_crash(data: bytes) -> None:
    trace = read(data)
    if trace is None:
        return
    assert [request.index for request in trace.requests] == list(range(len(trace.requests)))
    assert trace.requests[0].arrival_s == 0.0
    for request in trace.requests:
        assert request.arrival_s >= 0.0
        assert 1 <= request.input_length <= MAX_TOKENS
        assert 1 <= request.output_length <= MAX_TOKENS
        assert len(request.hash_ids) == -(-request.input_length // request.block_tokens)


ids = st.integers(0, MAX_HASH_ID)
vocabularies = st.lists(st.integers(0, 1 << 20), min_size=2, max_size=50, unique=True).map(Vocabulary)


@settings(deadline=None)
@given(ids, ids, vocabularies)
def test_two_blocks_are_equal_exactly_when_their_ids_are(one: int, other: int, vocabulary: Vocabulary) -> None:
    for chosen in (None, vocabulary):
        same = block_token_ids(one, 64, chosen) == block_token_ids(other, 64, chosen)
        assert same == (one == other)


@st.composite
def requests(draw: st.DrawFn) -> TraceRequest:
    length = draw(st.integers(1, 2000))
    blocks = -(-length // 512)
    hash_ids = tuple(draw(st.lists(st.integers(0, 3), min_size=blocks, max_size=blocks)))
    return TraceRequest(0, 0.0, length, draw(st.integers(1, 100)), hash_ids)


@settings(deadline=None)
@given(requests(), st.integers(1, 2500))
def test_a_prompt_has_the_length_asked_for_and_truncation_keeps_its_beginning(request: TraceRequest, most: int) -> None:
    whole, cut = prompt_token_ids(request), prompt_token_ids(truncated(request, most))
    assert len(whole) == request.input_length
    assert cut == whole[:most]


@settings(deadline=None)
@given(
    st.lists(requests(), max_size=8), st.sampled_from([1, 8, 16, 48, 128]), st.one_of(st.none(), st.integers(0, 300))
)
def test_the_ceiling_equals_a_cache_of_token_prefixes(
    trace: list[TraceRequest], block_size: int, capacity: int | None
) -> None:
    """A slow model of the same cache, with the tokens themselves as keys."""
    cached: dict[tuple[int, ...] | int, None] = {}
    hits = 0
    for number, request in enumerate(trace):
        tokens = prompt_token_ids(request)
        keys: list[tuple[int, ...] | int] = [
            tuple(tokens[: block_size * (n + 1)]) for n in range(len(tokens) // block_size)
        ]
        for key in keys[: (len(tokens) - 1) // block_size]:
            if key not in cached:
                break
            hits += block_size
        written = (len(tokens) + request.output_length - 1) // block_size
        keys += [-(number * 10**6 + n) - 1 for n in range(len(keys), written)]
        for key in reversed(keys):
            cached.pop(key, None)
            cached[key] = None
        while capacity is not None and len(cached) > capacity:
            del cached[next(iter(cached))]
    assert ceiling(trace, block_size, capacity).hit_tokens == hits
