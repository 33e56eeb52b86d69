"""What a response to a range request must say before its bytes are believed.

Content-Range decides, not the status: servers answer 200 with a correct Content-Range, 206 with another range, 200 with
a whole page of HTML. Pure functions over status and headers (RFC 9110, sections 14 and 15.3.7).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from tonnage_coldstart.errors import SourceChangedError, SourceError, TransientSourceError, WholeFileOnlyError

CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
REFUSALS = (429, 503)
TRANSIENT = (408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: `length` bytes from `start` of a file of `size_bytes` in version `version`."""

    uri: str
    file: str
    start: int
    length: int
    size_bytes: int
    version: str

    @property
    def whole(self) -> bool:
        """All of the file was asked for."""
        return self.start == 0 and self.length == self.size_bytes


def check_status(uri: str, file: str, status: int, headers: Mapping[str, str], now_s: float, *, code: str = "") -> None:
    """Raise for a status that brings no bytes; each says what to do. `code` is an object store's word for it."""
    if status in (200, 206):
        return
    told = f"answered {status}{f' {code}' if code else ''}"
    if status in TRANSIENT:
        raise TransientSourceError(
            uri,
            told,
            file=file,
            refused=status in REFUSALS,
            retry_after_s=retry_after_s(headers.get("retry-after"), now_s),
        )
    if status in (401, 403):
        raise SourceError(uri, f"{told}: credentials are missing, wrong or expired", file=file)
    if status in (404, 410):
        raise SourceError(uri, f"{told}: not there", file=file)
    if status in (412, 416):
        raise SourceChangedError(uri, file, "the pinned version", f"another ({told})")
    raise SourceError(uri, told, file=file)


def check_range(asked: Asked, status: int, headers: Mapping[str, str]) -> None:
    """Raise unless the body is exactly the range that was asked for, of the pinned version."""
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", ""):
        raise SourceError(
            asked.uri, f"sent with content-encoding {encoding} though identity was asked", file=asked.file
        )
    _check_version(asked, headers)
    content_range = headers.get("content-range")
    if content_range is None:
        _check_without_range(asked, status, headers)
        return
    match = CONTENT_RANGE.fullmatch(content_range.strip())
    if match is None:
        raise TransientSourceError(asked.uri, f"Content-Range {content_range[:80]!r} is unreadable", file=asked.file)
    start, end = int(match[1]), int(match[2])
    if match[3] != "*" and int(match[3]) != asked.size_bytes:
        raise SourceChangedError(asked.uri, asked.file, f"{asked.size_bytes} bytes", f"{match[3]} bytes")
    if (start, end) != (asked.start, asked.start + asked.length - 1):
        wanted = f"{asked.start}-{asked.start + asked.length - 1}"
        raise TransientSourceError(asked.uri, f"bytes {start}-{end} came for {wanted}", file=asked.file)
    length = headers.get("content-length")
    if length is not None and length.strip() != str(asked.length):
        raise TransientSourceError(asked.uri, f"{length} bytes announced for {asked.length}", file=asked.file)


def _check_without_range(asked: Asked, status: int, headers: Mapping[str, str]) -> None:
    if status == 206:
        raise TransientSourceError(asked.uri, "206 without Content-Range", file=asked.file)
    if not asked.whole:
        raise WholeFileOnlyError(asked.uri, "ranges are not served: 200 without Content-Range", file=asked.file)
    length = headers.get("content-length")
    if length is not None and length.strip() != str(asked.size_bytes):
        page = " of HTML" if "html" in headers.get("content-type", "") else ""
        raise SourceChangedError(asked.uri, asked.file, f"{asked.size_bytes} bytes", f"{length} bytes{page}")


def _check_version(asked: Asked, headers: Mapping[str, str]) -> None:
    # A version that is an ETag is compared with the ETag, whatever else the server tells.
    found = headers.get("etag", "").strip() if asked.version.startswith('"') else version_of(headers)
    if found and asked.version and found != asked.version:
        raise SourceChangedError(asked.uri, asked.file, asked.version, found)


def version_of(headers: Mapping[str, str]) -> str:
    """What pins a file: version id, ETag, or Last-Modified; empty when the server tells none."""
    for name in ("x-amz-version-id", "etag", "last-modified"):
        value = headers.get(name, "").strip()
        if value and value != "null":
            return value
    return ""


def retry_after_s(value: str | None, now_s: float) -> float | None:
    """Retry-After in seconds, from a number or a date; None when absent or unreadable."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 9:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, OverflowError):
        return None
