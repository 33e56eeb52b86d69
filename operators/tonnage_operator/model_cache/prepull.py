"""Images on nodes before a pod needs them: a DaemonSet whose init containers are of those images and end at once."""

from typing import Any

from tonnage_operator.diff import Wanted
from tonnage_operator.kinds import (
    CACHE_LABEL,
    DAEMON_SETS,
    MANAGED,
    MANAGED_LABEL,
    MODEL_CACHES,
    inside,
    owner_reference,
)
from tonnage_operator.model_cache.crd import ModelCacheSpec
from tonnage_operator.model_server.pod import Fleet, container_security, pod_security
from tonnage_runtime.kube import Object


def daemon_set(item: Object, spec: ModelCacheSpec, fleet: Fleet) -> list[Wanted]:
    """The DaemonSet; none without images. An image without `true` is pulled all the same: its container then fails,
    which the DaemonSet's pods show."""
    if not spec.images:
        return []
    small = {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "32Mi"}}
    pulls: list[dict[str, Any]] = [
        {
            "name": f"pull-{index}",
            "image": image,
            "command": ["true"],
            "resources": small,
            "securityContext": container_security(),
        }
        for index, image in enumerate(spec.images)
    ]
    hold = {
        "name": "hold",
        "image": fleet.placeholder_image,
        "resources": small,
        "securityContext": container_security(),
    }
    labels = {MANAGED_LABEL: MANAGED, CACHE_LABEL: spec.name}
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": pod_security(),
        "tolerations": [{"operator": "Exists"}],
        **({"nodeSelector": dict(spec.nodes)} if spec.nodes else {}),
        **({"imagePullSecrets": [{"name": n} for n in fleet.pull_secrets]} if fleet.pull_secrets else {}),
        "initContainers": pulls,
        "containers": [hold],
    }
    metadata = {
        "name": f"{spec.name}-images",
        "namespace": spec.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(MODEL_CACHES, item)],
    }
    body = {
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": {CACHE_LABEL: spec.name}},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return [Wanted(inside(DAEMON_SETS, spec.namespace), f"{spec.name}-images", body)]
