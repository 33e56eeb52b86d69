"""Bodies of the API: the request, whose fields are the options of `tonnage bench`, and the answers."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tonnage_core.benchmarking.capacity import SearchSettings
from tonnage_core.benchmarking.series import Series

TEXT_LIMIT = 16 << 20


class Document(BaseModel):
    """Closed to unknown fields; numbers are finite, and no text or truth value stands for one."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True, frozen=True
    )


class BenchRequest(Document):
    """A series of runs against one endpoint; defaults and meanings are those of `tonnage bench`.

    One load: `rate`, `trace_text` or `users`; or a series: `capacity` (from `rate` on), `sweep`, `sweep_users`. All
    stages of a series are made one after another.
    """

    url: str = Field(min_length=1, max_length=2000)
    """Base URL of an OpenAI endpoint; its host must be among the service's targets."""
    model: str | None = Field(default=None, max_length=500)
    """Model to ask for; the first of /v1/models when empty."""
    api: Literal["completions", "chat", "embeddings"] = "completions"
    """What is asked."""
    prompt_format: Literal["text", "tokens"] = "text"
    """Prompts as text or as token ids."""
    timeout_s: float = Field(default=600.0, gt=0, le=86400)
    """Wall seconds a request has."""
    no_ignore_eos: bool = False
    """Leave ignore_eos out."""
    watch_urls: list[str] = Field(default=[], max_length=64)
    """Engines or agents whose /metrics go into the report."""
    rate: float | None = Field(default=None, gt=0, le=1e6)
    """Open loop: requests/s."""
    duration_s: float = Field(default=60.0, gt=0, le=86400)
    """Open loop: how long."""
    arrivals: Literal["poisson", "gamma", "constant", "ramp"] = "poisson"
    """Open loop: the process."""
    cv: float = Field(default=1.0, gt=0, le=20)
    """Gamma arrivals: variation of gaps."""
    end_rate: float | None = Field(default=None, gt=0, le=1e6)
    """Ramp: requests/s at the end."""
    trace_text: str | None = Field(default=None, max_length=TEXT_LIMIT)
    """Open loop: a Mooncake or Azure trace."""
    rate_scale: float = Field(default=1.0, gt=0, le=1e6)
    """Trace: times its rate."""
    limit: int | None = Field(default=None, ge=1)
    """Trace: only the first N requests."""
    users: int | None = Field(default=None, ge=1, le=100_000)
    """Closed loop: so many users."""
    requests: int = Field(default=200, ge=1, le=5_000_000)
    """Closed loop: requests in all."""
    requests_per_user: int = Field(default=1, ge=1, le=10_000)
    """`sweep_users`: at least so many for each user."""
    think_s: float = Field(default=0.0, ge=0, le=86400)
    """Closed loop: mean think time."""
    processes: int = Field(default=1, ge=1, le=64)
    """Generator processes."""
    seed: int = Field(default=0, ge=-(2**53), le=2**53)
    """Everything random is drawn from it."""
    input_tokens: str = Field(default="constant:512", max_length=20_000)
    """Fresh prompt tokens."""
    output_tokens: str = Field(default="constant:128", max_length=20_000)
    """Output tokens."""
    lengths_text: str | None = Field(default=None, max_length=TEXT_LIMIT)
    """A trace or log to draw lengths from."""
    classes: list[str] = Field(default=[], max_length=64)
    """NAME=SHARE/INPUT/OUTPUT."""
    prefix_tokens: int = Field(default=0, ge=0, le=10_000_000)
    """Shared prefix before the fresh tokens."""
    prefix_share: float = Field(default=1.0, ge=0, le=1)
    """Share of requests with it."""
    prefix_depth: int = Field(default=1, ge=1, le=16)
    """Levels of its tree."""
    prefix_branching: int = Field(default=1, ge=1, le=10_000)
    """Children of each node."""
    turns: int = Field(default=1, ge=1, le=1000)
    """Turns of a session."""
    turn_think_s: float | None = Field(default=None, ge=0, le=86400)
    """Mean time between turns; when empty 5 s, in a closed loop `think_s`."""
    tenants: list[str] = Field(default=[], max_length=1000)
    """NAME=WEIGHT."""
    adapters: list[str] = Field(default=[], max_length=1000)
    """NAME=WEIGHT."""
    cancel_share: float = Field(default=0.0, ge=0, le=1)
    """Clients that go away."""
    cancel_after_s: float = Field(default=1.0, ge=0, le=86400)
    """After so long."""
    slo_ttft_ms: float = Field(default=2000.0, gt=0, le=1e9)
    """Limit of the time to the first token."""
    slo_tpot_ms: float = Field(default=50.0, gt=0, le=1e9)
    """Limit of the time per output token."""
    slo_percentile: float = Field(default=99.0, gt=0, lt=100)
    """Percentile that must meet the limits."""
    warmup_s: float | None = Field(default=None, ge=0, le=86400)
    """Drop the first seconds; found when empty."""
    time_scale: float = Field(default=1.0, gt=0, le=1000)
    """A simulated engine's own."""
    capacity: bool = False
    """Find the highest rate that meets the SLO, from `rate` on."""
    tolerance: float = Field(default=0.05, ge=0.001, le=0.5)
    """How near the ends of the bracket must come."""
    most_runs: int = Field(default=12, ge=1, le=100)
    """Runs that the search may take."""
    repeats: int = Field(default=1, ge=1, le=10)
    """Runs that must agree."""
    sweep: list[float] = Field(default=[], max_length=100)
    """Open loop at each of these rates."""
    sweep_users: list[int] = Field(default=[], max_length=100)
    """Closed loop at each of these numbers of users; each is a bench point when model and GPU are named."""
    tasks_text: str | None = Field(default=None, max_length=TEXT_LIMIT)
    """Accuracy gate: JSONL of prompt and answer."""
    baseline_url: str | None = Field(default=None, max_length=2000)
    """Accuracy gate: the endpoint whose answers are the measure."""
    catalogue_model: str = Field(default="", max_length=200)
    """Bench points: the model's catalogue name."""
    gpu: str = Field(default="", max_length=200)
    """Bench points: the GPU's catalogue name."""
    engine: str = Field(default="", max_length=64)
    """Bench points: engine and version."""
    precision: str = Field(default="", max_length=32)
    """Bench points: weights' precision."""
    tp: int = Field(default=1, ge=1, le=64)
    """Bench points: tensor parallel size."""

    @field_validator("sweep")
    @classmethod
    def _rates(cls, rates: list[float]) -> list[float]:
        if any(not 0 < rate <= 1e6 for rate in rates):
            raise ValueError("each rate is above 0 and at most 1e6 requests/s")
        return rates

    @field_validator("sweep_users")
    @classmethod
    def _users(cls, users: list[int]) -> list[int]:
        if any(not 1 <= count <= 100_000 for count in users):
            raise ValueError("each number of users is from 1 to 100000")
        return users

    @model_validator(mode="after")
    def _one_load(self) -> "BenchRequest":
        loads = sum((self.rate is not None, self.trace_text is not None, self.users is not None))
        series = bool(self.capacity or self.sweep or self.sweep_users)
        if loads > 1 or (loads == 0 and not series):
            raise ValueError("give one load: a rate (open loop), a trace, or users (closed loop)")
        if self.capacity and self.rate is None:
            raise ValueError("capacity needs rate: the first rate to try")
        if (self.capacity or self.sweep) and self.arrivals == "ramp":
            raise ValueError("a series of rates needs arrivals at one rate: poisson, gamma or constant")
        if series and self.trace_text is not None:
            raise ValueError("a series is of rates or users: leave the trace out")
        waits = self.think_s > 0 or (self.turns > 1 and bool(self.turn_think_s))
        if waits and self.sweep_users and self.gpu and self.catalogue_model:
            raise ValueError("bench points are of users who do not wait: leave think_s and turn_think_s out")
        if (self.tasks_text is None) != (self.baseline_url is None):
            raise ValueError("the accuracy gate needs both tasks_text and baseline_url")
        return self

    def series(self) -> Series:
        """Its runs. Raises `BadInputError` for a search that cannot end."""
        search = None
        if self.capacity and self.rate is not None:
            search = SearchSettings(self.rate, self.tolerance, self.most_runs, self.repeats)
        return Series(search, tuple(self.sweep), tuple(self.sweep_users), self.tasks_text is not None, self.seed)


