"""Speculative decoding: tokens a step, speed-up, the best draft length, and what drafts cost.

A drafter proposes k tokens, the target scores all k + 1 places in one pass and keeps the longest accepted run plus one
token of its own. Acceptance of each drafted token is taken as independent with probability `acceptance`. Sources:
Leviathan, Kalman, Matias 2023 (expected tokens, speed-up); Cai et al. 2024 (Medusa) and Li et al. 2024 (EAGLE) for what
is drafted with what; section 7 of the LLM inference guide, whose table is a golden test.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tonnage_core.errors import BadInputError

Method = Literal["ngram", "draft", "medusa", "eagle"]
LONGEST_DRAFT = 16


def expected_tokens(acceptance: float, drafted: int) -> float:
    """Tokens that one target pass yields: (1 - a^(k+1)) / (1 - a), from 1 to k + 1."""
    _check(acceptance, drafted)
    if acceptance == 1:
        return drafted + 1.0
    return float((1 - acceptance ** (drafted + 1)) / (1 - acceptance))


def expected_tokens_at(acceptances: Sequence[float]) -> float:
    """The same where each place has an acceptance of its own, as Medusa's heads do: 1 + sum of products."""
    return 1 + sum(math.prod(acceptances[: place + 1]) for place in range(len(acceptances)))


def acceptance_of(tokens_per_pass: float, drafted: int) -> float:
    """The acceptance behind a measured mean of tokens a pass (1 to k + 1), by bisection."""
    if not 1 <= tokens_per_pass <= drafted + 1:
        raise BadInputError(f"{tokens_per_pass:g} tokens a pass with {drafted} drafted; it must be 1 to {drafted + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, drafted) < tokens_per_pass else (low, middle)
    return (low + high) / 2


def speedup(acceptance: float, drafted: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Expected tokens over the cost of getting them, in target steps: E / (verify + k c).

    `draft_cost` is one draft step, `verify_cost` one pass over k + 1 places, both over one plain decode step: 1 while
    the step only reads weights, towards k + 1 once it is limited by compute.
    """
    return expected_tokens(acceptance, drafted) / (verify_cost + drafted * draft_cost)


def best_draft(acceptance: float, draft_cost: float, longest: int = LONGEST_DRAFT) -> tuple[int, float]:
    """(k, speed-up) of the best draft length while verifying costs one step; (0, 1.0) where no draft pays."""
    options = [(drafted, speedup(acceptance, drafted, draft_cost)) for drafted in range(1, longest + 1)]
    return max([(0, 1.0), *options], key=lambda option: option[1])


def tree_acceptance(acceptance: float, width: int) -> float:
    """Acceptance of a place with `width` candidates, each as likely as the first: 1 - (1 - a)^w, an upper bound."""
    return 1 - (1 - acceptance) ** width


@dataclass(frozen=True, slots=True)
class Drafter:
    """How tokens are drafted; parameters are those a draft step reads beside the target.

    `acceptance` is a typical published value for general chat, not a promise: measure it. `serial`: each drafted token
    needs a step of its own; otherwise all of them come out of one.
    """

    method: Method
    acceptance: float
    parameters: float = 0.0
    serial: bool = True

    def draft_parameters(self, drafted: int) -> float:
        """Parameters read to draft k tokens."""
        return self.parameters * (drafted if self.serial or self.method == "medusa" else 1)


def ngram(acceptance: float = 0.35) -> Drafter:
    """Copies spans of the prompt: free, and good only where the output repeats the input."""
    return Drafter("ngram", acceptance, 0.0, serial=False)


def draft_model(parameters: float, acceptance: float = 0.7) -> Drafter:
    """A separate small model of the same tokenizer, one step a drafted token."""
    return Drafter("draft", acceptance, parameters)


def medusa(hidden: int, vocab: int, acceptance: float = 0.6) -> Drafter:
    """Heads on the target's last hidden state, one a place: a hidden x hidden block and an output head each."""
    return Drafter("medusa", acceptance, float(hidden * hidden + hidden * vocab), serial=False)


def eagle(layer_parameters: float, hidden: int, acceptance: float = 0.75) -> Drafter:
    """One decoder layer over the target's hidden states, plus the projection that joins state and token embedding."""
    return Drafter("eagle", acceptance, layer_parameters + 2.0 * hidden * hidden)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best draft length of one drafter at one batch; `speedup` 1 and `drafted` 0: plain decoding is better."""

    method: Method
    drafted: int
    tokens_per_pass: float
    draft_s: float
    verify_s: float
    plain_s: float
    speedup: float


def best_choice(
    drafter: Drafter,
    pass_s: Callable[[int], float],
    draft_s: Callable[[int], float],
    longest: int = 8,
) -> Choice:
    """The draft length with the highest speed-up at a batch.

    `pass_s(n)` is the target's step with n places a row (n = 1 is plain decoding), `draft_s(k)` the time to draft k
    tokens; both seconds at that batch, so a full batch, which is limited by compute, shows why drafts stop paying.
    """
    plain = pass_s(1)
    best = Choice(drafter.method, 0, 1.0, 0.0, plain, plain, 1.0)
    for drafted in range(1, longest + 1):
        tokens = expected_tokens(drafter.acceptance, drafted)
        spent, verify = draft_s(drafted), pass_s(drafted + 1)
        gain = tokens * plain / (spent + verify)
        if gain > best.speedup:
            best = Choice(drafter.method, drafted, tokens, spent, verify, plain, gain)
    return best


def _check(acceptance: float, drafted: int) -> None:
    if not 0 <= acceptance <= 1:
        raise BadInputError(f"acceptance is {acceptance:g}; it must be from 0 to 1")
    if drafted < 0:
        raise BadInputError(f"{drafted} drafted tokens; give 0 or more")
