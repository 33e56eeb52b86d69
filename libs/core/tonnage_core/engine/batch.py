"""What a step's time depends on: the batch as a few sums, and the port through which the engine asks for the time."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Batch:
    """One iteration's work, in tokens; sums over the rows of the batch.

    `prefill_pairs` counts query-key pairs of the prefill chunks (causal): chunk x context before + chunk(chunk+1)/2.
    """

    decode_rows: int = 0
    decode_context: int = 0
    """KV tokens read for decode rows, each row's own new token included."""
    prefill_tokens: int = 0
    prefill_context: int = 0
    """KV tokens read for prefill chunks, the chunk included."""
    prefill_pairs: int = 0
    prefill_chunks: int = 0
    sampled_rows: int = 0
    """Rows whose logits are computed."""

    def add_decode(self, context: int) -> None:
        """One row that computes one token and then has `context` tokens in its KV."""
        self.decode_rows += 1
        self.decode_context += context
        self.sampled_rows += 1

    def add_prefill(self, chunk: int, before: int, sampled: int) -> None:
        """A chunk of `chunk` tokens after `before` computed ones; `sampled` tokens come out of its end (0 or more)."""
        self.prefill_chunks += 1
        self.prefill_tokens += chunk
        self.prefill_context += before + chunk
        self.prefill_pairs += chunk * before + chunk * (chunk + 1) // 2
        self.sampled_rows += min(sampled, 1)


class StepClock(Protocol):
    """How long things take; `step_time.StepTime` is the roofline one."""

    def seconds(self, batch: Batch) -> float:
        """Time of one iteration, seconds."""
        ...

    def swap_seconds(self, tokens: int) -> float:
        """Time to move the KV of `tokens` tokens between host and GPU, one way, seconds."""
        ...
