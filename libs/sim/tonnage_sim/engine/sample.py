"""One generation in the engine, and the way its tokens go back to the client."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tonnage_sim.engine.output import Output


class Sink(Protocol):
    """Where the samples of one HTTP request go."""

    def tokens(self, sample: "Sample", count: int) -> None:
        """`count` more tokens of `sample` came out; `sample.produced` counts them already."""
        ...

    def ended(self, sample: "Sample", reason: str) -> None:
        """`sample` will say no more: `reason` is "stop", "length" or "abort"."""
        ...


@dataclass(slots=True, eq=False)
class Sample:
    """One of a request's outputs. Times are engine seconds."""

    request_id: str
    index: int
    """The choice it is."""
    prompt_tokens: int
    output: Output
    sink: Sink
    parent: "Parent"
    adapter: str | None = None
    salt: str | None = None
    max_tokens: int = 0
    arrived_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    produced: int = 0
    cached_tokens: int | None = None
    """Prompt tokens found in the cache; None until it is scheduled."""
    preemptions: int = 0
    prompt: Sequence[int] = ()
    """Ids of the prompt; kept only where KV events tell them."""


@dataclass(slots=True, eq=False)
class Parent:
    """What the `n` samples of one prompt share."""

    n: int
    unfinished: int = 0
    longest: int = 0
    """Tokens of the longest finished sample."""
    request_ids: list[str] = field(default_factory=list)
