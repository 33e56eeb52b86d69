"""What the operator can be told, by `TONNAGE_OPERATOR_<FIELD>` or a YAML file."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from tonnage_operator.gpu_profile.reconcile import NodeRules
from tonnage_operator.model_server.pod import Fleet
from tonnage_runtime.tls import TlsSettings


class OperatorSettings(TlsSettings):
    """The operator."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8093, ge=0, le=65535)
    """Port of health and metrics; 0 takes a free one."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log line written."""
    drain_timeout_s: float = Field(default=10.0, gt=0)
    """Work in hand gets this long to end at shutdown."""
    kubeconfig: str = ""
    """A kubeconfig file, `~` for the user's own; empty takes the pod's service account."""
    namespace: str = Field(default="tonnage", min_length=1)
    """Where the operator, the router, the planner and the cold-start services run."""
    identity: str = ""
    """This process in the lease; empty takes the host's name."""
    leader_election: bool = True
    """Act only while holding the lease."""
    lease_name: str = Field(default="tonnage-operator", min_length=1)
    """The lease, in `namespace`."""
    lease_s: float = Field(default=15.0, ge=3)
    """The lease lasts this long without a renewal."""
    workers: int = Field(default=4, ge=1, le=64)
    """Resources worked on at once."""
    resync_s: float = Field(default=300.0, gt=0)
    """Every resource is looked at this often without an event."""
    call_timeout_s: float = Field(default=5.0, gt=0)
    """Of a call to an engine, a planner or a cold-start service."""
    api_token_file: Path | None = None
    """File with the bearer token that the planner's and the cold-start services' access files know; engines are never
    shown it."""
    api_ca_file: Path | None = None
    """PEM authorities of the planner's and the cold-start services' certificates, beside the system's."""
    planner_url: str | None = Field(default=None, pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")
    """The planner: targets in mode direct, and advice for warm pools."""
    scaler_address: str = ""
    """host:port of the planner's KEDA scaler."""
    scaler_tls: bool = False
    """It speaks TLS, by an authority that KEDA's operator knows."""
    keda: bool = False
    """KEDA is installed: mode keda makes ScaledObjects; else it is followed directly."""
    tolerance_served: bool = False
    """The cluster's HPAs have the tolerance field (Kubernetes 1.35, or the gate from 1.33)."""
    pod_monitors: bool = False
    """Make PodMonitors; needs the Prometheus operator's definitions."""
    stage_image: str = "tonnage-cli:latest"
    """Image of the staging init container."""
    cache_host_path: str = ""
    """The nodes' weight cache; empty: each pod stages for itself."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets with registry credentials, in the namespaces of ModelServers."""
    placeholder_class: str = ""
    """Priority class of node placeholders; below every other."""
    placeholder_image: str = "registry.k8s.io/pause:3.10"
    """What a placeholder runs."""
    coldstart_selector: str = "app.kubernetes.io/component=coldstart"
    """Labels of cold-start pods in `namespace`."""
    coldstart_port: int = Field(default=8092, gt=0, le=65535)
    """Their port."""
    coldstart_tls_name: str = ""
    """Name in the cold-start services' certificates, which are then asked over HTTPS at their pods' addresses."""
    node_mode: Literal["dry_run", "label", "taint", "cordon"] = "dry_run"
    """What verdicts do to nodes: count only; label and condition; taint too; cordon too."""
    node_share: float = Field(default=0.1, gt=0, le=1)
    """At most this share of the nodes with GPUs is tainted or cordoned; one node at least."""

    @model_validator(mode="before")
    @classmethod
    def _empty_is_unset(cls, values: Any) -> Any:
        """An empty environment variable means the default: charts set names unconditionally."""
        return {k: v for k, v in values.items() if v != ""} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> "OperatorSettings":
        if self.keda and not self.scaler_address:
            raise ValueError("keda needs scaler_address, the planner's host:port")
        return self

    def fleet(self) -> Fleet:
        """What every ModelServer's objects are built with."""
        return Fleet(
            stage_image=self.stage_image,
            cache_host_path=self.cache_host_path,
            namespace=self.namespace,
            scaler_address=self.scaler_address,
            scaler_tls=self.scaler_tls,
            pod_monitors=self.pod_monitors,
            keda=self.keda,
            tolerance_served=self.tolerance_served,
            placeholder_class=self.placeholder_class,
            placeholder_image=self.placeholder_image,
            pull_secrets=self.pull_secrets,
            class_label=self.node_mode != "dry_run",
        )

    def node_rules(self) -> NodeRules:
        """What may be done to nodes."""
        return NodeRules(self.node_mode, self.node_share)
