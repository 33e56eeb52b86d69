"""What the planner can be told, by `TONNAGE_PLANNER_<FIELD>` or a YAML file."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tonnage_core.addresses import refused_literal
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.errors import BadInputError
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import Settings
from tonnage_runtime.tls import TlsSettings

BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")]


class EndpointSettings(Settings):
    """One engine endpoint; the same line the router reads, of which targets need the URL, the model and the pool."""

    url: str = Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")
    """Base URL of the engine's server; `/metrics` is added."""
    model: str | None = None
    """The model it serves."""
    pool: str = ""
    """The pool it belongs to; the model's name when empty, `default` when that is not given either."""
    served_model: str | None = None
    """For the router: the name the engine itself knows."""
    id: str | None = None
    """For the router: a stable name."""
    role: Literal["both", "prefill", "decode"] = "both"
    """For the router: its part in disaggregated serving."""
    length_class: Literal["short", "long"] | None = None
    """For the router: prompts it takes."""
    gpu_profile: str | None = None
    """For the router: the GpuProfile (`node/index`) it runs on."""
    gpu_speed: float | None = None
    """For the router: speed relative to the fleet's best."""
    cost: float | None = None
    """For the router: relative price of an hour."""
    adapter_slots: int | None = None
    """For the router: LoRA adapters it holds at once."""
    kv_events_port: int | None = None
    """For the router: where it publishes KV events."""
    kv_events_replay_port: int | None = None
    """For the router: where it replays them."""
    data_parallel_size: int = 1
    """For the router: ranks behind the URL."""
    data_parallel_rank: int | None = None
    """For the router: the one rank the line stands for."""
    uid: str | None = None
    """For the router: which pod answers at the address."""
    api_key: str | None = Field(default=None, repr=False)
    """For the router: bearer token of the engine's API; metrics need none."""

    @field_validator("url")
    @classmethod
    def _leads_to_an_engine(cls, url: str) -> str:
        if (why := refused_literal(urlsplit(url).hostname or "")) is not None:
            raise ValueError(why)
        return url

    @property
    def pool_name(self) -> str:
        """The pool it belongs to."""
        return self.pool or self.model or "default"


class PolicySettings(Settings):
    """A pool's scaling policy; an empty field keeps the default of the policy above it."""

    min_replicas: int = ScalingPolicy.min_replicas
    """Fewest replicas, whatever the load."""
    max_replicas: int = ScalingPolicy.max_replicas
    """Most replicas, whatever the load."""
    target_kv_usage: float = ScalingPolicy.target_kv_usage
    """Share of KV blocks in use a replica, above which one more is wanted."""
    target_waiting_per_replica: float = ScalingPolicy.target_waiting_per_replica
    """Queued requests a replica, above which more are wanted."""
    target_running_per_replica: float | None = ScalingPolicy.target_running_per_replica
    """Requests in flight a replica at the SLO, once measured; empty leaves the signal out."""
    max_growth: float = ScalingPolicy.max_growth
    """Most replicas a queue may ask for, as a multiple of those that serve."""
    scale_down_after_s: float = ScalingPolicy.scale_down_after_s
    """The load must fit fewer replicas for this long."""
    scale_down_margin: float = ScalingPolicy.scale_down_margin
    """Share of each target that fewer replicas may reach."""
    unknown_hold_s: float = ScalingPolicy.unknown_hold_s
    """An unknown endpoint blocks scale-down for this long; then it is taken to be as busy as the busiest known one."""
    safe_replicas: int = ScalingPolicy.safe_replicas
    """Fewest replicas once no endpoint has been known for `unknown_hold_s`."""
    gpu: str | None = None
    """GPU of a replica (catalogue name or GpuProfile file). With the pool's model it says what a replica can carry, and
    the load is then forecast; empty leaves the forecast out."""
    model: str | None = None
    """Model of the pool (catalogue name or config.json); empty takes the pool's name."""
    tp: int = Field(default=1, ge=1, le=64)
    """GPUs a replica."""
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    """The engine's token budget a step; empty takes vLLM's for the GPU."""
    slo_ttft_ms: float = Field(default=2000.0, gt=0)
    """Limit of the time to the first token."""
    slo_tpot_ms: float | None = Field(default=None, gt=0)
    """Limit of the mean time a token after the first; with it replicas leave room for prompts that slow others' tokens.
    Empty leaves it out."""
    slo_miss_share: float = ScalingPolicy.slo_miss_share
    """Share of requests whose first token may be late."""
    start_s: float = ScalingPolicy.start_s
    """Time a start takes, until starts have been seen: how far the forecast looks."""
    forecast_quantile: float = ScalingPolicy.forecast_quantile
    """Share of past forecasts, with margin, that were enough."""
    max_up_per_minute: int | None = ScalingPolicy.max_up_per_minute
    """Most replicas added within a minute."""
    max_down_per_minute: int | None = ScalingPolicy.max_down_per_minute
    """Most replicas given up within a minute."""
    warm_replicas: int = ScalingPolicy.warm_replicas
    """Replicas kept beyond what the load needs; used with a forecast."""
    usd_per_replica_hour: float | None = ScalingPolicy.usd_per_replica_hour
    """Price of a replica; for the budget."""
    budget_usd_per_hour: float | None = ScalingPolicy.budget_usd_per_hour
    """Most dollars an hour that the pool may cost."""
    idle_to_zero_s: float = ScalingPolicy.idle_to_zero_s
    """With `min_replicas` 0: the last replica goes after so long without a request."""
    retry_stuck_s: float = ScalingPolicy.retry_stuck_s
    """After replicas that do not start were given up, no more are asked for during this time."""
    usd_per_late_request: float | None = Field(default=None, gt=0)
    """What a request past its limit costs; with `usd_per_replica_hour` it says how many warm replicas pay."""


