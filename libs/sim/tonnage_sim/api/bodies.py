"""Request bodies to validated models, refused in vLLM's words.

Bodies are read with orjson; what it refuses is read again with the standard library, which accepts what vLLM accepts
(NaN, long integers, lone surrogates) and words what neither does.
"""

import json
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tonnage_sim.errors import ApiError, PlainError
from tonnage_sim.http1.message import Request

_REPORTED = 10
_INPUT_CHARS = 200
_ERROR_CHARS = 1000
_INTERNAL = frozenset(
    {
        *("function-wrap", "function-after", "function-before", "nullable", "union", "str", "int", "list"),
        *("ResponseFormat", "StructuralTagFormat", "LegacyStructuralTagFormat"),
    }
)
"""Steps of pydantic's own on the way to a field, which no client knows."""

M = TypeVar("M", bound=BaseModel)


def read_json(request: Request) -> Any:
    """The body's document. Raises `ApiError` or `PlainError`."""
    media_type = request.headers.get("content-type", "").lower().partition(";")[0].strip()
    if media_type != "application/json":
        raise _invalid(["Unsupported Media Type: Only 'application/json' is allowed"], None)
    if not request.body:
        raise refusal([_missing_body()])
    try:
        document = orjson.loads(request.body)
    except orjson.JSONDecodeError:
        document = _read_slowly(request.body)
    if document is None:
        raise refusal([_missing_body()])
    return document


def validated(model: type[M], document: Any, request: Request) -> M:
    """`document`, from the body of `request`, as `model`; raises `ApiError` with every field that is wrong.

    What is refused is read again the slow way: the quick one takes integers beyond 64 bits for floats.
    """
    try:
        return model.model_validate(document, from_attributes=True)
    except ValidationError:
        try:
            return model.model_validate(_read_slowly(request.body), from_attributes=True)
        except ValidationError as error:
            raise refusal(error.errors(include_url=False)) from error


def refusal(errors: list[ErrorDetails], prefix: str = "body") -> ApiError:
    """The answer to errors found by pydantic, at most ten of them spelled out."""
    param = _location((prefix, *errors[0]["loc"]))
    return _invalid([_spelled(error, prefix) for error in errors], param)


def _invalid(lines: list[str], param: str | None) -> ApiError:
    count = len(lines)
    label = "error" if count == 1 else "errors"
    text = "".join(f"  {line}\n" for line in lines[:_REPORTED])
    if count > _REPORTED:
        text += f"  ...and {count - _REPORTED} more {label}\n"
    return ApiError(
        f"{count} validation {label}:\n{text}".rstrip(), parameter=param, kind="Bad Request", show_parameter=False
    )


def _read_slowly(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        detail = ErrorDetails(
            type="json_invalid", loc=(error.pos,), msg="JSON decode error", input={}, ctx={"error": error.msg}
        )
        raise refusal([detail]) from error
    except (ValueError, RecursionError) as error:
        raise PlainError("There was an error parsing the body", 400) from error


def _missing_body() -> ErrorDetails:
    return ErrorDetails(type="missing", loc=(), msg="Field required", input=None)


def _spelled(error: ErrorDetails, prefix: str) -> str:
    shown: dict[str, Any] = {
        "type": error["type"],
        "loc": _location((prefix, *error["loc"])),
        "msg": error["msg"],
        "input": _summary(error["input"]),
    }
    if "ctx" in error:
        shown["ctx"] = error["ctx"]
    text = str(shown)
    return text if len(text) <= _ERROR_CHARS else text[:_ERROR_CHARS] + "...[truncated]"


def _location(loc: tuple[int | str, ...]) -> str:
    parts = [str(part) for part in loc]
    named = [p for p in parts if p not in _INTERNAL and not set("[](){}") & set(p)]
    return ".".join(named or parts)


def _summary(value: object) -> str:
    if isinstance(value, (list, tuple, set, dict)):
        return f"<{type(value).__name__} of {len(value)} items>"
    try:
        text = str(value)
    except ValueError:  # an integer longer than Python prints
        return f"<{type(value).__name__}>"
    return text if len(text) <= _INPUT_CHARS else text[:_INPUT_CHARS] + "...[truncated]"
