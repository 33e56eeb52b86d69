"""What goes into the engine model and what comes out: configuration, requests, step results, counters.

Units: tokens for lengths, seconds for times (the caller's clock), shares 0..1 for usage.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

BlockKey: TypeAlias = bytes | int
"""A chained block hash: equal keys mean equal tokens from the first one on.

Live engines use the 16-byte digests of `prefix_index.block_hash`; trace runs may use non-negative integers. Negative
integers are the engine's own private keys.
"""

Policy: TypeAlias = Literal["fcfs", "priority"]
Batching: TypeAlias = Literal["continuous", "static"]
Preemption: TypeAlias = Literal["recompute", "swap"]
FinishReason: TypeAlias = Literal["length", "stop", "abort"]
OutputToken: TypeAlias = Callable[[int, int], int]
"""(sample, index) -> token id of the index-th generated token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one engine is set up; names and defaults follow vLLM's.

    `num_blocks` counts physical blocks as vLLM does: one of them is the null block, never handed out.
    `adapter_slots` is vLLM's max_loras (0: adapters are off), `adapter_host_slots` its max_cpu_loras.
    """

    num_blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    """Longest prefill chunk of one request in one step, tokens; 0: only the budget limits it."""
    policy: Policy = "fcfs"
    batching: Batching = "continuous"
    preemption: Preemption = "recompute"
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    """Steps are scheduled ahead of outputs: a request that stops by itself has had one more token scheduled by then."""
    swap_blocks: int | None = None
    """Host blocks for swapped requests; None: no limit. When they run out, recompute."""
    adapter_slots: int = 0
    adapter_host_slots: int = 0
    adapter_load_s: float = 0.02
    """Host memory to GPU slot; the step waits for it."""
    adapter_fetch_s: float = 0.2
    """Storage to host memory, on top of the load, when the host does not hold the adapter."""
    step_jitter: float = 0.0
    """Step times vary uniformly by up to this share either way, from the engine's seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One request, with exactly as much about its text as caching needs.

    `block_hashes` holds the chained keys of the prompt's full blocks; `tail` the tokens after the last full block
    (may be left empty when `output_token` is None). `output_tokens` is how many tokens each sample will generate.
    With `output_token` None, blocks of generated tokens are cached under private keys that match nothing else.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    block_hashes: Sequence[BlockKey] = ()
    tail: tuple[int, ...] = ()
    finish_reason: FinishReason = "length"
    n: int = 1
    priority: int = 0
    """Lower runs first under the priority policy."""
    adapter: str | None = None
    salt: str | None = None
    output_token: OutputToken | None = None


@dataclass(frozen=True, slots=True)
class RowResult:
    """What one step did for one request's sample."""

    request_id: str
    sample: int
    prefill_tokens: int = 0
    """Prompt (or recomputed) tokens computed in this step."""
    new_tokens: tuple[tuple[int, int], ...] = ()
    """(sample, index) of each token that came out; the row that ends a prompt of `n` samples carries one each."""
    finished: tuple[int, ...] = ()
    """Samples that ended with this step."""
    finish_reason: FinishReason | None = None
    """Set once the request's last sample has ended."""
    preempted: bool = False
    hit_tokens: int | None = None
    """Prompt tokens found in the prefix cache; set in the step that first schedules the request, else None."""
    first_scheduled: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """One engine iteration: when it ran and what it did. Its outputs exist from `end_s` on."""

    start_s: float
    duration_s: float
    rows: tuple[RowResult, ...]
    scheduled_tokens: int
    deferred: tuple[str, ...] = ()
    """Requests passed over because their adapter had no slot in this batch."""

    @property
    def end_s(self) -> float:
        """When the outputs are there, on the caller's clock."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """One finished request as the engine saw it; times in seconds on the caller's clock."""

    request_id: str
    submitted_s: float
    scheduled_s: float | None
    first_token_s: float | None
    finished_s: float
    prompt_tokens: int
    hit_tokens: int
    output_tokens: int
    """Over all samples."""
    preemptions: int
    finish_reason: FinishReason
    last_token_s: float | None = None
    gaps_s: Sequence[float] = ()
    """Times between successive tokens of one sample; empty unless the engine was asked to keep them."""


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started; they only grow."""

    prompt_tokens: int = 0
    """Prompt tokens of requests whose prompt has been computed."""
    query_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    hit_tokens: int = 0
    """Of those, found."""
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0
    evicted_blocks: int = 0
    copied_blocks: int = 0
    """Partial blocks copied on write between samples."""
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    adapter_loads: int = 0
    adapter_fetches: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot: what an engine's gauges show between two steps."""

    running: int
    waiting: int
    deferred: int
    """Of the waiting ones, those passed over for want of an adapter slot since they came."""
    kv_usage: float
    """Share of usable blocks held by requests, 0..1; cached blocks nobody holds count as free."""
    cached_blocks: int
    running_adapters: Mapping[str, int] = field(default_factory=dict)
    waiting_adapters: Mapping[str, int] = field(default_factory=dict)
    counters: EngineCounters = field(default_factory=EngineCounters)
