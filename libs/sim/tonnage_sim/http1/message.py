"""Requests and responses as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import orjson

REASONS: dict[int, bytes] = {s.value: s.phrase.encode() for s in HTTPStatus}
JSON_TYPE = "application/json"


@dataclass(slots=True)
class Request:
    """One request, its body read. Header names are lower-case; of a repeated header the last value stands."""

    method: str
    target: bytes
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    queries: Sequence[tuple[str, str]] = ()
    """The query string in order, repeats included."""

    def split_target(self) -> None:
        """Fill `path` and `query` from `target` (origin-form or absolute-form)."""
        raw = self.target.decode("latin-1")
        if "://" in raw.partition("?")[0]:
            raw = "/" + raw.partition("://")[2].partition("/")[2]
        path, _, query = raw.partition("?")
        self.path = unquote(path)
        self.queries = parse_qsl(query, keep_blank_values=True)
        self.query = dict(self.queries)


@dataclass(slots=True)
class Response:
    """A whole answer."""

    status: int = 200
    body: bytes = b""
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


def json_response(document: object, status: int = 200) -> Response:
    """`document` as JSON."""
    return Response(status, orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS), JSON_TYPE)
