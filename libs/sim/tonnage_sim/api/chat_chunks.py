"""The chunks of a /v1/chat/completions stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_core import engine_text
from tonnage_sim.api.chat_template import prompt_text
from tonnage_sim.api.chunks import WordFrame, event
from tonnage_sim.api.logprobs import chat_logprobs
from tonnage_sim.api.usage import Usage
from tonnage_sim.engine.sample import Sample
from tonnage_sim.http1.exchange import Exchange


@dataclass(frozen=True, slots=True)
class ChatLook:
    """How a chat answer is shown."""

    request_id: str
    created: int
    model: str
    fingerprint: str
    prompt: Sequence[int]
    n: int
    role: str = "assistant"
    echo: str = ""
    """Text of the last message to repeat before the answer."""
    logprobs: int | None = None
    """Alternatives to list, None: no log-probabilities."""
    token_ids: bool = False
    tokens_as_ids: bool = False
    prompt_text: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    @property
    def plain(self) -> bool:
        """The usual token's chunk differs from its neighbour only in the text."""
        return not (self.logprobs is not None or self.token_ids or self.continuous_usage)

    def shown_prompt(self) -> str | None:
        """The rendered prompt, if it is asked for."""
        return prompt_text(self.prompt) if self.prompt_text else None


class ChatChunks:
    """Chunks in vLLM's field order: the role for every choice, then tokens."""

    def __init__(self, look: ChatLook, exchange: Exchange, samples: Sequence[Sample]) -> None:
        self._look = look
        self._frame = exchange.chunk
        self._words: list[WordFrame] = []
        if look.plain:
            self._words = [self._word_frame(sample) for sample in samples]

    def opening(self, first: Sample) -> bytes:
        """The role of every choice, and the echo if there is one."""
        look = self._look
        parts = [self._frame(event(self._role(index))) for index in range(look.n)]
        if look.echo:
            for index in range(look.n):
                choice = {
                    "index": index,
                    "delta": {"content": look.echo},
                    "logprobs": None,
                    "finish_reason": None,
                }
                parts.append(self._frame(event(self._document(choice, produced=0))))
        return b"".join(parts)

    def token(self, sample: Sample, index: int) -> bytes:
        """Token number `index`."""
        output = sample.output
        last = index + 1 == output.length
        if self._words and not last:
            return self._words[sample.index].join(engine_text.word_bytes(output.token_ids[index]))
        finish = output.finish_reason if last else None
        return self._frame(event(self._content(sample, index, output.text_of(index), finish)))

    def cut_short(self, sample: Sample, reason: str) -> bytes:
        """An empty chunk with the reason."""
        choice = self._choice(sample.index, "", None, None) | {"finish_reason": reason, "stop_reason": None}
        return self._frame(event(self._document(choice, produced=sample.produced)))

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices."""
        document = {**self._head(), "choices": [], "usage": usage.last_chunk()}
        return self._frame(event({**document, "system_fingerprint": self._look.fingerprint}))

    def _word_frame(self, sample: Sample) -> WordFrame:
        def document(text: str) -> dict[str, Any]:
            return self._document(self._choice(sample.index, text, None, None), produced=0)

        return WordFrame(document, self._frame, engine_text.WORD_CHARS)

    def _role(self, index: int) -> dict[str, Any]:
        look = self._look
        choice = {
            "index": index,
            "delta": {"role": look.role, "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        document = self._document(choice, produced=0)
        document["prompt_token_ids"] = list(look.prompt) if look.token_ids else None
        document["prompt_text"] = look.shown_prompt()
        return document

    def _content(self, sample: Sample, index: int, text: str, finish: str | None) -> dict[str, Any]:
        look = self._look
        token = sample.output.token_ids[index]
        logprobs = None
        if look.logprobs is not None:
            logprobs = chat_logprobs((token,), look.logprobs, as_ids=look.tokens_as_ids)
        choice = self._choice(sample.index, text, logprobs, [token] if look.token_ids else None)
        if finish is None:
            return self._document(choice, produced=index + 1)
        ids = choice.pop("token_ids")
        choice |= {"finish_reason": finish, "stop_reason": sample.output.stop_reason, "token_ids": ids}
        document = self._document(choice, produced=index + 1)
        if not look.include_usage:
            document["system_fingerprint"] = look.fingerprint
        return document

    @staticmethod
    def _choice(index: int, text: str, logprobs: dict[str, Any] | None, ids: list[int] | None) -> dict[str, Any]:
        return {
            "index": index,
            "delta": {"content": text},
            "logprobs": logprobs,
            "finish_reason": None,
            "token_ids": ids,
        }

    def _head(self) -> dict[str, Any]:
        look = self._look
        return {
            "id": look.request_id,
            "object": "chat.completion.chunk",
            "created": look.created,
            "model": look.model,
        }

    def _document(self, choice: dict[str, Any], *, produced: int) -> dict[str, Any]:
        document = {**self._head(), "choices": [choice]}
        if self._look.continuous_usage:
            usage = Usage(len(self._look.prompt), produced, None).so_far()
            document["usage"] = {**usage, "completion_tokens_details": None}
        return document
