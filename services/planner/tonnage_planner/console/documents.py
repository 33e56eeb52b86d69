"""The console's JSON answers. Unknown is null everywhere; ages are seconds."""

from typing import Any, Literal

from tonnage_planner.documents import Document, LoadDocument, NeedDocument, OutlookDocument, ReasonDocument

State = Literal["serving", "draining", "starting", "stale", "stuck", "down", "unknown"]


class PartDocument(Document):
    """One process beside the planner."""

    kind: Literal["router", "agent", "coldstart", "fleet"]
    """What it is."""
    url: str
    """Where it is asked."""
    state: Literal["up", "down", "waiting"]
    """waiting: it was not asked yet."""
    age_s: float | None
    """Since it last answered."""
    problem: str | None
    """Why it is not up."""


class ConsoleEndpoint(Document):
    """One endpoint as its engine's metrics and the routers say it."""

    id: str
    """The router's name of it, else host and port."""
    url: str
    """Base URL."""
    pool: str | None
    """Its pool; null when the planner does not list it."""
    state: State
    """Whether it serves."""
    problem: str | None
    """Why it does not serve."""
    gpu: str | None
    """`node/index` of its GpuProfile."""
    verdict: str | None
    """That GPU's verdict."""
    engine: str | None
    """vllm, sglang or trtllm, by its metric names."""
    running: float | None
    """Requests in its batch."""
    waiting: float | None
    """Requests in its queue."""
    kv_usage: float | None
    """Share of KV blocks in use."""
    hit_rate: float | None
    """Share of prompt tokens lately that its prefix cache held; null when none was looked up."""
    prompt_tok_s: float | None
    """Prompt tokens a second."""
    output_tok_s: float | None
    """Output tokens a second."""
    requests_s: float | None
    """Requests ended a second."""
    preemptions_s: float | None
    """Preemptions a second."""
    restarts: int | None
    """Times its counters went back."""
    age_s: float | None
    """Since its metrics were read."""
    routers: int
    """Routers that list it."""
    models: list[str]
    """Names it serves."""
    role: str | None
    """both, prefill or decode."""
    breaker: str | None
    """State of the router's breaker."""
    in_flight: float | None
    """Requests that routers have there."""
    load_tokens: float | None
    """Work that routers have there, in prompt tokens."""
    requests_total: float | None
    """Requests sent since the routers started."""
    failures_total: float | None
    """Of those, failed."""
    gpu_speed: float | None
    """Relative to the fleet's best."""
    adapters: list[str]
    """LoRA adapters it holds."""
    adapter_slots: int | None
    """How many it can hold."""
    index_blocks: int | None
    """Prefix blocks the router believes it holds."""
    max_model_len: int | None
    """Context limit, tokens."""
    exact_prefixes: bool | None
    """It tells its cache by KV events."""


class ConsolePool(Document):
    """A pool's replicas and why."""

    pool: str
    """Its name."""
    desired_replicas: int
    """Replicas it should have."""
    listed_endpoints: int
    """Endpoints there are."""
    known_endpoints: int
    """Endpoints whose load is known."""
    starting_endpoints: int
    """Endpoints that start."""
    min_replicas: int
    """Fewest, whatever the load."""
    max_replicas: int
    """Most, whatever the load."""
    moved_by: str | None
    """Signal that moved the target at the last decision."""
    asked_by: str | None
    """Signal that asks for the most replicas now."""
    decided_age_s: float
    """Since the last decision."""
    changed_age_s: float | None
    """Since the target last changed."""
    reasons: list[ReasonDocument]
    """Why, the settling reason last."""
    needs: list[NeedDocument]
    """What each signal asks for."""
    load: dict[str, LoadDocument]
    """The load by signal."""
    router_waiting: float | None
    """Requests waiting in the routers."""
    outlook: OutlookDocument | None
    """Load measured and forecast."""


class ConsoleGpu(Document):
    """One GPU of an agent's node."""

    agent: str
    """The agent's address."""
    node: str | None
    """Its node, once a profile was measured."""
    index: int | None
    """Its number there."""
    product: str | None
    """What it calls itself."""
    state: str | None
    """What the agent says of it."""
    detail: str | None
    """In words."""
    verdict: str | None
    """OK, WARN, FAIL or UNKNOWN; null: never probed."""
    verdict_reasons: list[str]
    """What the verdict rests on."""
    measured_at: str | None
    """When it was probed."""
    hbm_gbps: float | None
    """Measured memory rate, GB/s."""
    bf16_tflops: float | None
    """Measured matrix rate, TFLOP/s."""


