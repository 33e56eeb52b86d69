"""The safetensors header, read exactly and strictly.

Layout: 8 bytes little-endian header length N, N bytes of JSON, then the tensors' bytes. One validator serves
staging and loading: spans tile the body without gap or overlap, each span is shape x dtype, nothing trails.
Source: the format's specification and its reference reader (safetensors 0.8, `tensor.rs`).
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tonnage_core.coldstart.errors import CorruptFileError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit, checked before a byte of the header is allocated."""
MAX_DIMENSIONS = 32

DTYPE_BITS: Mapping[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits an element of each dtype the format names."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: `start` and `end` are bytes from the beginning of the FILE; equal for a tensor without elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its span."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """A file's tensors in the order of their bytes, and its free-text metadata."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]
    body_start: int
    """Byte of the file where the first tensor begins."""


def header_bytes(first_8: bytes, file_bytes: int, file: str) -> int:
    """Length N of the JSON header from the file's first eight bytes; raises before anything of that size is read."""
    if len(first_8) < LENGTH_BYTES or file_bytes < LENGTH_BYTES:
        _fail(file, f"{file_bytes} bytes are too few for a safetensors file")
    length = int.from_bytes(first_8[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        _fail(file, f"its header claims {length} bytes, over the format's limit of {MAX_HEADER_BYTES}")
    if length + LENGTH_BYTES > file_bytes:
        _fail(file, f"its header claims {length} bytes but the file has {file_bytes}: truncated")
    if length < 2:
        _fail(file, f"its header claims {length} bytes, too few for JSON")
    return length


def parse_header(raw: bytes, file_bytes: int, file: str) -> Header:
    """The header from its JSON bytes (without the length). `file_bytes` is the size of the whole file.

    Raises `CorruptFileError` naming the file, the tensor and what was expected. An unknown dtype is kept: its bytes are
    known, only making a tensor of it is not.
    """
    document = _json(raw, file)
    body_start = LENGTH_BYTES + len(raw)
    body_bytes = file_bytes - body_start
    metadata = _metadata(document.pop("__metadata__", {}), file)
    tensors = [_tensor(name, entry, body_start, body_bytes, file) for name, entry in document.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end, tensor.name))
    _check_tiling(tensors, body_start, file_bytes, file)
    return Header(tuple(tensors), metadata, body_start)


def _json(raw: bytes, file: str) -> dict[str, Any]:
    if raw[:1] != b"{":
        _fail(file, "its header does not start with '{'")
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(file, f"its header is not valid JSON ({str(error)[:120]})") from error
    if not isinstance(document, dict):
        _fail(file, "its header is not a JSON object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:80]!r} stands twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _metadata(value: Any, file: str) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        _fail(file, "its __metadata__ is not a map of text to text")
    return value


def _tensor(name: str, entry: Any, body_start: int, body_bytes: int, file: str) -> Tensor:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        _fail(file, "dtype, shape and data_offsets are expected", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        _fail(file, "its dtype is not text", name)
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(_size(one) for one in shape):
        _fail(file, f"its shape is not a list of at most {MAX_DIMENSIONS} sizes", name)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_size(one) for one in offsets):
        _fail(file, "its data_offsets are not two sizes", name)
    begin, end = offsets
    if not begin <= end <= body_bytes:
        _fail(file, f"its span {begin}..{end} does not lie in the file's {body_bytes} bytes of tensors", name)
    _check_span(name, dtype, shape, end - begin, file)
    return Tensor(name, dtype, tuple(shape), body_start + begin, body_start + end)


def _size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _check_span(name: str, dtype: str, shape: list[int], span: int, file: str) -> None:
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        return
    for size in shape:
        bits *= size
    if bits % 8:
        _fail(file, f"shape {shape} of {dtype} does not fill whole bytes", name)
    if math.prod(filter(None, shape)) >= 1 << 63:
        _fail(file, f"shape {shape} has more elements beside its zero than can be counted", name)
    if bits != span * 8:
        _fail(file, f"shape {shape} of {dtype} is {bits // 8} bytes, its span has {span}", name)


def _check_tiling(tensors: list[Tensor], body_start: int, file_bytes: int, file: str) -> None:
    at = body_start
    for tensor in tensors:
        if tensor.start != at:
            kind = "a gap before it" if tensor.start > at else "an overlap with the tensor before it"
            _fail(file, f"begins at byte {tensor.start}, {at} was expected: {kind}", tensor.name)
        at = tensor.end
    if at != file_bytes:
        _fail(file, f"{file_bytes} bytes, its tensors end at {at}")


def _fail(file: str, problem: str, tensor: str | None = None) -> NoReturn:
    raise CorruptFileError(file, problem, tensor=tensor)
