"""What a sample will say: drawn from its seed when it is submitted, so that stops are known and the text is exact.

Two draws, both from the request's key (model, adapter, prompt and `seed`) and the sample's number, so that equal
requests get equal answers from any replica with the same simulator seed:

- the tokens are uniform over the vocabulary's words;
- without `ignore_eos` the answer ends of its own accord after L tokens, the last one the end-of-turn token, where
  L is lognormal with median `median` tokens and log-standard deviation `sigma`, at least `min_tokens` and 1. It ends
  earlier at `max_tokens` (finish reason "length") or at a stop string or token.
"""

import hashlib
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from tonnage_core import engine_text

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class LengthDraw:
    """The lognormal length of an answer that nothing cuts short."""

    median: float
    sigma: float

    def tokens(self, uniform: float) -> int:
        """The length at the quantile `uniform` in (0, 1), end-of-turn token included."""
        return max(1, round(self.median * math.exp(self.sigma * _NORMAL.inv_cdf(uniform))))


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a sample ends."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    include_string: bool = False


class Output:
    """One sample's whole output. Its tokens are made when first asked for: a waiting sample is a few numbers."""

    __slots__ = ("_draw", "_tokens", "finish_reason", "length", "stop_reason", "visible")

    def __init__(
        self,
        length: int,
        draw: Callable[[], Sequence[int]],
        *,
        visible: int,
        finish_reason: Literal["length", "stop"],
        stop_reason: int | str | None = None,
    ) -> None:
        """`length` in tokens; `visible` characters are shown, fewer than the text when a stop string cut it."""
        self.length = length
        self.visible = visible
        self.finish_reason: Literal["length", "stop"] = finish_reason
        self.stop_reason = stop_reason
        self._draw = draw
        self._tokens: Sequence[int] | None = None

    @property
    def token_ids(self) -> Sequence[int]:
        """Every token."""
        if self._tokens is None:
            self._tokens = self._draw()
        return self._tokens

    @property
    def text(self) -> str:
        """The whole text."""
        return engine_text.decode(self.token_ids)[: self.visible]

    def text_of(self, index: int) -> str:
        """What token number `index` adds to the text."""
        start = index * engine_text.WORD_CHARS
        return engine_text.word(self.token_ids[index])[: max(0, self.visible - start)]

    def text_until(self, count: int) -> str:
        """The text of the first `count` tokens."""
        return engine_text.decode(self.token_ids[:count])[: self.visible]


def draw_output(key: bytes, sample: int, rules: StopRules, lengths: LengthDraw) -> Output:
    """The output of sample number `sample` of the request with this key."""
    seed = key + sample.to_bytes(4, "little")
    length, ended = _length(seed, rules, lengths)
    output = Output(
        length,
        lambda: _words(seed, length, ended=ended),
        visible=(length - ended) * engine_text.WORD_CHARS,
        finish_reason="stop" if ended else "length",
    )
    return _stopped(output, rules) if rules.strings or rules.token_ids else output


def _length(seed: bytes, rules: StopRules, lengths: LengthDraw) -> tuple[int, bool]:
    """Tokens, and whether the last is the end-of-turn token."""
    if rules.ignore_eos:
        return rules.max_tokens, False
    draw = int.from_bytes(hashlib.blake2b(seed, digest_size=6, person=b"length").digest(), "little")
    natural = max(lengths.tokens((draw + 0.5) / (1 << 48)), rules.min_tokens, 1)
    return (natural, True) if natural <= rules.max_tokens else (rules.max_tokens, False)


def _words(seed: bytes, count: int, *, ended: bool) -> "array[int]":
    drawn = array("H")
    drawn.frombytes(hashlib.shake_128(seed).digest(2 * count))
    tokens = array("I", map(engine_text.WORD_BASE.__add__, drawn))
    if ended:
        tokens[-1] = engine_text.END_OF_TURN
    return tokens


def _stopped(output: Output, rules: StopRules) -> Output:
    """`output` up to the first stop string or stop token after `min_tokens` tokens."""
    tokens = output.token_ids
    by_token = next((i for i in range(rules.min_tokens, len(tokens)) if tokens[i] in rules.token_ids), None)
    text = output.text
    start = rules.min_tokens * engine_text.WORD_CHARS
    found = [(text.find(s, start) + len(s), s) for s in rules.strings if text.find(s, start) >= 0]
    end, string = min(found, default=(None, ""))
    if end is not None and (by_token is None or end <= by_token * engine_text.WORD_CHARS):
        visible = end if rules.include_string else end - len(string)
        return _cut(tokens, -(-end // engine_text.WORD_CHARS), visible, string)
    if by_token is None:
        return output
    return _cut(tokens, by_token + 1, min(output.visible, by_token * engine_text.WORD_CHARS), tokens[by_token])


def _cut(tokens: Sequence[int], length: int, visible: int, reason: int | str) -> Output:
    kept = tokens[:length]
    return Output(length, lambda: kept, visible=visible, finish_reason="stop", stop_reason=reason)