class ConsoleStart(Document):
    """Weights that are being staged."""

    service: str
    """The cold-start service's address."""
    id: str | None
    """The job."""
    uri: str | None
    """What is staged."""
    state: str | None
    """waiting, running, done or failed."""
    phase: str | None
    """plan, wait, fetch, verify or done."""
    done_bytes: float | None
    """Bytes there."""
    total_bytes: float | None
    """Bytes in all."""
    bytes_per_s: float | None
    """Rate."""
    eta_s: float | None
    """Time left."""
    seconds: float | None
    """Time taken."""
    error: str | None
    """Why it failed."""


class ConsoleReplay(Document):
    """A trace that is being replayed through the local fleet."""

    trace: str | None
    """Its file."""
    policy: str | None
    """The router policy it runs under."""
    state: str | None
    """running or done."""
    total: int | None
    """Requests in all."""
    done: int | None
    """Requests that ended."""
    in_flight: int | None
    """Requests under way."""
    errors: int | None
    """Requests that failed."""
    speed: float | None
    """Trace seconds a second."""


class ConsoleProcess(Document):
    """A process of the local fleet."""

    name: str | None
    """Its name."""
    state: str | None
    """starting, ready, restarting or stopped."""
    restarts: int | None
    """Times it was started again."""


class ConsoleFleet(Document):
    """Everything the Fleet page shows."""

    schema_: str = "tonnage.console_fleet/1"
    """Kind of the document."""
    version: str
    """Version of Tonnage."""
    at: float
    """Unix time."""
    policy: str | None
    """The routers' policy."""
    list_error: str | None
    """Why the endpoint list could not be read."""
    parts: list[PartDocument]
    """The other parts."""
    parts_left_out: int
    """Addresses that are not asked."""
    pools: list[ConsolePool]
    """By name."""
    endpoints: list[ConsoleEndpoint]
    """At most as many as the settings say."""
    endpoints_total: int
    """All of them."""
    gpus: list[ConsoleGpu]
    """By agent."""
    agents: list[dict[str, Any]]
    """Each agent's mode and reason."""
    starts: list[ConsoleStart]
    """The latest, newest first."""
    starts_known: bool
    """False: no cold-start service answers, so that what starts is unknown."""
    replay: ConsoleReplay | None
    """Of the local fleet."""
    processes: list[ConsoleProcess]
    """Of the local fleet."""

    model_config = Document.model_config | {
        "alias_generator": lambda name: "schema" if name == "schema_" else name,
        "populate_by_name": True,
    }


class ConsoleHistory(Document):
    """The last minutes of a pool, in columns, oldest first."""

    pool: str | None
    """Null: the whole fleet."""
    at: list[float]
    """Unix times."""
    series: dict[str, list[float | None]]
    """Column by name; null where nothing was known."""


class ConsoleDecisions(Document):
    """The latest decisions of every router, newest first, without their candidates."""

    routers: list[PartDocument]
    """Each router and whether it answered."""
    decisions: list[dict[str, Any]]
    """As `/admin/decisions?candidates=false` has them, with `router`."""


class ConsoleDecision(Document):
    """One decision with every candidate's scores."""

    router: str
    """The router that made it."""
    decision: dict[str, Any]
    """As `/admin/decisions/{number}` has it."""


class ConsoleGpuName(Document):
    """A GPU of the catalogue."""

    name: str
    """Its name."""
    memory_gib: float
    """Its memory."""
    measured: bool
    """A GpuProfile of one is kept here."""


class ConsoleCatalogue(Document):
    """What a plan may name."""

    models: list[str]
    """Models of the catalogue."""
    gpus: list[ConsoleGpuName]
    """GPUs of the catalogue."""
    profiles: list[str]
    """GpuProfiles kept here, as `node/index`."""


class RooflinePoint(Document):
    """One measured kernel."""

    label: str
    """Probe and batch."""
    precision: str
    """Of its operands."""
    intensity: float
    """FLOP a byte moved."""
    tflops: float
    """TFLOP/s reached."""


class ConsoleRoofline(Document):
    """What was measured on a GPU of this name."""

    gpu: str
    """Catalogue name."""
    reference: str | None
    """`node/index` of the GPU measured; null: none was."""
    measured_at: str | None
    """When."""
    hbm_gbps: float | None
    """Measured memory rate."""
    peaks_tflops: dict[str, float]
    """Measured matrix rate by precision."""
    points: list[RooflinePoint]
    """Measured matrix products."""


class ConsoleSession(Document):
    """What this caller may do."""

    actions: Literal["off", "token", "allowed"]
    """off: no token is configured, so nobody may act; token: one is needed; allowed: the one sent is right."""


class DrainAnswer(Document):
    """What became of a drain."""

    endpoint: str
    """The endpoint."""
    draining: bool
    """Whether it gets new requests no more."""
    routers: int
    """Routers that took it."""
