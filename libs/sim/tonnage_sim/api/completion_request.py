"""The body of /v1/completions."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from tonnage_sim.api.bodies import validated
from tonnage_sim.api.fields import GenerationFields, takes_list_of
from tonnage_sim.errors import ApiError
from tonnage_sim.http1.message import Request

DEFAULT_MAX_TOKENS = 16
_MAX_PROMPTS = 1024

TokenId = Annotated[int, Field(ge=0)]
Prompt = str | list[int] | list[list[int]] | list[str]


class CompletionRequest(GenerationFields):
    """As vLLM 0.32's, without what needs a model's logits or images."""

    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    n: int = 1
    suffix: str | None = None
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def _check_prompt(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        prompt = data.get("prompt")
        if data.get("prompt_embeds"):
            raise ApiError("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", parameter="prompt_embeds")
        if prompt is None or prompt == "":
            raise ApiError("Either prompt or prompt_embeds must be provided and non-empty.", parameter="prompt")
        if isinstance(prompt, list) and not takes_list_of(prompt, int) and len(prompt) > _MAX_PROMPTS:
            raise ApiError(
                f"prompt list length {len(prompt)} exceeds the maximum allowed count of {_MAX_PROMPTS}. To increase "
                "this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.",
                parameter="prompt",
            )
        return data if data.get("max_tokens") is not None else {**data, "max_tokens": DEFAULT_MAX_TOKENS}


def completion_request(document: Any, request: Request) -> tuple[CompletionRequest, Prompt]:
    """The validated request and its prompt. A well-formed prompt of ids goes past pydantic: it may be long."""
    prompt = document.get("prompt") if isinstance(document, dict) else None
    if isinstance(prompt, list) and _is_token_prompt(prompt):
        return validated(CompletionRequest, {**document, "prompt": [0]}, request), prompt
    body = validated(CompletionRequest, document, request)
    return body, body.prompt or []


def _is_token_prompt(prompt: list[Any]) -> bool:
    if takes_list_of(prompt, int):
        return bool(min(prompt) >= 0)
    return (
        len(prompt) <= _MAX_PROMPTS
        and takes_list_of(prompt, list)
        and all(takes_list_of(one, int) and min(one) >= 0 for one in prompt)
    )
