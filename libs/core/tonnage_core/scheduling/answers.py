"""How much prompt work the answers in flight on an endpoint can wait for before their tokens come too slowly.

An engine computes prompts between the tokens of its answers. Each token of an answer may take its TPOT limit longer, so
an answer of n tokens stands n - 1 times what the limit leaves beside a decoding step: a short one is spoilt by one long
prompt. Engines take prompts in order. So every answer has one number, fixed when its request comes: how much work may
have been sent to its endpoint, its own included, when it is spoilt.
"""

from bisect import bisect_left, bisect_right, insort
from typing import Final

ATTENTION_TOKENS: Final = 26_624
"""Context at which a prompt token's attention costs as much as the rest of its computation.

Llama-3.1-8B: 16 GFLOP at 640 TFLOP/s, 24 us, against 0.5 MFLOP a query-key pair at 593 TFLOP/s, 0.9 ns. Larger models
come later to it (70B near 54,000), smaller ones sooner.
"""

PATIENCE: Final = 1_350
"""Prompt tokens that one token of an answer can wait for: 50 ms of TPOT, a decoding step of 13 ms taken off, at 40,000
tokens a second, Llama-3.1-8B's on an H200; a tenth less, since neither is known so well. On a slower GPU a token of
work counts for more (`Candidate.gpu_speed`).
"""


def prompt_work(uncached: int, cached: int) -> int:
    """Computing `uncached` prompt tokens behind `cached` ones, in tokens of a short prompt: attention grows with what
    is before them (half of themselves in the mean)."""
    return uncached + uncached * (2 * cached + uncached) // (2 * ATTENTION_TOKENS)


class Answers:
    """The answers in flight on one endpoint, in the order in which work sent there spoils them."""

    __slots__ = ("_limits", "_sent")

    def __init__(self) -> None:
        self._sent = 0
        self._limits: list[int] = []

    def __len__(self) -> int:
        return len(self._limits)

    def begin(self, work: int, output_tokens: int) -> int:
        """A request was sent: `work` to compute, then an answer of at most `output_tokens`. Returns what ends it."""
        self._sent += work
        limit = self._sent + PATIENCE * max(0, output_tokens - 1)
        insort(self._limits, limit)
        return limit

    def end(self, limit: int) -> None:
        """The answer that `begin` returned `limit` for has ended."""
        del self._limits[bisect_left(self._limits, limit)]

    def relieve(self, work: int) -> None:
        """So much of the work sent is done elsewhere, or (negative) is to be done here after all."""
        self._sent -= work

    def spoilt_by(self, work: int) -> int:
        """How many more answers would be too slow with `work` sent here now; those lost already do not count."""
        limits, sent = self._limits, self._sent
        return bisect_right(limits, sent + work) - bisect_right(limits, sent)
