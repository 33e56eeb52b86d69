"""The chunks of a /v1/completions stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_core import engine_text
from tonnage_sim.api.chunks import WordFrame, event
from tonnage_sim.api.logprobs import completion_logprobs
from tonnage_sim.api.usage import Usage
from tonnage_sim.engine.sample import Sample
from tonnage_sim.http1.exchange import Exchange


@dataclass(frozen=True, slots=True)
class CompletionLook:
    """How a completion is shown."""

    request_id: str
    created: int
    model: str
    fingerprint: str
    prompts: Sequence[Sequence[int]]
    n: int
    echo: str | None = None
    """"prompt": before the answer; "only": the prompt and no answer; None: not at all."""
    logprobs: int | None = None
    token_ids: bool = False
    tokens_as_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    @property
    def plain(self) -> bool:
        """The usual token's chunk differs from its neighbour only in the text."""
        return not (self.echo or self.logprobs is not None or self.token_ids or self.continuous_usage)

    def prompt_of(self, sample: Sample) -> Sequence[int]:
        """The prompt that `sample` answers."""
        return self.prompts[sample.index // self.n]


class CompletionChunks:
    """Chunks in vLLM's field order."""

    def __init__(self, look: CompletionLook, exchange: Exchange, samples: Sequence[Sample]) -> None:
        self._look = look
        self._frame = exchange.chunk
        self._words: list[WordFrame] = []
        self._offsets = [0] * len(samples)
        if look.plain:
            self._words = [self._word_frame(sample) for sample in samples]

    def opening(self, first: Sample) -> bytes:
        """Nothing comes before the first token."""
        return b""

    def token(self, sample: Sample, index: int) -> bytes:
        """Token number `index`."""
        output = sample.output
        if self._words and index + 1 < output.length:
            return self._words[sample.index].join(engine_text.word_bytes(output.token_ids[index]))
        finish = output.finish_reason if index + 1 == output.length else None
        return self._chunk(sample, index, output.text_of(index), finish)

    def cut_short(self, sample: Sample, reason: str) -> bytes:
        """An empty chunk with the reason."""
        choice = self._choice(sample.index, "", None, reason, None, None, None)
        return self._frame(event(self._document([choice], fingerprint=not self._look.include_usage)))

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices."""
        document = {**self._document([]), "usage": usage.last_chunk(), "system_fingerprint": self._look.fingerprint}
        return self._frame(event(document))

    def _word_frame(self, sample: Sample) -> WordFrame:
        def document(text: str) -> dict[str, Any]:
            return self._document([self._choice(sample.index, text, None, None, None, None, None)])

        return WordFrame(document, self._frame, engine_text.WORD_CHARS)

    def _chunk(self, sample: Sample, index: int, text: str, finish: str | None) -> bytes:
        look, output = self._look, sample.output
        shown: Sequence[int] = (output.token_ids[index],)
        prompt = look.prompt_of(sample)
        if look.echo and index == 0:
            shown = prompt if look.echo == "only" else (*prompt, *shown)
            text = engine_text.decode(prompt) + ("" if look.echo == "only" else text)
        choice = self._choice(
            sample.index,
            text,
            self._logprobs(sample.index, shown, started=bool(look.echo) and index == 0),
            finish,
            output.stop_reason if finish else None,
            list(prompt) if index == 0 and (look.token_ids or look.echo) else None,
            [output.token_ids[index]] if look.token_ids else None,
        )
        document = self._document([choice], fingerprint=finish is not None and not look.include_usage)
        if look.continuous_usage:
            document["usage"] = Usage(len(prompt), index + 1, None).so_far()
        return self._frame(event(document))

    def _logprobs(self, index: int, tokens: Sequence[int], *, started: bool) -> dict[str, Any] | None:
        look = self._look
        if look.logprobs is None:
            return None
        offset = self._offsets[index]
        made = completion_logprobs(
            tokens, look.logprobs, offset=offset, unknown_first=started, as_ids=look.tokens_as_ids
        )
        self._offsets[index] = offset + sum(map(len, made["tokens"]))
        return made

    def _document(self, choices: list[dict[str, Any]], *, fingerprint: bool = False) -> dict[str, Any]:
        look = self._look
        document: dict[str, Any] = {
            "id": look.request_id,
            "object": "text_completion",
            "created": look.created,
            "model": look.model,
            "choices": choices,
        }
        if fingerprint:
            document["system_fingerprint"] = look.fingerprint
        return document

    @staticmethod
    def _choice(
        index: int,
        text: str,
        logprobs: dict[str, Any] | None,
        finish: str | None,
        stop_reason: int | str | None,
        prompt_ids: list[int] | None,
        token_ids: list[int] | None,
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish,
            "stop_reason": stop_reason,
            "prompt_token_ids": prompt_ids,
            "token_ids": token_ids,
        }
