"""The pod of one replica: staging, engine, probes, and a security context that the restricted profile takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage_operator.kinds import CLASS_LABEL, MANAGED, MANAGED_LABEL, MODEL, PART_LABEL, SERVER_LABEL, label_value
from tonnage_operator.model_server.crd import ModelServerSpec
from tonnage_operator.model_server.drain import DrainTimes, drain_times
from tonnage_operator.model_server.engine import PORT, command, environment

USER = 10001
CACHE = "/var/cache/tonnage"


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the installation says for every ModelServer."""

    stage_image: str = "tonnage-cli:latest"
    cache_host_path: str = ""
    """The nodes' weight cache; empty: each pod stages for itself."""
    namespace: str = "tonnage"
    """Where the router, the planner and the operator run."""
    scaler_address: str = ""
    scaler_tls: bool = False
    """host:port of the planner's KEDA scaler."""
    pod_monitors: bool = False
    keda: bool = False
    tolerance_served: bool = False
    placeholder_class: str = ""
    """Priority class of node placeholders."""
    placeholder_image: str = "registry.k8s.io/pause:3.10"
    pull_secrets: tuple[str, ...] = ()
    class_label: bool = False
    """Nodes are labelled with their GPU's class, so that pods can be held to it."""


def labels(spec: ModelServerSpec, part: str) -> dict[str, str]:
    """Labels of pods of one part. Only serving ones have the label that routers follow."""
    made = {MANAGED_LABEL: MANAGED, SERVER_LABEL: spec.name, PART_LABEL: part}
    return made | ({MODEL: spec.name} if part == "serving" else {})


def selector(spec: ModelServerSpec, part: str) -> dict[str, str]:
    """Labels that never change over the object's life."""
    return {SERVER_LABEL: spec.name, PART_LABEL: part}


def annotations(spec: ModelServerSpec) -> dict[str, str]:
    """What the router reads of a pod; an annotation may hold the slash of a model's name."""
    made = {MODEL: spec.model, "tonnage.dev/pool": spec.name}
    return made | ({"tonnage.dev/adapter-slots": str(spec.lora_slots)} if spec.lora_slots else {})


def template(spec: ModelServerSpec, fleet: Fleet, part: str) -> dict[str, Any]:
    """The pod template."""
    times = drain_times(spec.drain)
    return {
        "metadata": {"labels": labels(spec, part), "annotations": annotations(spec)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": times.grace_s,
            "securityContext": pod_security(),
            **placement(spec, fleet),
            **({"imagePullSecrets": [{"name": n} for n in fleet.pull_secrets]} if fleet.pull_secrets else {}),
            **({"initContainers": [_staging(spec, fleet)]} if spec.staged else {}),
            "containers": [_engine(spec, times, fleet)],
            "volumes": _volumes(spec, fleet),
        },
    }


def placement(spec: ModelServerSpec, fleet: Fleet) -> dict[str, Any]:
    """Where the pods may run."""
    selected = dict(spec.node_selector)
    tolerations = list(spec.tolerations) or [
        {"key": spec.gpu_resource, "operator": "Exists", "effect": "NoSchedule"},
    ]
    made: dict[str, Any] = {"tolerations": tolerations}
    if fleet.class_label and spec.gpu_class and not selected:
        selected = {CLASS_LABEL: label_value(spec.gpu_class)}
    made |= {"nodeSelector": selected} if selected else {}
    return made | ({"runtimeClassName": spec.runtime_class} if spec.runtime_class else {})


def pod_security() -> dict[str, Any]:
    """Of the pod; with `container_security` the restricted Pod Security Standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Of each container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _staging(spec: ModelServerSpec, fleet: Fleet) -> dict[str, Any]:
    """Stages into the cache and links the snapshot, whose path is known only then."""
    script = (
        'found=$(tonnage stage "$TONNAGE_URI" --cache "$TONNAGE_CACHE" --json) && '
        'path=$(printf %s "$found" | python -c \'import json, sys; print(json.load(sys.stdin)["path"])\') && '
        'ln -sfn "$path" /model/weights'
    )
    return {
        "name": "stage",
        "image": fleet.stage_image,
        "command": ["sh", "-c", script],
        "env": [
            {"name": "TONNAGE_URI", "value": spec.uri},
            {"name": "TONNAGE_CACHE", "value": CACHE},
            {"name": "HOME", "value": "/tmp"},
            *[dict(one) for one in spec.env if str(one.get("name", "")).startswith(("AWS_", "TONNAGE_SOURCE_"))],
        ],
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "cache", "mountPath": CACHE},
            {"name": "model", "mountPath": "/model"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _engine(spec: ModelServerSpec, times: DrainTimes, fleet: Fleet) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]
    if spec.staged:
        mounts.append({"name": "model", "mountPath": "/model", "readOnly": True})
    if _has_cache(spec, fleet):
        mounts.append({"name": "cache", "mountPath": CACHE, "readOnly": True})
    return {
        "name": "engine",
        "image": spec.image,
        "command": command(spec, times),
        "env": environment(spec),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(spec),
        "securityContext": container_security(),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(times.pre_stop_s)]}}},
        **_probes(spec),
        "volumeMounts": mounts,
    }


def _resources(spec: ModelServerSpec) -> dict[str, Any]:
    given: Mapping[str, Any] = spec.resources
    limits = {**(given.get("limits") or {}), spec.gpu_resource: str(spec.gpus)}
    return {**given, "limits": limits}


def _probes(spec: ModelServerSpec) -> dict[str, Any]:
    """An engine loads for minutes and then answers at once: the start has its own time, and later silence is short for
    routing and long for a restart, which costs a whole start again."""
    health = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "startupProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": -(-spec.start_s // 5)},
        "readinessProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {**health, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12},
    }


def _has_cache(spec: ModelServerSpec, fleet: Fleet) -> bool:
    """Adapters are staged into the node's cache too."""
    return spec.staged or (spec.lora_slots > 0 and bool(fleet.cache_host_path))


def _volumes(spec: ModelServerSpec, fleet: Fleet) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if spec.staged:
        volumes.append({"name": "model", "emptyDir": {}})
    if _has_cache(spec, fleet):
        path = fleet.cache_host_path
        source = {"hostPath": {"path": path, "type": "DirectoryOrCreate"}} if path else {"emptyDir": {}}
        volumes.append({"name": "cache", **source})
    return volumes
