"""Settings of the router: `TONNAGE_ROUTER_<FIELD>` in the environment, or a YAML file."""

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tonnage_core.addresses import refused_literal, resolvable
from tonnage_core.scheduling.hold import HOLD_SHARE
from tonnage_core.slo import Slo
from tonnage_router.endpoint_url import unread
from tonnage_router.trace_settings import TraceSettings
from tonnage_runtime.settings import Settings
from tonnage_runtime.tls import Tls, certificate


class EndpointSpec(Settings):
    """One engine, as operators write it in `endpoints.yaml`."""

    url: str
    """`http://host:port` of the engine's OpenAI server."""
    model: str | None = None
    """Model name clients use; without it the names that the engine lists."""
    served_model: str | None = None
    """Name the engine itself knows, when it differs from `model`: requests are rewritten to it."""
    id: str | None = None
    """Stable name; the URL's host and port when absent."""
    role: Literal["both", "prefill", "decode"] = "both"
    """What it may do: compute prompts for others (`prefill`), write answers (`decode`), or both."""
    length_class: Literal["short", "long"] | None = None
    """Prompt-length pool the endpoint belongs to."""
    gpu_profile: str | None = None
    """`node/index` of its GpuProfile."""
    gpu_speed: float | None = Field(default=None, ge=0.001, le=1)
    """Speed relative to the fleet's best, 0.001 to 1; without it unknown."""
    cost: float | None = Field(default=None, ge=0)
    """Relative price of an hour."""
    adapter_slots: int | None = Field(default=None, ge=0)
    """LoRA adapters it holds at once; without it unknown."""
    api_key: str | None = None
    """Bearer token sent to the engine when tenants are configured."""
    kv_events_port: int | None = Field(default=None, ge=1, le=65535)
    """Port, on the URL's host, where the engine publishes KV events (vLLM's `--kv-events-config`); rank r is at this
    port + r. Prompts are then matched by what the engine says it caches."""
    kv_events_replay_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of its replays (`replay_endpoint`): without it a missed event empties what is known."""
    data_parallel_size: int = Field(default=1, ge=1, le=1024)
    """Data-parallel ranks behind the URL: above 1 each is chosen by itself, named in `X-data-parallel-rank`."""
    data_parallel_rank: int | None = Field(default=None, ge=0)
    """The one rank this entry stands for; entries with `data_parallel_size` are taken apart into these."""
    uid: str | None = None
    """Who answers at the address, as discovery knows it (a pod's uid): another uid is another engine."""

    @field_validator("url")
    @classmethod
    def _leads_to_an_engine(cls, url: str) -> str:
        if (wrong := unread(url)) is not None:
            raise ValueError(wrong)
        host = urlsplit(url).hostname or ""
        if (why := refused_literal(host)) is not None:
            raise ValueError(why)
        if not resolvable(host):
            raise ValueError(f"{url}: {host} can be no host's name")
        return url


class AdapterSpec(Settings):
    """A LoRA adapter the router may load on demand."""

    name: str
    """Model name clients use."""
    parent: str
    """Model name of its base."""
    path: str
    """Where engines find it: a directory or a hub name."""


class SloSpec(Settings):
    """What answers of a model should take."""

    ttft_ms: float = Field(default=2000.0, gt=0, le=1e9)
    """Limit of the time to the first token, waiting in the router included."""
    ttft_ms_per_prompt_token: float = Field(default=0.0, ge=0, le=1e6)
    """What each token of the prompt adds to that limit."""
    tpot_ms: float = Field(default=50.0, gt=0, le=1e9)
    """Limit of the mean time per output token after the first."""
    admit: bool = False
    """Answer 429 with the time to come back where no endpoint's predicted TTFT is within its limit."""

    @property
    def limits(self) -> Slo:
        """What a request is judged by."""
        return Slo(self.ttft_ms, self.tpot_ms, ttft_ms_per_prompt_token=self.ttft_ms_per_prompt_token)


class DisaggregationSpec(Settings):
    """What moving a model's KV from a prefill to a decode endpoint costs: the planner's rule decides by it."""

    model: str
    """Model name clients use."""
    kv_bytes_per_token: float = Field(gt=0)
    """KV of one token over all GPUs of an endpoint, as `tonnage memory` says it."""
    link_gbps: float = Field(default=50.0, gt=0)
    """GB/s from one endpoint to another."""
    latency_s: float = Field(default=0.001, ge=0)
    """Before a transfer's first byte."""
    hop_s: float = Field(default=0.003, ge=0)
    """What the second call adds."""
    overlap: float = Field(default=0.0, ge=0, le=1)
    """Share of a transfer that is hidden behind the prefill."""


class ProfileSpec(Settings):
    """A scheduling profile: names of filters, weights of scorers, a picker."""

    filters: list[str]
    """Which endpoints are looked at, by the names of filters."""
    scorers: dict[str, float]
    """What is added up for each of them: weights by the names of scorers."""
    picker: str = "max_random_ties"
    """Which is taken of those with their totals, by a picker's name."""


class RouterSettings(TraceSettings):
    """Everything the router reads at start."""

    host: str = "127.0.0.1"
    """Address that both ports listen on; `0.0.0.0` is every address of the machine."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Data port: the OpenAI API."""
    admin_port: int = Field(default=8001, ge=0, le=65535)
    """Admin port: health, metrics, explain."""
    tls_cert_file: Path | None = None
    """PEM certificate chain of the data port, followed when it is renewed: clients then speak HTTPS."""
    tls_key_file: Path | None = None
    """Its key."""
    admin_tls_cert_file: Path | None = None
    """The same of the admin port."""
    admin_tls_key_file: Path | None = None
    """Its key."""
    access_file: Path | None = None
    """File of SHA-256 hashes of bearer tokens, one a line, read again when it changes: the admin API then needs one,
    but for health, readiness and metrics."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log lines to write."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that share the data port (SO_REUSEPORT); worker i has admin port `admin_port + i`."""
    endpoints: list[EndpointSpec] = Field(default_factory=list)
    """Engines, known from the start; those of `endpoints_file` and of `discovery` come to them."""
    endpoints_file: Path | None = None
    """YAML of endpoints, read again when it changes."""
    discovery: Literal["static", "file", "kubernetes"] = "static"
    """Where endpoints come from beside `endpoints`: `file` needs `endpoints_file`, `kubernetes` watches a cluster."""
    kubernetes_namespace: str = ""
    """Namespace whose engines are watched."""
    kubernetes_selector: str = "tonnage.dev/model"
    """Label selector of engine pods."""
    kubernetes_service: str = ""
    """A Service whose EndpointSlices say which pods are ready and on which port; empty takes the pods alone."""
    kubernetes_inference_pool: str = ""
    """An InferencePool of the Gateway API whose selector and target ports say which pods are meant, in place of
    `kubernetes_selector` and `kubernetes_port`; not with a Service."""
    kubernetes_port: str = "http"
    """Name or number of the engines' port."""
    kubernetes_relist_s: float = Field(default=300.0, ge=1)
    """Longest time between two full lists."""
    kubeconfig: str = ""
    """A kubeconfig, `~` for the user's own; empty is the pod's service account."""
    disaggregation: list[DisaggregationSpec] = Field(default_factory=list)
    """Models whose prompts may be computed on endpoints of role `prefill` or `both` for those of role `decode`, where
    it pays."""
    shared_store: str = ""
    """`redis://host:port/0` (or `rediss://`, `unix://`): replicas and workers tell each other prefixes, load and
    tenants' use through it, and tenants' limits hold for all of them together; empty shares nothing."""
    fleet: str = Field(default="default", pattern=r"^[A-Za-z0-9._/-]{1,200}$")
    """Name of the replicas that share: others on the same store are not heard."""
    share_interval_s: float = Field(default=0.2, ge=0.02, le=10)
    """Between two rounds of telling and listening."""
    share_expire_s: float = Field(default=3.0, gt=0)
    """Age at which a silent replica's load and held tokens no longer count."""
    gpu_profiles_dir: Path | None = None
    """Directory of GpuProfile documents; an endpoint's `gpu_profile` names one, and gives its relative speed."""
    policy: str = "prefix"
    """A built-in policy, or the name of one of `profiles`."""
    profiles: dict[str, ProfileSpec] = Field(default_factory=dict)
    """Policies of your own by name: filters, scorers with their weights, a picker."""
    seed: int = 0
    """Seed of tie-breaking; worker i adds i."""
    block_bytes: int = Field(default=512, ge=32)
    """Prompt bytes (or packed token ids) of one block of the prefix index."""
    index_bytes_per_endpoint: int = Field(default=8 << 20, ge=4096)
    """Memory of the prefix index for one endpoint."""
    kv_events_topic: str = ""
    """Topic that engines publish KV events under."""
    kv_events_bytes_per_endpoint: int = Field(default=64 << 20, ge=4096)
    """Memory for one engine's cache as its events tell it: 186,000 blocks."""
    tokenizers: dict[str, Path] = Field(default_factory=dict)
    """For each model whose engines publish KV events, a directory with `tokenizer.json`, `tokenizer_config.json` and
    perhaps `chat_template.jinja`; without it only prompts of token ids are matched by KV events."""
    tokenizer_cache_bytes: int = Field(default=32 << 20, ge=1 << 16)
    """Memory for text encoded before, one model's."""
    body_bytes: int = 64 << 20
    """Largest request body; larger ones answer 413."""
    buffered_bytes: int = 1 << 30
    """Largest sum of request bodies held; beyond it requests answer 503."""
    head_bytes: int = 64 << 10
    """Largest request head; larger ones answer 431."""
    connect_timeout_s: float = Field(default=2.0, gt=0)
    """Longest wait for a connection to an engine."""
    first_byte_timeout_s: float = Field(default=600.0, gt=0)
    """From the request sent to the engine's first byte: queueing and prefill."""
    idle_timeout_s: float = Field(default=120.0, gt=0)
    """Between two pieces of an answer."""
    client_timeout_s: float = Field(default=60.0, gt=0)
    """A client that stops sending its request, takes longer for its head, or stops reading its answer."""
    keep_alive_s: float = Field(default=75.0, ge=0)
    """An idle client connection."""
    upstream_idle_s: float = Field(default=4.0, ge=0)
    """An idle engine connection; uvicorn, under vLLM, closes after 5 s."""
    retries: int = Field(default=2, ge=0)
    """Further endpoints tried for a request that has no answer yet."""
    retry_budget: float = Field(default=0.2, ge=0)
    """Retries allowed as a share of requests, over a floor of ten."""
    health_interval_s: float = Field(default=2.0, gt=0)
    """Between probes of an engine's /health."""
    unhealthy_after: int = Field(default=2, ge=1)
    """Failed probes in a row that take an endpoint out."""
    models_interval_s: float = Field(default=5.0, gt=0)
    """Between looks at an engine's model list: how soon an adapter loaded elsewhere is routable, or gone."""
    metrics_interval_s: float = Field(default=1.0, ge=0)
    """Between polls of an engine's /metrics; 0 turns them off."""
    metrics_stale_s: float = Field(default=10.0, gt=0)
    """Age at which an engine's measurement becomes unknown."""
    reload_interval_s: float = Field(default=1.0, gt=0)
    """Between looks at the endpoint and tenant files."""
    adapters: list[AdapterSpec] = Field(default_factory=list)
    """LoRA adapters loaded on demand (vLLM needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)."""
    adapter_load_timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for an engine to load an adapter."""
    tenants_file: Path | None = None
    """YAML of tenants, read again when it changes; without it every request is served."""
    queue_ttl_s: float = Field(default=30.0, gt=0)
    """Longest wait for capacity; then 429, or 503 when nothing serves."""
    queue_requests: int = Field(default=4096, ge=0)
    """Requests that may wait for one pool: a model, or one length class of its prompts where endpoints have one."""
    endpoint_prefill_tokens: int = Field(default=32768, ge=1)
    """Uncached prompt tokens an endpoint may have ahead of it; beyond that on every endpoint, requests wait here."""
    contended_prefill_tokens: int = Field(default=2048, ge=1)
    """The same while several tenants send: what waits here takes turns, what waits in an engine cannot."""
    endpoint_requests: int = Field(default=256, ge=1)
    """Requests an endpoint may have; vLLM's default `max_num_seqs`."""
    scale_from_zero: list[str] = Field(default_factory=list)
    """Models whose requests wait, rather than answer 503, while no endpoint serves them; the router is then ready
    without any healthy endpoint."""
    drain_timeout_s: float = Field(default=30.0, ge=0)
    """After SIGTERM, the time that answers under way get to end."""
    slo: SloSpec = SloSpec()
    """What requests are judged by in `tonnage_router_slo_requests_total`, admitted by with `admit`, and held by."""
    slos: dict[str, SloSpec] = Field(default_factory=dict)
    """The same by model, for those whose limits differ."""
    hold_share: float = Field(default=HOLD_SHARE, ge=0, le=1)
    """Share of the TTFT limit for which a prompt may wait for answers that it would make too slow, `queue_ttl_s` at
    most; 0: none waits. Needs the scorer `spoilt_answers`, which the policy `prefix` has; without effect with
    `disaggregation`."""
    access_log: Literal["off", "errors", "all"] = "errors"
    """Requests that get a line: `errors` are those that did not end well, refused ones, clients that left and retried
    ones among them."""
    decisions_kept: int = Field(default=1000, ge=0)
    """Decisions that `/admin/decisions` can show."""

    @property
    def limit_shares(self) -> int:
        """Into how many shares limits that count requests are cut: one a worker, unless workers share their counts."""
        return 1 if self.shared_store else self.workers

    @property
    def tls(self) -> Tls | None:
        """The data port's certificate, if it has one."""
        return certificate(self.tls_cert_file, self.tls_key_file)

    @property
    def admin_tls(self) -> Tls | None:
        """The admin port's certificate, if it has one."""
        return certificate(self.admin_tls_cert_file, self.admin_tls_key_file, "admin_tls")

    @model_validator(mode="after")
    def _tls_is_whole(self) -> "RouterSettings":
        certificate(self.tls_cert_file, self.tls_key_file)
        certificate(self.admin_tls_cert_file, self.admin_tls_key_file, "admin_tls")
        return self

    @model_validator(mode="after")
    def _discovery_is_told_where(self) -> "RouterSettings":
        if self.discovery == "file" and self.endpoints_file is None:
            raise ValueError("discovery from a file needs endpoints_file")
        if self.discovery == "kubernetes" and not self.kubernetes_namespace:
            raise ValueError("discovery from kubernetes needs kubernetes_namespace")
        if self.kubernetes_inference_pool and self.kubernetes_service:
            raise ValueError("kubernetes_inference_pool and kubernetes_service exclude each other: set one")
        return self
