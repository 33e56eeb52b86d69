"""Token counts of an answer, in the shapes vLLM gives whole answers and streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_sim.engine.sample import Sample


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request; `cached` is None when details are off, `created` where vLLM tells none (completions)."""

    prompt: int
    completion: int
    cached: int | None
    created: int | None = None

    def whole(self) -> dict[str, Any]:
        """In a whole answer: absent values are null."""
        details = None
        if self.cached is not None:
            details = {
                "cached_tokens": self.cached,
                "created_cache_tokens": self.created,
                "multimodal_tokens": None,
            }
        return {**self._counts(), "prompt_tokens_details": details, "completion_tokens_details": None}

    def last_chunk(self) -> dict[str, Any]:
        """In a stream's last chunk: absent values are left out."""
        if self.cached is None:
            return self._counts()
        details = {"cached_tokens": self.cached}
        if self.created is not None:
            details["created_cache_tokens"] = self.created
        return {**self._counts(), "prompt_tokens_details": details}

    def so_far(self) -> dict[str, Any]:
        """In every chunk, with continuous usage."""
        return self._counts()

    def _counts(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }


def created_tokens(sample: Sample, block_size: int) -> int:
    """Prompt tokens computed for `sample` that now stand in the cache: those in full blocks."""
    return max(0, sample.prompt_tokens // block_size * block_size - (sample.cached_tokens or 0))


def completion_tokens(samples: Sequence[Sample]) -> int:
    """Tokens all samples have produced."""
    return sum(sample.produced for sample in samples)
