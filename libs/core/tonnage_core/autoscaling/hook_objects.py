"""The Kubernetes objects that carry a target into a Deployment, and the choice of the way.

An HPA rounds a change of less than its tolerance (10 %) away and holds a scale-down for its window (300 s): of 21
replicas none would ever go, and the planner has held long enough itself. So a generated object sets the window to 0
and the tolerance to 0; where the cluster does not serve tolerances (the field is `behavior.*.tolerance`, on by default
from Kubernetes 1.35, behind a gate from 1.33) and the pool is so large that one step lies within 10 %, `scale` is
written directly instead. (kubernetes.io, "Horizontal Pod Autoscaling"; keda.sh, "ScaledObject specification".)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tonnage_core.errors import BadInputError

METRIC = "tonnage-desired-replicas"
MANAGER = "tonnage-operator"
Mode = Literal["keda", "hpa", "direct", "manual"]
TOLERANCE_STEP = 10
"""From this many replicas on one more or fewer is within an HPA's 10 %."""


@dataclass(frozen=True, slots=True)
class ScaledPool:
    """A pool as the objects need it."""

    name: str
    namespace: str
    min_replicas: int
    max_replicas: int
    scaler_address: str = ""
    scaler_tls: bool = False
    """host:port of the planner's KEDA scaler; for mode keda."""
    target_kind: str = "Deployment"
    target_api: str = "apps/v1"
    labels: Mapping[str, str] | None = None


def effective_mode(mode: Mode, pool: ScaledPool, *, tolerance_served: bool) -> tuple[Mode, str]:
    """The way that can follow the target, and why it is another than the one asked for (empty when it is not)."""
    if mode in ("direct", "manual") or tolerance_served or pool.max_replicas < TOLERANCE_STEP:
        return mode, ""
    reason = (
        f"the cluster's HPA has no tolerance field and of {pool.max_replicas} replicas a step of one is within its "
        "10 %: scale is written directly"
    )
    return "direct", reason


def scaled_object(pool: ScaledPool, *, tolerance_served: bool) -> dict[str, Any]:
    """A KEDA ScaledObject with a push trigger on the planner; raises `BadInputError` without the scaler's address."""
    if not pool.scaler_address:
        raise BadInputError(f"pool {pool.name}: mode keda needs the address of the planner's scaler")
    tls = {"enableTLS": "true"} if pool.scaler_tls else {}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(pool),
        "spec": {
            "scaleTargetRef": {"apiVersion": pool.target_api, "kind": pool.target_kind, "name": pool.name},
            "minReplicaCount": pool.min_replicas,
            "maxReplicaCount": pool.max_replicas,
            "pollingInterval": 15,
            # The planner holds before it goes to zero; KEDA's own wait would come on top of that.
            "cooldownPeriod": 0,
            "advanced": {
                "horizontalPodAutoscalerConfig": {"behavior": _behaviour(tolerance_served)},
            },
            "triggers": [
                {
                    "type": "external-push",
                    "metricType": "AverageValue",
                    "metadata": {"scalerAddress": pool.scaler_address, "pool": pool.name, **tls},
                }
            ],
        },
    }


def horizontal_pod_autoscaler(pool: ScaledPool, *, tolerance_served: bool) -> dict[str, Any]:
    """An HPA on the external metric; its least number of replicas is 1 unless the pool's is more."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(pool),
        "spec": {
            "scaleTargetRef": {"apiVersion": pool.target_api, "kind": pool.target_kind, "name": pool.name},
            "minReplicas": max(1, pool.min_replicas),
            "maxReplicas": pool.max_replicas,
            "behavior": _behaviour(tolerance_served),
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {"name": METRIC, "selector": {"matchLabels": {"pool": pool.name}}},
                        "target": {"type": "AverageValue", "averageValue": "1"},
                    },
                }
            ],
        },
    }


def _metadata(pool: ScaledPool) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": MANAGER, "tonnage.dev/pool": pool.name, **(pool.labels or {})}
    return {"name": pool.name, "namespace": pool.namespace, "labels": labels}


def _behaviour(tolerance_served: bool) -> dict[str, Any]:
    """Every step at once in both directions: how fast and how long to wait is the planner's to say."""
    policies = [
        {"type": "Percent", "value": 900, "periodSeconds": 15},
        {"type": "Pods", "value": 64, "periodSeconds": 15},
    ]
    tolerance = {"tolerance": "0"} if tolerance_served else {}
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": policies, **tolerance},
        "scaleDown": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
            **tolerance,
        },
    }
