"""Prompt tokens from prompt bytes, by a ratio learned from the usage that engines report for each model."""

from typing import Final

DEFAULT_BYTES_PER_TOKEN: Final = 4.0
"""English text under a 100k-entry BPE vocabulary, until an answer's usage says better."""
_STEP: Final = 0.05
_LEAST: Final = 0.5
_MOST: Final = 64.0
MIN_TOKENS: Final = 32
"""Shorter prompts teach nothing: a chat template's own tokens dominate them."""


class BytesPerToken:
    """An exponential mean of prompt bytes per reported prompt token, for each model."""

    __slots__ = ("_ratio",)

    def __init__(self) -> None:
        self._ratio: dict[str, float] = {}

    def ratio(self, model: str) -> float:
        """Bytes per token of `model`."""
        return self._ratio.get(model, DEFAULT_BYTES_PER_TOKEN)

    def known(self, model: str) -> bool:
        """Whether the ratio was learned."""
        return model in self._ratio

    def learn(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """An answer reported `prompt_tokens` for a prompt of `prompt_bytes`."""
        if prompt_tokens < MIN_TOKENS or prompt_bytes <= 0:
            return
        seen = min(_MOST, max(_LEAST, prompt_bytes / prompt_tokens))
        old = self._ratio.get(model)
        self._ratio[model] = seen if old is None else old + _STEP * (seen - old)
