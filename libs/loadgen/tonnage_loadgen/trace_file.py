"""Traces from disk."""

from pathlib import Path

from tonnage_core.traces import Trace, parse_trace
from tonnage_loadgen.errors import TraceFileError


def read_trace(path: Path, *, strict: bool = False) -> Trace:
    """The trace in a file, Mooncake JSONL or Azure CSV by its content.

    Raises `TraceFileError` when the file cannot be read and `TraceError` when it is no trace (with `strict`, at its
    first bad line).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceFileError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_trace(data, name=str(path), strict=strict)
