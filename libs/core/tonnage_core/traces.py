"""Request traces: Mooncake JSONL and Azure LLM CSV as requests with arrival, lengths and prefix block ids.

Formats: kvcache-ai/Mooncake FAST'25 traces (`timestamp` in ms, `input_length`, `output_length`, `hash_ids`, one id a
512-token block); Azure/AzurePublicDataset LLM inference traces (`TIMESTAMP`, `ContextTokens`, `GeneratedTokens`).
A bad line becomes a `BadLine` with its number and the reason; parsing goes on.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.trace_prompts import MAX_HASH_ID, Vocabulary, block_token_ids, prompt_tokens

__all__ = [
    "BadLine",
    "Trace",
    "TraceError",
    "TraceRequest",
    "block_token_ids",
    "parse_trace",
    "prompt_token_ids",
    "truncated",
]

BLOCK_TOKENS = 512
MAX_TOKENS = 1 << 24
"""A length beyond this (16.8 million tokens) is a damaged line, not a request."""
MAX_TIMESTAMP_MS = 1e15
_AZURE_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
_AZURE_FIRST_ID = 1 << 40
"""Azure gives no content: its blocks get ids of their own, shared by nobody, far above any Mooncake id."""


class TraceError(BadInputError):
    """A trace cannot be used; the message names the trace, the line and the reason."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: arrival in seconds after the trace's first, lengths in tokens, one id a `block_tokens` block."""

    index: int
    arrival_s: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    block_tokens: int = BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request: its number from 1, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival (ties in file order), and the lines left out."""

    requests: tuple[TraceRequest, ...]
    bad_lines: tuple[BadLine, ...]


class _LineError(ValueError):
    """Why a line is bad."""


def parse_trace(data: bytes, *, name: str = "trace", strict: bool = False) -> Trace:
    """The requests in `data`, which starts with `{` for Mooncake JSONL and with a header line for Azure CSV.

    Raises `TraceError` when it is neither, when no line is a request, or, with `strict`, at the first bad line.
    """
    numbered = [(n, line) for n, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1) if line.strip()]
    if not numbered:
        raise TraceError(f"{name}: the trace is empty")
    read = _read_mooncake if numbered[0][1].lstrip()[:1] == b"{" else _azure_reader(numbered.pop(0)[1], name)
    found, bad = _read_lines(numbered, read)
    if bad and (strict or not found):
        none = "" if found else "; no line is a request"
        raise TraceError(f"{name}: line {bad[0].number}: {bad[0].reason}{none}")
    if not found:
        raise TraceError(f"{name}: the trace has a header and no request")
    return Trace(tuple(_in_order(found)), tuple(bad))


def prompt_token_ids(request: TraceRequest, vocabulary: Vocabulary | None = None) -> list[int]:
    """The prompt: exactly `input_length` token ids, the last block cut short."""
    return prompt_tokens(request.hash_ids, request.input_length, request.block_tokens, vocabulary)


def truncated(request: TraceRequest, max_input: int) -> TraceRequest:
    """The request with its prompt cut to the first `max_input` tokens, so that shared prefixes stay shared."""
    if request.input_length <= max_input:
        return request
    kept = request.hash_ids[: -(-max_input // request.block_tokens)]
    return replace(request, input_length=max_input, hash_ids=kept)


_Row = tuple[float, int, int, tuple[int, ...]]


def _read_lines(numbered: Iterable[tuple[int, bytes]], read: Callable[[str], _Row]) -> tuple[list[_Row], list[BadLine]]:
    found: list[_Row] = []
    bad: list[BadLine] = []
    for number, line in numbered:
        try:
            found.append(read(line.decode("utf-8")))
        except UnicodeDecodeError:
            bad.append(BadLine(number, "not UTF-8"))
        except _LineError as error:
            bad.append(BadLine(number, str(error)))
    return found, bad


def _in_order(rows: list[_Row]) -> Iterator[TraceRequest]:
    start = min(row[0] for row in rows)
    rows.sort(key=lambda row: row[0])
    for index, (at, input_length, output_length, hash_ids) in enumerate(rows):
        yield TraceRequest(index, at - start, input_length, output_length, hash_ids)


def _read_mooncake(line: str) -> _Row:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _LineError(f"not JSON: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(document, dict):
        raise _LineError(f"a JSON object is expected, found {type(document).__name__}")
    at = _number(document, "timestamp", MAX_TIMESTAMP_MS)
    input_length = _tokens(document, "input_length")
    output_length = _tokens(document, "output_length")
    return at / 1e3, input_length, output_length, _hash_ids(document, input_length)


def _hash_ids(document: dict[str, Any], input_length: int) -> tuple[int, ...]:
    ids = _field(document, "hash_ids")
    if not isinstance(ids, list):
        raise _LineError("hash_ids is not a list")
    needed = -(-input_length // BLOCK_TOKENS)
    if len(ids) != needed:
        raise _LineError(f"hash_ids has {len(ids)} ids; input_length {input_length} needs {needed}")
    for each in ids:
        if type(each) is not int or not 0 <= each <= MAX_HASH_ID:
            raise _LineError(f"hash_ids holds {_shown(each)}; whole numbers from 0 to 2**63-1 are expected")
    return tuple(ids)


def _field(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise _LineError(f"{name} is missing")
    return document[name]


def _number(document: dict[str, Any], name: str, top: float) -> float:
    value = _field(document, name)
    if type(value) not in (int, float) or not 0 <= value <= top:
        raise _LineError(f"{name} is {_shown(value)}; a number from 0 to {top:g} is expected")
    return float(value)


def _tokens(document: dict[str, Any], name: str) -> int:
    value = _field(document, name)
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise _LineError(f"{name} is {_shown(value)}; a whole number from 1 to {MAX_TOKENS} is expected")
    return value


def _shown(value: object) -> str:
    if type(value) is int and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _azure_reader(header: bytes, name: str) -> Callable[[str], _Row]:
    columns = [part.strip().strip('"').lower() for part in header.decode("utf-8", "replace").split(",")]
    missing = [column for column in _AZURE_COLUMNS if column not in columns]
    if missing:
        raise TraceError(
            f"{name}: neither a Mooncake JSONL trace (a line starts with '{{') nor an Azure CSV trace "
            "(header TIMESTAMP,ContextTokens,GeneratedTokens)"
        )
    places = [columns.index(column) for column in _AZURE_COLUMNS]
    next_id = _AZURE_FIRST_ID

    def read(line: str) -> _Row:
        nonlocal next_id
        at, input_length, output_length = _azure_row(line, len(columns), places)
        blocks = -(-input_length // BLOCK_TOKENS)
        next_id += blocks
        return at, input_length, output_length, tuple(range(next_id - blocks, next_id))

    return read


def _azure_row(line: str, width: int, places: Sequence[int]) -> tuple[float, int, int]:
    cells = [cell.strip().strip('"') for cell in line.split(",")]
    if len(cells) != width:
        raise _LineError(f"{len(cells)} columns; the header has {width}")
    stamp, *lengths = (cells[place] for place in places)
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError as error:
        raise _LineError(f"TIMESTAMP is {_shown(stamp)}; a date and time is expected") from error
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    numbers = {
        name: _digits(name, text) for name, text in zip(("ContextTokens", "GeneratedTokens"), lengths, strict=True)
    }
    at = (when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    if not math.isfinite(at):
        raise _LineError(f"TIMESTAMP is {_shown(stamp)}; a date and time is expected")
    return at, _tokens(numbers, "ContextTokens"), _tokens(numbers, "GeneratedTokens")


def _digits(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise _LineError(f"{name} is {_shown(text)}; a whole number from 1 to {MAX_TOKENS} is expected")
    return int(text)
