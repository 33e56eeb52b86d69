"""Chat messages: their shape, and the words in which vLLM refuses other shapes.

Well-formed messages are recognised by hand; anything else goes to pydantic for its errors. The type names appear in
those errors.
"""

from collections.abc import Iterable
from typing import Any, Literal, Required

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from tonnage_sim.api.bodies import refusal
from tonnage_sim.errors import ApiError


class ChatCompletionContentPartTextParam(TypedDict, total=False):
    """One text part."""

    text: Required[str]
    type: Required[Literal["text"]]


_Parts = str | Iterable[ChatCompletionContentPartTextParam]


class ChatCompletionDeveloperMessageParam(TypedDict, total=False):
    """Instructions of the developer."""

    content: Required[_Parts]
    role: Required[Literal["developer"]]
    name: str


class ChatCompletionSystemMessageParam(TypedDict, total=False):
    """Instructions."""

    content: Required[_Parts]
    role: Required[Literal["system"]]
    name: str


class ChatCompletionUserMessageParam(TypedDict, total=False):
    """A user's turn."""

    content: Required[_Parts]
    role: Required[Literal["user"]]
    name: str


class ChatCompletionAssistantMessageParam(TypedDict, total=False):
    """An answer."""

    role: Required[Literal["assistant"]]
    content: _Parts | None
    name: str
    tool_calls: Iterable[dict[str, Any]]


class ChatCompletionToolMessageParam(TypedDict, total=False):
    """A tool's result."""

    content: Required[_Parts]
    role: Required[Literal["tool"]]
    tool_call_id: Required[str]


class CustomChatCompletionMessageParam(TypedDict, total=False):
    """Any other role."""

    role: Required[str]
    content: _Parts
    name: str


class ChatCompletionFunctionMessageParam(TypedDict, total=False):
    """A function's result, as it was before tools."""

    content: Required[str | None]
    name: Required[str]
    role: Required[Literal["function"]]


class Message(TypedDict, total=False):
    """A message in the harmony format."""

    author: Required[dict[str, Any]]
    content: Required[list[Any]]


_ONE = TypeAdapter[Any](
    ChatCompletionDeveloperMessageParam
    | ChatCompletionSystemMessageParam
    | ChatCompletionUserMessageParam
    | ChatCompletionAssistantMessageParam
    | ChatCompletionToolMessageParam
    | ChatCompletionFunctionMessageParam
    | CustomChatCompletionMessageParam
    | Message
)


class Turn:
    """A role and its text."""

    __slots__ = ("role", "text")

    def __init__(self, role: str, text: str) -> None:
        self.role = role
        self.text = text


def read_messages(raw: Any, model: str) -> list[Turn]:
    """The conversation in `raw`; raises `ApiError` in vLLM's words."""
    if raw is None:
        raise ApiError("'NoneType' object is not iterable")
    if not isinstance(raw, list):
        raise refusal(
            [ErrorDetails(type="list_type", loc=("messages",), msg="Input should be a valid list", input=raw)]
        )
    if not raw:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    errors: list[ErrorDetails] = []
    messages = [_message(item, index, model, errors) for index, item in enumerate(raw)]
    if errors:
        raise refusal(errors)
    return [m for m in messages if m is not None]


def _message(item: Any, index: int, model: str, errors: list[ErrorDetails]) -> Turn | None:
    if isinstance(item, dict) and isinstance(role := item.get("role"), str):
        content = item.get("content")
        if isinstance(content, str):
            return Turn(role, content)
        if isinstance(content, list):
            return Turn(role, "\n".join(_part_text(part, model) for part in content))
        if content is None and (role == "assistant" or "content" not in item):
            return Turn(role, _tool_calls_text(item))
    try:
        _ONE.validate_python(item)
    except ValidationError as error:
        found = error.errors(include_url=False)
        errors += [ErrorDetails(**{**e, "loc": ("messages", index, *e["loc"])}) for e in found]
        return None
    raise ApiError(f"messages.{index}: unsupported content; send text")


def _part_text(part: Any, model: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise ApiError("Content parts must be objects with a 'type'")
    kind = part.get("type")
    if kind in ("text", "input_text", "refusal", "thinking") and isinstance(text := part.get("text", ""), str):
        return text
    if isinstance(kind, str) and kind.endswith(("_url", "_audio", "_embeds", "image", "file")):
        raise ApiError(f"{model} is not a multimodal model")
    raise ApiError(f"Unknown part type: {kind}")


def _tool_calls_text(item: dict[str, Any]) -> str:
    calls = item.get("tool_calls")
    return str(calls) if calls else ""
