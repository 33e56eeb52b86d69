"""Answers the router makes itself: OpenAI error objects and small JSON documents, as ready bytes."""

from http import HTTPStatus

import orjson

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}

_TYPED_EVENTS = frozenset({b"/v1/messages", b"/v1/responses"})


def error_object(status: int, message: str, code: str | None = None, param: str | None = None) -> bytes:
    """`{"error": {...}}` in OpenAI's form."""
    kind = _TYPES.get(status, "server_error")
    message = message.encode("utf-8", "replace").decode()  # a client's words may hold lone surrogates; JSON may not
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code or str(status)}})


def answer(
    status: int,
    body: bytes,
    *,
    close: bool,
    retry_after_s: int | None = None,
    extra: bytes = b"",
    bodiless: bool = False,
) -> bytes:
    """A whole JSON response. `extra` holds further header lines, each with its line end. `bodiless` leaves the body
    out, as an answer to HEAD must: its length is told all the same (RFC 9110 section 9.3.2)."""
    retry = b"" if retry_after_s is None else b"retry-after: %d\r\n" % retry_after_s
    return b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b%b%b\r\n%b" % (
        status,
        HTTPStatus(status).phrase.encode(),
        len(body),
        retry,
        extra,
        b"connection: close\r\n" if close else b"",
        b"" if bodiless else body,
    )


def error_event(code: str, path: bytes) -> bytes:
    """The server-sent event that ends a stream whose engine failed; preceded by a blank line to end a cut event.

    Clients of `/v1/messages` and `/v1/responses` go by an event's name; each finds its own fields in the one object.
    """
    message = "the engine's connection broke before the end of its answer"
    if path not in _TYPED_EVENTS:
        return b"\n\ndata: " + error_object(502, message, code) + b"\n\n"
    inner = {"type": "api_error", "message": message, "code": code}
    document = {"type": "error", "error": inner, "code": code, "message": message, "param": None}
    return b"\n\nevent: error\ndata: " + orjson.dumps(document) + b"\n\n"