class RunDocument(Document):
    """One run of a job."""

    number: int
    """From 0."""
    kind: str
    """search, rate, users, once or gate."""
    rate_rps: float | None
    """Open loop: requests/s."""
    users: int | None
    """Closed loop: users."""
    reason: str
    """Why it is made."""
    state: Literal["waiting", "claimed", "done", "cancelled"]
    """Where it is."""
    attempt: int
    """From 1; more than 1: workers died."""
    worker: str | None
    """Who makes or made it."""
    elapsed_s: float | None
    """Since it began, by the worker's last word."""
    met: bool | None
    """Whether it met the SLO; null: not done, or void."""


class JobDocument(Document):
    """How far a job is."""

    id: str
    """Names the job in the other paths."""
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    """Where it is."""
    created_s: float
    """Seconds since 1970."""
    ended_s: float | None
    """Seconds since 1970."""
    url: str
    """The endpoint measured."""
    error: str | None
    """Why it failed, or what holds it up."""
    runs_done: int
    """Runs whose results are kept."""
    runs_most: int
    """Runs it may take at most."""
    runs: list[RunDocument]
    """Every run, in order."""
    points: Literal["none", "kept", "pending", "sent", "refused"]
    """What became of its bench points; `kept`: no planner is named."""


class JobList(Document):
    """Every job kept, oldest first."""

    jobs: list[JobDocument]
    """The jobs."""


class ReportDocument(BaseModel):
    """The report of a job, as `tonnage bench --json` prints it."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class StepRef(Document):
    """Names one attempt of one run."""

    job: str = Field(max_length=64)
    """The job."""
    number: int = Field(ge=0, le=10_000)
    """The run."""
    attempt: int = Field(ge=1, le=1000)
    """The attempt."""


class WorkerWord(Document):
    """What a worker says of a run."""

    ref: StepRef
    """Which one."""
    worker: str = Field(min_length=1, max_length=200)
    """Who."""
    elapsed_s: float = Field(default=0.0, ge=0)
    """Seconds since it began."""
    result: dict[str, Any] | None = None
    """The result, when it is over."""
