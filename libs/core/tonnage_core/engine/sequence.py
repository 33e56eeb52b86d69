"""One sample of a request while the engine has it, and the request that its samples belong to."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from tonnage_core.engine.types import BlockKey, EngineRequest


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request in the engine: what its samples have in common. Times are seconds on the caller's clock."""

    request: EngineRequest
    order: int
    submitted_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    hit_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    unfinished: int = 1
    announced: bool = False
    """Some step has reported the request as scheduled."""
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))
    """Times between successive tokens of one sample, over all samples; kept only when the engine is asked to."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample. `computed` tokens have their KV in `blocks`; `tokens` are known, prompt and generated."""

    live: LiveRequest
    sample: int
    prompt: int
    outputs: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    published: int = 0
    """Leading blocks that are in the prefix cache under this sequence's keys."""
    own_keys: list[BlockKey] = field(default_factory=list)
    """Keys of full blocks beyond the prompt's."""
    shares_tail: bool = False
    """The last, partly filled block may be held by other samples too: copy before writing."""
    swapped_tokens: int = 0
    """Tokens whose KV waits in host memory; 0 when not swapped out."""
    last_token_s: float = 0.0

    @property
    def request(self) -> EngineRequest:
        """The request this is a sample of."""
        return self.live.request

    @property
    def tokens(self) -> int:
        """Known tokens: the prompt's and the generated ones."""
        return self.prompt + self.outputs

    @property
    def decoding(self) -> bool:
        """Its next step computes one generated token."""
        return self.outputs > 0 and self.computed == self.prompt + self.outputs - 1

    @property
    def rank(self) -> tuple[int, int, int]:
        """Order under the priority policy: lower runs first, the highest is preempted first."""
        return (self.live.request.priority, self.live.order, self.sample)

    @property
    def samples_ahead(self) -> int:
        """Samples that will come out of this sequence's prompt: `n` before its first token, else 1."""
        return 1 if self.outputs else self.live.request.n

    def keys(self, start: int, stop: int) -> Iterator[BlockKey]:
        """Keys of full blocks `start` to `stop`, as far as they are known."""
        prompt = self.live.request.block_hashes
        if start >= len(prompt):
            return iter(self.own_keys[start - len(prompt) : stop - len(prompt)])
        return islice(chain(prompt, self.own_keys), start, stop)

    @property
    def known_keys(self) -> int:
        """How many full blocks have a key by now."""
        return len(self.live.request.block_hashes) + len(self.own_keys)
