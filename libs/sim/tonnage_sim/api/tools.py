"""Tools in a chat request: their shape and the choice among them, checked as vLLM does."""

from typing import Any, Literal

from pydantic import BaseModel

from tonnage_sim.errors import ApiError

_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'


class FunctionDefinition(BaseModel):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolParam(BaseModel):
    """A tool: always a function."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


def check_tool_choice(choice: Any, tools: Any) -> None:
    """Raise `ApiError` for a choice that is none of vLLM's, or a function that is not among `tools`."""
    if choice in (None, "none"):
        return
    if tools is None:
        raise ApiError("When using `tool_choice`, `tools` must be set.", parameter="tool_choice")
    if isinstance(choice, dict):
        _check_function(choice.get("function"), tools)
    elif choice not in ("auto", "required"):
        raise ApiError(
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.',
            parameter="tool_choice",
        )


def _check_function(function: Any, tools: Any) -> None:
    if not isinstance(function, dict):
        raise ApiError(
            f"Invalid value for `function`: `{function}` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function",
        )
    if "name" not in function:
        raise ApiError(
            f"Expected field `name` in `function` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function.name",
        )
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise ApiError(
            f"Invalid `name` in `function`: `{name}` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function.name",
        )
    if name not in _names(tools):
        raise ApiError(
            "The tool specified in `tool_choice` does not match any of the specified `tools`", parameter="tool_choice"
        )


def _names(tools: Any) -> list[Any]:
    listed = tools if isinstance(tools, list) else []
    functions = [tool.get("function") for tool in listed if isinstance(tool, dict)]
    return [function.get("name") for function in functions if isinstance(function, dict)]
