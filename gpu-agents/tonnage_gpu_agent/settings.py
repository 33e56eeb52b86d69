"""Settings of the GPU agent: environment variables `TONNAGE_AGENT_<FIELD>`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tonnage_runtime.tls import TlsSettings


class AgentSettings(TlsSettings):
    """Read once by `main`."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8091, ge=0, le=65535)
    """Port of the HTTP API and of /metrics."""
    access_file: Path | None = None
    """File of SHA-256 hashes of bearer tokens, one a line, read again when it changes: the API then needs one of them,
    but for health, readiness and metrics."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log line written."""
    node: str = ""
    """Node name in profiles; empty: the host name."""
    driver: Literal["nvml", "fake"] = "nvml"
    """`fake` shows one made-up GPU, to try the agent where there is none; it never probes."""
    interval_s: float = Field(default=5.0, gt=0)
    """Seconds between telemetry rounds of a GPU."""
    hang_after_s: float = Field(default=10.0, gt=0)
    """A driver call that takes longer counts as hanging."""
    retry_s: float = Field(default=60.0, gt=0)
    """Seconds between looks for a driver while there is no GPU."""
    state_dir: str = ""
    """Folder for profiles, verdicts and history across restarts; empty: in memory only."""
    lease_path: str = ""
    """File that is locked while probes run, shared by every agent of the node; empty: no lease."""
    kubelet_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """The kubelet's pod-resources socket; when it is absent GPUs are not attributed to pods."""
    kernel_log: str = "/dev/kmsg"
    """Kernel log to read XIDs from; when it cannot be read, only the driver's events count."""
    xid_ignored: tuple[int, ...] = ()
    """XID codes that never count against a GPU, before the catalogue's classes."""
    xid_hardware: tuple[int, ...] = ()
    """XID codes that fail a GPU, before the catalogue's classes."""
    probe_timeout_s: float = Field(default=300.0, gt=0)
    """A probe run that takes longer is killed and its verdict is UNKNOWN."""
    probe_seconds_per_day: float = Field(default=900.0, ge=0)
    """Most seconds of probing of a GPU in 24 hours."""
    probe_cooldown_s: float = Field(default=300.0, ge=0)
    """Seconds between two runs on a GPU."""
    probe_settle_s: float = Field(default=2.0, ge=0)
    """Seconds between the two looks that call a GPU idle: utilisation counters lag."""
    kubernetes: bool = False
    """Keep a GpuProfile resource of each GPU in the cluster, and obey its `tonnage.dev/probe` annotation."""
    kubeconfig: str = ""
    """File that names the cluster (`~`: the user's own); empty: the service account of the pod."""
    profile_interval_s: float = Field(default=30.0, gt=0)
    """Seconds between looks at whether the GpuProfiles are true; changes are written at once."""
    fleet_interval_s: float = Field(default=900.0, gt=0)
    """Seconds between looks at other nodes' GpuProfiles, whose medians a GPU is compared with."""