class ClassSettings(Settings):
    """One GPU class of a family."""

    pool: str
    """The pool of its endpoints, such as a ModelServer's name."""
    gpu: str
    """The GPU of a replica: catalogue name or GpuProfile file."""
    tp: int = Field(default=1, ge=1, le=64)
    """GPUs a replica."""
    usd_per_hour: float = Field(gt=0)
    """Price of a replica."""
    most: int = Field(ge=0)
    """Most replicas of this class."""


class FamilySettings(PolicySettings):
    """Pools of one model on several GPU classes; limits and targets are in replicas of the first class."""

    classes: tuple[ClassSettings, ...] = Field(min_length=1)
    """The classes; the first is the one that the others are compared with."""


class PairSettings(Settings):
    """The prefill and the decode pool of one model; each has its own policy in `pools`."""

    prefill: str
    """The pool that computes prompts."""
    decode: str
    """The pool that generates tokens."""


class PlannerSettings(TlsSettings):
    """The planner service."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8090, ge=0, le=65535)
    """Port of the API, health and metrics; 0 takes a free one."""
    access_file: Path | None = None
    """File of SHA-256 hashes of bearer tokens, one a line, read again when it changes: the API then needs one of them,
    but for health, readiness and metrics."""
    api_token_file: Path | None = None
    """File with the bearer token that the routers', agents' and cold-start services' own access files know."""
    api_ca_file: Path | None = None
    """PEM authorities that certificates of routers, agents, cold-start services and engines may come from, beside the
    system's."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log line written."""
    drain_timeout_s: float = Field(default=5.0, gt=0)
    """Open requests get this long to end at shutdown."""
    request_body_limit_bytes: int = Field(default=2 << 20, gt=0)
    """Largest request body; a model's config.json is a few KiB."""
    plans_waiting: int = Field(default=8, ge=1, le=1000)
    """Most plans that wait for their turn; one is computed at a time."""
    plans_kept: int = Field(default=32, ge=1, le=1000)
    """Ended plans that are remembered."""
    profiles_kept: int = Field(default=256, ge=1, le=10_000)
    """GpuProfiles kept; the oldest leaves."""
    bench_points_kept: int = Field(default=5000, ge=1, le=100_000)
    """Bench points kept; the oldest leave."""
    endpoints: tuple[EndpointSettings, ...] = ()
    """The endpoints, as a list; or name a file."""
    endpoints_file: Path | None = None
    """A YAML file with `endpoints:`; read again when it changes."""
    router_url: str | None = Field(default=None, pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")
    """The router's admin address: its `/metrics` says how many requests wait outside every engine. A name with several
    addresses (a headless Service) is every router: their queues add up."""
    time_scale: float = Field(default=1.0, gt=0, le=10_000)
    """Seconds of the engines that pass in one second: above 1 beside engines simulated faster than time. Intervals,
    ages and horizons of targets are then the engines' seconds; deadlines of single calls stay the machine's."""
    scrape_interval_s: float = Field(default=2.0, gt=0)
    """Time between scrapes of one endpoint, and between decisions."""
    scrape_timeout_s: float = Field(default=1.0, gt=0)
    """Deadline of one scrape from connect to the last byte."""
    scrape_body_limit_bytes: int = Field(default=4 << 20, gt=0)
    """Largest metrics body read; a longer one is unknown, not truncated."""
    scrape_concurrency: int = Field(default=256, gt=0)
    """Scrapes in flight at once."""
    stale_after_s: float = Field(default=10.0, gt=0)
    """A reading older than this is no longer used: five missed scrapes at the default interval."""
    start_grace_s: float = Field(default=600.0, ge=0)
    """An endpoint that never answered counts as starting for this long after it is listed."""
    store_url: str = "memory:"
    """Where targets are kept over a restart: `redis://…`; `memory:` keeps them for the process's life."""
    save_interval_s: float = Field(default=10.0, gt=0)
    """Time between saves of the pools' states."""
    keda_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of KEDA's external scaler (gRPC); empty leaves it off, 0 takes a free one."""
    keda_tls: bool = False
    """That port speaks TLS, with the certificate of `tls_cert_file`."""
    external_metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the external metrics API; empty leaves it off. A cluster has one such API."""
    external_metrics_cert: Path | None = None
    """PEM certificate of that port; the API server talks TLS only."""
    external_metrics_key: Path | None = None
    """Its PEM key."""
    external_metrics_client_ca: Path | None = None
    """CA that clients must come from: the cluster's front-proxy CA (`requestheader-client-ca-file`)."""
    console: bool = True
    """Serve the console under `/console`."""
    console_rows: int = Field(default=5000, ge=1, le=100_000)
    """Most endpoints that the console lists; the rest are counted."""
    agent_urls: tuple[BaseUrl, ...] = ()
    """GPU agents, for the console: verdicts and measured ceilings. A name with several addresses is every agent."""
    coldstart_urls: tuple[BaseUrl, ...] = ()
    """Cold-start services: starts in flight, for the console, and what starts took, for how far ahead to look. A name
    with several addresses is every one."""
    supervisor_url: BaseUrl | None = None
    """The status page of the local fleet, for the console: processes and the replay."""
    action_token_sha256: str | None = Field(default=None, pattern=r"^([0-9a-fA-F]{64}|@.+)$", repr=False)
    """SHA-256, in hex, of the bearer token that the console's actions need, or `@FILE` with some, one a line, read
    again when it changes; empty turns them off."""
    policy: PolicySettings = PolicySettings()
    """The policy of every pool that has none of its own."""
    pools: dict[str, PolicySettings] = Field(default_factory=dict)
    """Policies by pool; fields not given are taken from `policy`."""
    families: dict[str, FamilySettings] = Field(default_factory=dict)
    """Models that run on several GPU classes, by the name the router's queue has: cheapest feasible class first,
    dearest released first."""
    pairs: dict[str, PairSettings] = Field(default_factory=dict)
    """Prefill and decode pools that are scaled together, by name."""

    @model_validator(mode="before")
    @classmethod
    def _empty_is_unset(cls, values: Any) -> Any:
        """An empty environment variable means the default: charts set names unconditionally."""
        return {k: v for k, v in values.items() if v != ""} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _scaler_has_a_certificate(self) -> "PlannerSettings":
        if self.keda_tls and self.tls is None:
            raise ValueError("keda_tls needs tls_cert_file and tls_key_file")
        return self

    def hardware_of(self, pool: str) -> PolicySettings:
        """The pool's own settings over the general ones: its model, GPU and SLO are in them."""
        own = self.pools.get(pool)
        return self.policy.model_copy(update=own.model_dump(exclude_unset=True) if own else {})

    def policy_of(self, pool: str) -> ScalingPolicy:
        """The pool's policy; raises `SettingsError` when its numbers contradict each other."""
        return self._policy(pool, self.pools.get(pool))

    def family_policy(self, name: str) -> ScalingPolicy:
        """A family's policy, its price the first class's; raises `SettingsError`."""
        own = self.families[name]
        priced = own.model_copy(update={"usd_per_replica_hour": own.classes[0].usd_per_hour})
        return self._policy(name, priced)

    def _policy(self, pool: str, own: PolicySettings | None) -> ScalingPolicy:
        merged = self.policy.model_dump() | (own.model_dump(exclude_unset=True) if own else {})
        known = {field.name for field in fields(ScalingPolicy)}
        try:
            return ScalingPolicy(**{name: value for name, value in merged.items() if name in known})
        except BadInputError as error:
            raise SettingsError(f"pool {pool}: {error}") from error
