"""Splices against what the parsed document says, over any JSON object in any spelling."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_router.body.shapes import PROMPTS, facts, parse
from tonnage_router.body.splice import apply, ask_usage, set_text
from tonnage_router.body.sse import UsageStripper
from tonnage_router.body.usage import StreamTap
from tonnage_router.errors import BadBodyError

NAMES = st.sampled_from(["model", "stream_options", "include_usage", "cache_salt", "messages", "prompt"]) | st.text(
    max_size=5
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
CODECS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"]
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=6)
SPELLINGS = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 0, 2]),
        "separators": st.sampled_from([None, (",", ":")]),
    }
)


@settings(deadline=None, max_examples=150)
@given(OBJECTS, SPELLINGS, st.text(max_size=10))
def test_setting_a_text_changes_that_member_alone(
    document: dict[str, Any], spelling: dict[str, Any], value: str
) -> None:
    body = json.dumps(document, **spelling).encode("utf-8", "surrogatepass")
    edited = apply(body, set_text(body, "model", value))
    assert json.loads(edited) == {**document, "model": value}
    if "model" not in document:
        assert apply(body, set_text(body, "model", value, absent=True)) == edited


@settings(deadline=None, max_examples=150)
@given(OBJECTS, SPELLINGS)
def test_asking_usage_keeps_every_other_option(document: dict[str, Any], spelling: dict[str, Any]) -> None:
    body = json.dumps(document, **spelling).encode("utf-8", "surrogatepass")
    options = document.get("stream_options")
    kept = options if isinstance(options, dict) else {}
    expected = {**document, "stream_options": {**kept, "include_usage": True}}
    edited = apply(body, ask_usage(body))
    assert json.loads(edited) == expected
    if "stream_options" not in document:
        assert apply(body, ask_usage(body, absent=True)) == edited


@settings(deadline=None, max_examples=150)
@given(
    st.binary(max_size=60)
    | st.text('{}[]",:\\ ax1', max_size=40).map(str.encode)
    | st.builds(lambda document, codec: json.dumps(document).encode(codec), OBJECTS, st.sampled_from(CODECS))
)
def test_any_bytes_are_read_or_refused_in_one_way(body: bytes) -> None:
    try:
        document = parse(body)
        for reader in PROMPTS.values():
            facts(document, reader)
    except BadBodyError:
        return
    apply(body, set_text(body, "model", "m"))  # what was taken can be edited: an endpoint was chosen by then


@settings(deadline=None, max_examples=150)
@given(OBJECTS)
def test_any_object_gives_facts_for_every_path(document: dict[str, Any]) -> None:
    for reader in PROMPTS.values():
        try:
            found = facts(document, reader)
        except BadBodyError:
            continue
        assert isinstance(found.prompt, bytes)


EVENTS = st.sampled_from(
    [
        b'data: {"choices":[{"delta":{}}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
        b": comment\n\n",
        b"event: x\r\ndata: {}\r\n\r\n",
        b"data: [DONE]\n\n",
        b'data: {"usage":null}\n\n',
    ]
)


@settings(deadline=None, max_examples=150)
@given(st.lists(EVENTS, max_size=8), st.lists(st.integers(0, 400), max_size=8))
def test_a_stream_is_stripped_and_read_alike_however_it_is_cut(events: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(events)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    stripper, tap, out = UsageStripper(), StreamTap(), b""
    for start, end in pairwise(places):
        piece = stream[start:end]
        tap.feed(piece)
        out += stripper.feed(piece)
    usage = [event for event in events if b'"choices":[]' in event]
    assert out + stripper.end() == b"".join(event for event in events if event not in usage)
    assert (tap.usage() is not None) == bool(usage)
