"""Prompts to token ids within the model's context, refused in vLLM's words."""

from collections.abc import Sequence

from tonnage_core import engine_text
from tonnage_sim.errors import ApiError

MAX_CHARS_PER_TOKEN = 6
"""The longest token's text: a word."""


def output_limit(max_model_len: int, asked: int | None, prompt_tokens: int) -> int:
    """Tokens that may be generated: what is asked for, or what the context has left (0 or less is refused later)."""
    room = max_model_len - prompt_tokens
    return room if asked is None else min(asked, room)


class PromptReader:
    """Encodes, truncates and checks prompts for one model's context length."""

    def __init__(self, max_model_len: int) -> None:
        self.max_model_len = max_model_len

    def check_request(self, max_tokens: int | None, name: str, truncate: int | None) -> None:
        """Refuse an output or a truncation longer than the context."""
        limit = self.max_model_len
        if max_tokens is not None and max_tokens > limit:
            raise ApiError(
                f"{name}={max_tokens} cannot be greater than max_model_len={limit}. "
                "Please request fewer output tokens.",
                parameter=name,
                value=max_tokens,
            )
        if truncate is not None and truncate > limit:
            raise ApiError(
                f"truncate_prompt_tokens={truncate} cannot be greater than max_model_len = {limit}. "
                "Please request a smaller truncation size.",
                parameter="truncate_prompt_tokens",
                value=truncate,
            )

    def text(self, text: str, truncate: int | None = None, side: str | None = None) -> Sequence[int]:
        """The ids of a text prompt."""
        self.check_text(text, truncate)
        return self.rendered(engine_text.encode_array(text), truncate, side)

    def check_text(self, text: str, truncate: int | None) -> None:
        """Refuse text that cannot be encoded, or is too long to be worth it."""
        if not text.isascii():
            _check_encodable(text)
        limit = self.max_model_len * MAX_CHARS_PER_TOKEN
        if truncate is None and len(text) > limit:
            raise ApiError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
                f"{len(text)} characters (more than {limit} characters, which is the upper bound for "
                f"{self.max_model_len} input tokens). Please reduce the length of the input prompt.",
                parameter="input_text",
                value=len(text),
            )

    def rendered(self, tokens: Sequence[int], truncate: int | None, side: str | None) -> Sequence[int]:
        """Ids that come from text, checked; as a tokenizer that stops early does, one too many stands for any more."""
        limit = self.max_model_len + 1
        return self._fitted(tokens[:limit] if truncate is None and len(tokens) > limit else tokens, truncate, side)

    def ids(self, tokens: list[int], truncate: int | None = None, side: str | None = None) -> Sequence[int]:
        """A prompt of token ids, checked."""
        fitted = self._fitted(tokens, truncate, side)
        if max(fitted) >= engine_text.TOKENS:
            raise ApiError(f"Token id {max(fitted)} is out of vocabulary")
        return fitted

    def _fitted(self, tokens: Sequence[int], truncate: int | None, side: str | None) -> Sequence[int]:
        if truncate is not None:
            keep = self.max_model_len - 1 if truncate < 0 else truncate
            tokens = tokens[len(tokens) - keep :] if side == "left" and len(tokens) > keep else tokens[:keep]
        count = len(tokens)
        if count > self.max_model_len:
            qualifier = "at least " if count == self.max_model_len + 1 else ""
            raise ApiError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
                f"{qualifier}{count} input tokens, which exceeds this limit even without any output tokens. Please "
                "reduce the length of the input prompt.",
                parameter="input_tokens",
                value=count,
            )
        if not tokens:
            raise ApiError("The decoder prompt cannot be empty")
        return tokens


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from error
