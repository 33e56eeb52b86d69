"""The header parser believes nothing."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.coldstart.errors import CorruptFileError
from tonnage_core.coldstart.safetensors_header import MAX_HEADER_BYTES, header_bytes, parse_header


def entry(start: int, end: int, shape: list[int] | None = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def parse(document: Any, body: int) -> Any:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_header(raw, 8 + len(raw) + body, "f.safetensors")


def test_tensors_come_in_the_order_of_their_bytes_with_offsets_in_the_file() -> None:
    header = parse({"b": entry(4, 10), "a": entry(0, 4, [2], "BF16"), "__metadata__": {"format": "pt"}}, 10)
    assert [tensor.name for tensor in header.tensors] == ["a", "b"]
    assert header.tensors[0].start == header.body_start
    assert header.metadata == {"format": "pt"}


@pytest.mark.parametrize("document", [{}, {"__metadata__": {"a": "b"}}, {"empty": entry(0, 0, [0, 4])}])
def test_a_file_without_elements_is_legal(document: Any) -> None:
    assert all(tensor.size_bytes == 0 for tensor in parse(document, 0).tensors)


def test_an_unknown_dtype_keeps_its_bytes() -> None:
    assert parse({"x": entry(0, 7, [3], "X13")}, 7).tensors[0].dtype == "X13"


@pytest.mark.parametrize(
    ("document", "body", "words"),
    [
        ({"a": entry(0, 4), "b": entry(6, 8)}, 8, "gap"),
        ({"a": entry(0, 4), "b": entry(2, 8)}, 8, "overlap"),
        ({"a": entry(0, 4)}, 8, "its tensors end at"),
        ({"a": entry(0, 8)}, 4, "does not lie"),
        ({"a": entry(0, 4, [5])}, 4, "shape"),
        ({"a": entry(0, 4, [1 << 62, 1 << 62])}, 4, "shape"),
        ({"a": entry(-4, 4, [8])}, 4, "not two sizes"),
        ({"a": entry(4, 0, [0])}, 4, "does not lie"),
        ({"a": {**entry(0, 4), "shape": [-4]}}, 4, "its shape"),
        ({"a": {**entry(0, 4), "shape": [True]}}, 4, "its shape"),
        ({"a": {**entry(0, 4), "shape": [4.0]}}, 4, "its shape"),
        ({"a": {**entry(0, 4), "data_offsets": [0, 4, 4]}}, 4, "not two sizes"),
        ({"a": {"dtype": "U8", "shape": [4]}}, 4, "expected"),
        ({"a": {**entry(0, 4), "dtype": 8}}, 4, "dtype is not text"),
        ({"a": entry(0, 1, [1], "F4")}, 1, "whole bytes"),
        ({"a": [0, 4]}, 4, "expected"),
        ({"__metadata__": {"a": 1}}, 0, "__metadata__"),
        (b'{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}, "a": 1}', 1, "stands twice"),
        (b'{"a": NaN}', 0, "not valid JSON"),
        (b"[" * 10, 0, "does not start"),
        (b'{"a":' * 20000, 0, "not valid JSON"),
        (b"\xff\xfe{}", 0, "does not start"),
        (b'{"\xff": 1}', 0, "not valid JSON"),
    ],
)
def test_a_broken_header_is_refused_with_its_problem(document: Any, body: int, words: str) -> None:
    with pytest.raises(CorruptFileError, match=words) as caught:
        parse(document, body)
    assert caught.value.file == "f.safetensors"


@pytest.mark.parametrize(
    ("length", "size", "words"),
    [
        (MAX_HEADER_BYTES + 1, 1 << 40, "over the format's limit"),
        (1 << 62, 1 << 40, "over the format's limit"),
        (100, 50, "truncated"),
        (0, 8, "too few for JSON"),
    ],
)
def test_a_length_is_judged_before_anything_is_read(length: int, size: int, words: str) -> None:
    with pytest.raises(CorruptFileError, match=words):
        header_bytes(struct.pack("<Q", length), size, "f")


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_parse_or_are_refused(raw: bytes) -> None:
    try:
        parse_header(b"{" + raw, 400, "f")
    except CorruptFileError:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries({"dtype": st.sampled_from(["U8", "F4", "X"]) | JSON, "shape": JSON, "data_offsets": JSON})


@given(st.dictionaries(st.text(max_size=5), ENTRY | JSON, max_size=4), st.integers(0, 64))
@settings(max_examples=300)
def test_any_document_gives_spans_that_tile_the_file_or_is_refused(document: Any, body: int) -> None:
    raw = json.dumps(document).encode()
    size = 8 + len(raw) + body
    try:
        header = parse_header(raw, size, "f")
    except CorruptFileError:
        return
    at = header.body_start
    for tensor in header.tensors:
        assert tensor.start == at
        at = tensor.end
    assert at == size
