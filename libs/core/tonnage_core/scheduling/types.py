"""What a scheduling decision reads and returns.

Token counts are integers, so that released counters return to exactly 0.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tonnage_core.errors import TonnageError
from tonnage_core.scheduling.answers import Answers

DECODE_WEIGHT: Final = 0.2
"""Work that one resident context token of a decoding request still causes, in prefill tokens.

Each step reads its keys and values: for Llama-3.1-8B on an H200 131,072 B at 3.6 TB/s, 36 ns, against 27 us to compute
a prompt token (16 GFLOP at 593 TFLOP/s). Over the 343 tokens of a mean Mooncake answer that is 0.46, and a request met
at a random moment has half of it ahead. In simulation (benchmarks/results/2026-11-29-router-weights.json) goodput is
within 3 % from 0.1 to 0.6, and 4 to 9 % lower at 0.04 and at 1.
"""

MIN_MATCH_TOKENS: Final = 128
"""Shorter matches count as none: they save under a few milliseconds, and must not pull everybody to one endpoint."""


class SchedulingError(TonnageError):
    """A profile names an unknown plugin, or a decision was asked over no candidates."""


class Reason(StrEnum):
    """Why a candidate was chosen; a label value, so the set stays small."""

    PREFIX = "prefix"
    LOAD = "load"
    HOME = "content_home"
    ONLY = "only_candidate"
    ROUND_ROBIN = "round_robin"
    POWER_OF_TWO = "power_of_two"
    SESSION = "session"
    HASH = "consistent_hash"
    OVERLOADED_HOME = "home_overloaded"


@dataclass(slots=True, eq=False)
class Candidate:
    """One endpoint, or one data-parallel rank of it. Its owner writes the fields; plugins only read them.

    `None` means unknown, and every plugin treats unknown as neutral, never as zero.
    """

    id: str
    """Unique and stable: the key of consistent hashing."""
    slot: int
    """Its bit in the prefix index: 0 and up, unique among live candidates."""
    models: frozenset[str] = frozenset()
    """Served model names; empty serves any."""
    healthy: bool = True
    draining: bool = False
    role: str = "both"
    """`both`, `prefill` or `decode`."""
    max_model_len: int | None = None
    """Context limit in tokens."""
    length_class: str | None = None
    """`long` takes prompts over the profile's boundary only, `short` the others only, None any."""
    kv_utilisation: float | None = None
    """Share of KV blocks in use, 0 to 1."""
    waiting: int | None = None
    """Requests in the engine's own queue."""
    gpu_speed: float | None = None
    """Speed relative to the fleet's best, 0 to 1."""
    cost: float | None = None
    """Relative price of an hour."""
    pressure: float = 0.0
    """0 free to 1 refusing: the endpoint answered 429 or 503 lately."""
    adapters: set[str] = field(default_factory=set)
    """Adapters resident or loading."""
    adapter_slots: int | None = None
    """Adapters it can hold at once."""
    requests: int = 0
    """Own count: requests reserved and not released."""
    decoding: int = 0
    """Own count: requests with a first token."""
    prefill_tokens: int = 0
    """Own count: uncached prompt tokens of requests without a first token."""
    decode_tokens: int = 0
    """Own count: context tokens of requests with a first token."""
    answers: Answers = field(default_factory=Answers)
    """Own account: how much more prompt work the requests in flight can wait for."""
    kv_block_size: int | None = None
    """Tokens of a KV block while its engine tells what it caches; None: what was routed to it is all that is known."""
    kv_complete: bool = True
    """What the engine tells covers all it caches; else what was routed counts too."""

    @property
    def load_tokens(self) -> float:
        """Work in flight, in prefill tokens."""
        return self.prefill_tokens + DECODE_WEIGHT * self.decode_tokens


class Room:
    """What an endpoint may have and still be given more."""

    __slots__ = ("prefill_tokens", "requests")

    def __init__(self, prefill_tokens: int, requests: int) -> None:
        self.prefill_tokens = prefill_tokens
        self.requests = requests

    def within(self, candidates: list[Candidate], matched: dict[int, int]) -> list[Candidate]:
        """Those that have less, and did not refuse work lately. A prompt may also wait behind fewer tokens than an
        endpoint's cache saves it (`matched`, by slot): it is no later there, and computes less."""
        tokens, requests = self.prefill_tokens, self.requests
        return [
            c
            for c in candidates
            if c.requests < requests
            and c.pressure < 1.0
            and (c.prefill_tokens < tokens or c.prefill_tokens < matched.get(c.slot, 0))
        ]

    def exists(self, candidates: list[Candidate]) -> bool:
        """Whether there is one. Asked at every event while requests wait: a call for each candidate is seen."""
        tokens, requests = self.prefill_tokens, self.requests
        return any(c.prefill_tokens < tokens and c.requests < requests and c.pressure < 1.0 for c in candidates)


@dataclass(slots=True, eq=False, init=False)
class SchedulingRequest:
    """What routing knows of a request. `matched` holds cached prompt tokens by candidate slot; absent is 0."""

    model: str
    prompt_tokens: int
    output_tokens: int
    """Expected or asked-for answer length, tokens."""
    adapter: str | None
    session: bytes | None
    """A caller-given session key."""
    prefix_key: bytes | None
    """Hash of the prompt's beginning, for consistent hashing without a session."""
    content_key: bytes | None
    """Hash of the whole prompt: names its home among endpoints that are otherwise alike."""
    sequence: int
    """Count of earlier requests of this pool: round robin's position."""
    matched: dict[int, int]
    room: Room | None
    """What a candidate must have room for, where any has; None: nothing."""

    def __init__(
        self,
        model: str,
        prompt_tokens: int,
        output_tokens: int = 0,
        *,
        adapter: str | None = None,
        session: bytes | None = None,
        prefix_key: bytes | None = None,
        matched: dict[int, int] | None = None,
        room: Room | None = None,
    ) -> None:  # written out: a generated one would not be compiled, and a request makes several such objects
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.adapter = adapter
        self.session = session
        self.prefix_key = prefix_key
        self.content_key = None
        self.sequence = 0
        self.matched = {} if matched is None else matched
        self.room = room


@dataclass(slots=True, eq=False, init=False)
class Decision:
    """The chosen candidate, why, and every score, for the explain API.

    `columns[name][i]` is the raw score of `candidates[i]`, `columns[name]` None where the scorer had no opinion;
    `totals` are the weighted sums of normalised scores, empty for pickers that do not score.
    """

    chosen: Candidate
    reason: Reason
    matched_tokens: int
    candidates: list[Candidate]
    columns: dict[str, list[float] | None]
    totals: list[float]
    number: int
    """By which it is kept; 0: it is not."""

    def __init__(
        self,
        chosen: Candidate,
        reason: Reason,
        matched_tokens: int,
        candidates: list[Candidate],
        columns: dict[str, list[float] | None],
        totals: list[float],
    ) -> None:
        self.chosen = chosen
        self.reason = reason
        self.matched_tokens = matched_tokens
        self.candidates = candidates
        self.columns = columns
        self.totals = totals
        self.number = 0
