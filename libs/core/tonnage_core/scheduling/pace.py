"""How fast an endpoint computes prompts, as the streams it begins show it."""

from typing import Final

FIRST_PACE: Final = 8000.0
"""Prompt tokens a second assumed before a stream was seen: an 8B model on a mid-range GPU."""
STEP: Final = 0.1
KNOWN: Final = 5
MIN_TOKENS: Final = 1024
"""Shorter prompts show the step time, not the pace."""


class PrefillPace:
    """`tokens_per_s` is a mean over the latest streams; `known` once there were enough for it to be no first guess."""

    __slots__ = ("_seen", "tokens_per_s")

    def __init__(self) -> None:
        self.tokens_per_s = FIRST_PACE
        self._seen = 0

    def learn(self, ahead_tokens: int, seconds: float) -> None:
        """A first token came `seconds` after its request was sent behind `ahead_tokens` of prompts, its own too."""
        if ahead_tokens >= MIN_TOKENS and seconds > 0:
            self._seen += 1
            self.tokens_per_s += max(STEP, 1 / self._seen) * (ahead_tokens / seconds - self.tokens_per_s)

    @property
    def known(self) -> bool:
        """Enough streams were seen."""
        return self._seen >= KNOWN
