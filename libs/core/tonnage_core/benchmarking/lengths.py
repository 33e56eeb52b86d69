"""Token lengths: constant, uniform, lognormal by two percentiles, a histogram, or resampled from what was logged.

Written `constant:512`, `uniform:100-900`, `lognormal:1200,9000` (p50, p99), `histogram:128=0.5,1024=0.5`
(tokens=share).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from tonnage_core.errors import BadInputError
from tonnage_core.traces import MAX_TOKENS

if TYPE_CHECKING:
    from random import Random

Z99 = 2.3263478740408408
"""The standard normal's 99th percentile."""
FORMS = "constant:N, uniform:LOW-HIGH, lognormal:P50,P99 or histogram:TOKENS=SHARE,..."


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution: `kind` and its `numbers`; a histogram has `shares` beside them."""

    kind: str
    numbers: tuple[float, ...]
    shares: tuple[float, ...] = ()

    def draw(self, rng: "Random") -> int:
        """One length, at least 1 token."""
        if self.kind == "constant":
            value = self.numbers[0]
        elif self.kind == "uniform":
            value = rng.randint(int(self.numbers[0]), int(self.numbers[1]))
        elif self.kind == "lognormal":
            middle, high = self.numbers
            value = rng.lognormvariate(math.log(middle), math.log(high / middle) / Z99)
        elif self.kind == "histogram":
            value = rng.choices(self.numbers, cum_weights=tuple(accumulate(self.shares)))[0]
        else:
            value = rng.choice(self.numbers)
        return max(1, min(MAX_TOKENS, round(value)))

    @property
    def mean(self) -> float:
        """Tokens in the mean, before rounding."""
        if self.kind == "lognormal":
            middle, high = self.numbers
            spread = math.log(high / middle) / Z99
            return float(min(MAX_TOKENS, middle * math.exp(min(spread * spread / 2, 100.0))))
        weights = self.shares or (1.0,) * len(self.numbers)
        return math.fsum(n * w for n, w in zip(self.numbers, weights, strict=True)) / math.fsum(weights)


def parse_lengths(text: str) -> Lengths:
    """The distribution that `text` names; raises `BadInputError` that lists the forms."""
    kind, _, rest = text.strip().partition(":")
    try:
        found = _parsed(kind, rest)
    except ValueError as error:
        raise BadInputError(f"lengths {text!r} are none of {FORMS}") from error
    if any(not 0 < number <= MAX_TOKENS for number in found.numbers):
        raise BadInputError(f"lengths {text!r}: tokens are from 1 to {MAX_TOKENS}")
    return found


def resampled(lengths: Sequence[int]) -> Lengths:
    """The lengths of a trace or log, drawn from with equal chance."""
    if not lengths:
        raise BadInputError("no length to draw from: the log is empty")
    return Lengths("sample", tuple(float(each) for each in lengths))


def usage_log(data: bytes, name: str) -> tuple[Lengths, Lengths] | None:
    """Prompt and output lengths of a log of usage: JSON lines with `prompt_tokens` and `completion_tokens` (or
    `input_tokens` and `output_tokens`), on the line itself or in its `usage`, as OpenAI endpoints answer them.

    None when the first line is no such object. Raises `BadInputError` with the number of a later line that is none.
    """
    pairs: list[tuple[int, int]] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        found = _usage(line)
        if found is None:
            if not pairs:
                return None
            raise BadInputError(
                f"{name}: line {number} has no prompt_tokens and completion_tokens from 1 to {MAX_TOKENS}"
            )
        pairs.append(found)
    return (resampled([a for a, _ in pairs]), resampled([b for _, b in pairs])) if pairs else None


def _usage(line: bytes) -> tuple[int, int] | None:
    try:
        given = json.loads(line)
    except ValueError:
        return None
    inner = given.get("usage", given) if isinstance(given, dict) else None
    if not isinstance(inner, dict):
        return None
    prompt = inner.get("prompt_tokens", inner.get("input_tokens"))
    output = inner.get("completion_tokens", inner.get("output_tokens"))
    if type(prompt) is not int or type(output) is not int:
        return None
    return (prompt, output) if 0 < prompt <= MAX_TOKENS and 0 < output <= MAX_TOKENS else None


def _parsed(kind: str, rest: str) -> Lengths:
    if kind == "constant":
        return Lengths(kind, (float(int(rest)),))
    if kind == "uniform":
        low, high = (float(int(part)) for part in rest.split("-"))
        if low > high:
            raise ValueError
        return Lengths(kind, (low, high))
    if kind == "lognormal":
        middle, high = (float(part) for part in rest.split(","))
        if not high >= middle > 0:
            raise ValueError
        return Lengths(kind, (middle, high))
    if kind == "histogram":
        pairs = [part.split("=") for part in rest.split(",")]
        tokens, shares = tuple(float(int(a)) for a, _ in pairs), tuple(float(b) for _, b in pairs)
        if not all(math.isfinite(share) and share >= 0 for share in shares) or sum(shares) <= 0:
            raise ValueError
        return Lengths(kind, tokens, shares)
    raise ValueError(kind)
