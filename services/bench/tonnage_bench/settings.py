"""What the bench service and its workers can be told, by `TONNAGE_BENCH_<FIELD>` or a YAML file."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tonnage_core.benchmarking.leases import LeaseRules
from tonnage_runtime.settings import Settings
from tonnage_runtime.tls import TlsSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class BenchSettings(TlsSettings):
    """The bench service."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8094, ge=0, le=65535)
    """Port of the API, health and metrics; 0 takes a free one."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log line written."""
    drain_timeout_s: float = Field(default=5.0, gt=0)
    """Open requests get this long to end at shutdown."""
    database: Path = Path("/var/lib/tonnage/bench.sqlite")
    """Jobs and results, one SQLite file on a local file system."""
    token: str = Field(default="", repr=False)
    """Bearer token of the API, or `@FILE` with some, one a line, read again when it changes; needed when the address is
    not loopback."""
    worker_token: str = Field(default="", repr=False)
    """Bearer token of the workers, or `@FILE`; needed with a queue."""
    targets: tuple[str, ...] = LOOPBACK
    """Hosts that jobs may be pointed at, with or without a port: `127.0.0.1`, `*.serving.svc`, `router:8000`."""
    target_keys: dict[str, str] = Field(default_factory=dict, repr=False)
    """Bearer tokens, or `@FILE`s, by host or host:port of a target; they are not taken from requests."""
    planner_url: str | None = Field(default=None, pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")
    """The planner that bench points are sent to; empty: they are kept here alone."""
    api_token_file: Path | None = None
    """File with the bearer token that the planner's access file knows, read again when it changes."""
    api_ca_file: Path | None = None
    """PEM authorities that the planner's certificate may come from, beside the system's."""
    queue_url: str = Field(default="", repr=False)
    """Celery's broker, `redis://…`; empty: runs are made in this service, one at a time."""
    queue_name: str = Field(default="tonnage.bench", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """The queue's name."""
    concurrent_jobs: int = Field(default=1, ge=1, le=64)
    """Jobs that run at once; two jobs of one target never do."""
    jobs_waiting: int = Field(default=100, ge=1, le=10_000)
    """Most jobs that wait for their turn."""
    jobs_kept: int = Field(default=1000, ge=1, le=100_000)
    """Ended jobs that are kept with their results; the oldest leave."""
    run_limit_s: float = Field(default=3600.0, gt=0)
    """A run that takes longer is ended and its job fails."""
    lease_s: float = Field(default=15.0, ge=0.2, le=600)
    """A worker that says nothing for this long has lost its run."""
    resend_s: float = Field(default=10.0, ge=0.1, le=600)
    """A run that no worker has taken for this long is put on the queue again."""
    attempts: int = Field(default=3, ge=1, le=20)
    """Workers a run may lose before its job fails."""
    tick_s: float = Field(default=0.5, gt=0, le=60)
    """Between looks at the jobs."""
    request_body_limit_bytes: int = Field(default=16 << 20, gt=0)
    """Largest request body; traces and tasks are in it."""

    @model_validator(mode="after")
    def _tokens_where_needed(self) -> "BenchSettings":
        if self.host not in LOOPBACK and not self.token:
            raise ValueError(f"host {self.host} can be reached from elsewhere: set TONNAGE_BENCH_TOKEN")
        if self.queue_url and not self.worker_token:
            raise ValueError("a queue needs TONNAGE_BENCH_WORKER_TOKEN, which the workers show to this service")
        return self

    @property
    def lease_rules(self) -> LeaseRules:
        """The times that decide about runs."""
        return LeaseRules(self.lease_s, self.resend_s, self.attempts)


class WorkerSettings(Settings):
    """A worker of the queue."""

    queue_url: str = Field(min_length=1, repr=False)
    """Celery's broker, the same as the service's."""
    queue_name: str = Field(default="tonnage.bench", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """The queue's name."""
    service_url: str = Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")
    """Where the bench service answers."""
    api_ca_file: Path | None = None
    """PEM authorities that the service's certificate may come from, beside the system's."""
    token: str = Field(min_length=1, repr=False)
    """Bearer token, or `@FILE`: the service's `worker_token`."""
    name: str = ""
    """The worker's name in progress and logs; by default host and process."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log line written."""
    patience_s: float = Field(default=300.0, gt=0)
    """How long a result is offered to a service that does not answer."""
