"""The body of /v1/chat/completions."""

from typing import Any, ClassVar

from pydantic import Field, model_validator

from tonnage_sim.api.bodies import validated
from tonnage_sim.api.fields import GenerationFields, TopLogprobs
from tonnage_sim.api.tools import ToolParam, check_tool_choice
from tonnage_sim.errors import ApiError
from tonnage_sim.http1.message import Request


class ChatRequest(GenerationFields):
    """As vLLM 0.32's, without what needs a model's logits, images or a tool parser."""

    logprobs_field: ClassVar[str] = "top_logprobs"
    constraints_field: ClassVar[str | None] = None

    messages: Any
    logprobs: bool | None = False
    top_logprobs: TopLogprobs = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[ToolParam] | None = None
    tool_choice: Any = "none"
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    return_prompt_text: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None)

    @model_validator(mode="before")
    @classmethod
    def _check_top_logprobs(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("top_logprobs") and not data.get("logprobs"):
            raise ApiError("when using `top_logprobs`, `logprobs` must be set to true.", parameter="top_logprobs")
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_tools(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("tools") == []:
            raise ApiError(
                "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
                parameter="tools",
            )
        check_tool_choice(data.get("tool_choice"), data.get("tools"))
        return {**data, "tool_choice": "auto"} if data.get("tools") and "tool_choice" not in data else data

    @model_validator(mode="before")
    @classmethod
    def _check_generation_prompt(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("continue_final_message") and data.get("add_generation_prompt"):
            raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return data

    @property
    def limit_name(self) -> str:
        """The field that the limit comes from."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def output_limit(self) -> int | None:
        """The limit asked for; max_completion_tokens wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def chat_request(document: Any, request: Request) -> ChatRequest:
    """The validated request; `messages` is read apart. Tools that would need a parser are refused as vLLM does."""
    body = validated(ChatRequest, document, request)
    if body.chat_template is not None:
        raise ApiError(
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with "
            "untrusted chat template."
        )
    choice = body.tool_choice
    if choice == "auto":
        raise ApiError('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if choice not in (None, "none"):
        shown = f'function "{choice["function"]["name"]}"' if isinstance(choice, dict) else f'"{choice}"'
        raise ApiError(f"tool_choice={shown} requires --tool-call-parser to be set")
    return body
