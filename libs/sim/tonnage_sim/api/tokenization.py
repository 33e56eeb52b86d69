"""POST /tokenize and /detokenize."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tonnage_core import engine_text
from tonnage_sim.api.bodies import read_json, refusal, validated
from tonnage_sim.api.chat_messages import read_messages
from tonnage_sim.api.chat_template import render
from tonnage_sim.api.service import Service
from tonnage_sim.errors import ApiError
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response

TokenId = Annotated[int, Field(ge=0, le=2**63 - 1)]


class TokenizeText(BaseModel):
    """Text to encode."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str
    return_token_strs: bool | None = False


class TokenizeChat(BaseModel):
    """Messages to render and encode."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[Any]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False


class Detokenize(BaseModel):
    """Ids to decode."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    tokens: list[TokenId]


class Tokenization:
    """The two handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request, _: Exchange) -> Response:
        """Ids of a text or of a conversation."""
        body = _tokenize_body(read_json(request))
        self._service.models.resolve(body.model)
        tokens = self._chat_tokens(body) if isinstance(body, TokenizeChat) else self._text_tokens(body.prompt)
        strings = [engine_text.word(token) for token in tokens] if body.return_token_strs else None
        limit = self._service.prompts.max_model_len
        return json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": strings})

    async def detokenize(self, request: Request, _: Exchange) -> Response:
        """Text of ids; ids outside the vocabulary have none."""
        body = validated(Detokenize, read_json(request), request)
        self._service.models.resolve(body.model)
        return json_response({"prompt": engine_text.decode([t for t in body.tokens if t < engine_text.TOKENS])})

    def _text_tokens(self, text: str) -> list[int]:
        self._service.prompts.check_text(text, -1)
        return engine_text.encode(text)

    def _chat_tokens(self, body: TokenizeChat) -> list[int]:
        asked = "add_generation_prompt" in body.model_fields_set and body.add_generation_prompt
        if asked and body.continue_final_message:
            raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        messages = read_messages(body.messages, self._service.models.base)
        for message in messages:
            self._service.prompts.check_text(message.text, -1)
        return render(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final=body.continue_final_message,
        )


def _tokenize_body(document: Any) -> TokenizeText | TokenizeChat:
    """One or the other; when it is neither, the errors of both."""
    try:
        return TokenizeText.model_validate(document, from_attributes=True)
    except ValidationError as as_text:
        try:
            return TokenizeChat.model_validate(document, from_attributes=True)
        except ValidationError as as_chat:
            found = [*as_text.errors(include_url=False), *as_chat.errors(include_url=False)]
            raise refusal(found) from as_chat
