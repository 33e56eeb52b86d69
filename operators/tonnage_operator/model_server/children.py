"""Everything that is made for a ModelServer beside the scaling object: all of it in its namespace, owned by it."""

from typing import Any

from tonnage_operator.diff import Wanted
from tonnage_operator.kinds import (
    BUDGETS,
    DEPLOYMENTS,
    MANAGED,
    MANAGED_LABEL,
    MODEL,
    MODEL_SERVERS,
    PART_LABEL,
    POD_MONITORS,
    POLICIES,
    SERVER_LABEL,
    SERVICES,
    inside,
    owner_reference,
)
from tonnage_operator.model_server.crd import ModelServerSpec
from tonnage_operator.model_server.engine import PORT
from tonnage_operator.model_server.pod import (
    Fleet,
    container_security,
    labels,
    placement,
    pod_security,
    selector,
    template,
)
from tonnage_runtime.kube import Object, Resource


def metadata(item: Object, spec: ModelServerSpec, name: str) -> dict[str, Any]:
    """Metadata of a child."""
    return {
        "name": name,
        "namespace": spec.namespace,
        "labels": {MANAGED_LABEL: MANAGED, SERVER_LABEL: spec.name},
        "ownerReferences": [owner_reference(MODEL_SERVERS, item)],
    }


def children(item: Object, spec: ModelServerSpec, fleet: Fleet, replicas: int | None, warm: int) -> list[Wanted]:
    """The objects wanted, the workloads last. `replicas` None leaves the field to the manager that holds it."""
    found = [
        _wanted(SERVICES, item, spec, spec.name, {"spec": _service(spec)}),
        _wanted(BUDGETS, item, spec, spec.name, {"spec": _budget(spec)}),
    ]
    if fleet.pod_monitors:
        found.append(_wanted(POD_MONITORS, item, spec, spec.name, {"spec": _monitor(spec)}))
    if spec.sleeps or spec.isolated:
        found.append(_wanted(POLICIES, item, spec, spec.name, {"spec": _policy(spec, fleet)}))
    found.append(_deployment(item, spec, fleet, "serving", spec.name, replicas))
    if spec.scaling.warm_kind == "placeholder" and warm:
        found.append(_placeholders(item, spec, fleet, warm))
    elif warm:
        found.append(_deployment(item, spec, fleet, "warm", f"{spec.name}-warm", warm))
    return found


def _wanted(resource: Resource, item: Object, spec: ModelServerSpec, name: str, body: dict[str, Any]) -> Wanted:
    return Wanted(inside(resource, spec.namespace), name, {"metadata": metadata(item, spec, name), **body})


def _service(spec: ModelServerSpec) -> dict[str, Any]:
    """Headless: routers choose a replica themselves."""
    return {
        "clusterIP": "None",
        "selector": {MODEL: spec.name},
        "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
    }


def _budget(spec: ModelServerSpec) -> dict[str, Any]:
    """One replica at a time is evicted; a pod that does not work is no reason to hold a node."""
    return {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(spec, "serving")},
    }


def _monitor(spec: ModelServerSpec) -> dict[str, Any]:
    return {
        "selector": {"matchLabels": {SERVER_LABEL: spec.name}},
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        "podTargetLabels": [MODEL, PART_LABEL],
    }


def _policy(spec: ModelServerSpec, fleet: Fleet) -> dict[str, Any]:
    """Engines that serve control calls are reached by Tonnage's own pods alone, and by peers that were named."""
    own = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fleet.namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "tonnage"}},
    }
    return {
        "podSelector": {"matchLabels": {SERVER_LABEL: spec.name}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [own, *map(dict, spec.network_peers)], "ports": [{"port": PORT, "protocol": "TCP"}]},
        ],
    }


def _deployment(
    item: Object, spec: ModelServerSpec, fleet: Fleet, part: str, name: str, replicas: int | None
) -> Wanted:
    """A new replica serves before an old one goes. A warm one is replaced in place: nobody depends on it, and its GPU
    is the room."""
    rolling = (
        {"maxSurge": spec.surge, "maxUnavailable": 0} if part == "serving" else {"maxSurge": 0, "maxUnavailable": 1}
    )
    return _wanted(
        DEPLOYMENTS,
        item,
        spec,
        name,
        {
            "spec": {
                **({} if replicas is None else {"replicas": replicas}),
                "selector": {"matchLabels": selector(spec, part)},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
                # Longer than a start may take: else a rollout counts as failed while the engine loads.
                "progressDeadlineSeconds": spec.start_s + 600,
                "revisionHistoryLimit": 3,
                "template": template(spec, fleet, part),
            }
        },
    )


def _placeholders(item: Object, spec: ModelServerSpec, fleet: Fleet, warm: int) -> Wanted:
    """Pods that hold nodes and give way at once to any pod that needs the GPUs."""
    holder = {
        "name": "hold",
        "image": fleet.placeholder_image,
        "resources": {"limits": {spec.gpu_resource: str(spec.gpus)}},
        "securityContext": container_security(),
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "priorityClassName": fleet.placeholder_class,
        "securityContext": pod_security(),
        **placement(spec, fleet),
        "containers": [holder],
    }
    return _wanted(
        DEPLOYMENTS,
        item,
        spec,
        f"{spec.name}-hold",
        {
            "spec": {
                "replicas": warm,
                "selector": {"matchLabels": selector(spec, "placeholder")},
                "template": {"metadata": {"labels": labels(spec, "placeholder")}, "spec": pod},
            }
        },
    )
