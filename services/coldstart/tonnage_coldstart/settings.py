"""What the cold-start service can be told, by `TONNAGE_COLDSTART_<FIELD>` or a YAML file."""

import uuid
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from tonnage_runtime.tls import TlsSettings


class ColdstartSettings(TlsSettings):
    """The cold-start service."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8092, ge=0, le=65535)
    """Port to listen on; 0 takes any free one."""
    access_file: Path | None = None
    """File of SHA-256 hashes of bearer tokens, one a line, read again when it changes: the API then needs one of them,
    but for health, readiness and metrics."""
    log_level: str = Field(default="INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")
    """Least severe log line."""
    cache_dir: Path = Path("/var/lib/tonnage/cache")
    """The node cache; on a local file system with room for the models."""
    quota_bytes: int | None = Field(default=None, gt=0)
    """Most bytes of snapshots; empty: only the disk limits."""
    keep_free_bytes: int = Field(default=256 << 20, ge=0)
    """Bytes of the disk that staging leaves free."""
    connections: int = Field(default=8, ge=1, le=256)
    """Ranges in flight a transfer."""
    attempts: int = Field(default=6, ge=1, le=100)
    """Tries of one range before a transfer fails."""
    drop_behind: bool = False
    """Let the page cache give up each file once it is on the disk: the pod's memory is not charged for it, but a load
    right after reads from the disk."""
    bytes_per_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Most bytes a second that all transfers together read; empty: no cap."""
    timeout_s: float = Field(default=30.0, gt=0, le=86400)
    """Of one connect, and of one wait for bytes."""
    transfers: int = Field(default=2, ge=1, le=64)
    """Transfers that run at once; more wait."""
    local_sources: bool = True
    """Whether requests may name paths of this machine."""
    source_hosts: list[str] = Field(default_factory=list)
    """Patterns of hosts (`*.models.internal`) and buckets that models may come from, redirects included; empty: any.
    Link-local and cloud metadata addresses are refused whatever it says."""
    http_token: str = ""
    """Bearer token for HTTP sources, or `@FILE`, read again when it changes."""
    s3_endpoint: str | None = None
    """URL of the S3-compatible store; empty: AWS. Credentials come from the usual chain (keys, web identity, roles)."""
    s3_region: str | None = None
    """Region of the buckets."""
    s3_anonymous: bool = False
    """Send no credentials to S3."""
    s3_path_style: bool = True
    """Bucket in the path of the URL; false: in its host name."""
    ca_file: str | None = None
    """Certificates to trust beside the system's."""
    scrub_interval_s: float = Field(default=86400.0, ge=0)
    """Pause between scrubs of the whole cache; 0 leaves scrubbing to requests."""
    jobs_kept: int = Field(default=200, ge=1, le=10_000)
    """Ended jobs that `/v1/stage/{id}` still knows."""
    store_url: str | None = None
    """The fleet's store, as redis://host: one node downloads a model, the others fetch it from nodes that have it."""
    peer_token: str = ""
    """Secret that the fleet's nodes share, or `@FILE` with some, one a line, read again when it changes: the first is
    shown, each is taken. Without it nobody is served chunks."""
    advertise_url: str = ""
    """Where other nodes reach this service, as http://10.0.0.7:8092."""
    node: str = Field(default_factory=lambda: uuid.uuid4().hex[:12], min_length=1, max_length=253)
    """This node's name, unique in the fleet."""
    peer_tls_name: str = ""
    """Name that the other nodes' certificates bear, where `advertise_url` is https and an address; empty: the URL's."""
    place: str = ""
    """Zone and rack, as `zone-a/rack-3`: nearer nodes are asked first."""
    peer_ttl_s: float = Field(default=30.0, ge=1, le=3600)
    """Seconds a node stays listed after its last word."""
    lease_ttl_s: float = Field(default=15.0, ge=1, le=3600)
    """Seconds after which another node may take over the download of one that died."""
    drain_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds for open requests at a stop; transfers stop at once and resume at the next start."""

    @field_validator("cache_dir", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if value == "":
            raise ValueError("an empty name, which would be the current directory: name one")
        return value
