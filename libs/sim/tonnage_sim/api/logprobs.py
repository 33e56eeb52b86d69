"""Made-up log-probabilities in the true shapes: the chosen token has one half, alternatives halve from there."""

import math
from collections.abc import Sequence
from typing import Any

from tonnage_core import engine_text

_HALF = math.log(0.5)
_STRIDE = 7919


def _alternatives(token: int, count: int) -> list[tuple[int, float]]:
    """The chosen token and `count` - 1 others, most likely first."""
    others = (engine_text.WORD_BASE + (token + _STRIDE * rank) % engine_text.WORDS for rank in range(1, count))
    return [(token, _HALF), *((other, _HALF * (rank + 2)) for rank, other in enumerate(others))]


def _shown(token: int, *, as_id: bool) -> str:
    return f"token_id:{token}" if as_id else engine_text.word(token)


def completion_logprobs(
    tokens: Sequence[int], top: int, *, offset: int = 0, unknown_first: bool = False, as_ids: bool = False
) -> dict[str, Any]:
    """The `logprobs` object of a completion choice; `unknown_first`: the prompt's first token has none."""
    texts = [_shown(token, as_id=as_ids) for token in tokens]
    offsets = [offset]
    for text in texts[:-1]:
        offsets.append(offsets[-1] + len(text))
    chosen: list[float | None] = [_HALF] * len(tokens)
    tops: list[dict[str, float] | None] = [
        {_shown(t, as_id=as_ids): p for t, p in _alternatives(token, max(1, top))} for token in tokens
    ]
    if unknown_first and tokens:
        chosen[0] = tops[0] = None
    return {"text_offset": offsets[: len(tokens)], "token_logprobs": chosen, "tokens": texts, "top_logprobs": tops}


def prompt_logprobs(tokens: Sequence[int], top: int) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` list: nothing for the first token."""
    rows: list[dict[str, Any] | None] = [None]
    for token in tokens[1:]:
        rows.append(
            {
                str(t): {"logprob": p, "rank": rank + 1, "decoded_token": engine_text.word(t)}
                for rank, (t, p) in enumerate(_alternatives(token, max(1, top)))
            }
        )
    return rows


def chat_logprobs(tokens: Sequence[int], top: int, *, as_ids: bool = False) -> dict[str, Any]:
    """The `logprobs` object of a chat choice."""

    def entry(token: int, probability: float) -> dict[str, Any]:
        text = engine_text.word(token)
        return {"token": _shown(token, as_id=as_ids), "logprob": probability, "bytes": list(text.encode())}

    return {
        "content": [
            {**entry(token, _HALF), "top_logprobs": [entry(t, p) for t, p in _alternatives(token, max(1, top))][:top]}
            for token in tokens
        ]
    }
