"""The kinds of objects that the operator reads and writes, and the names it marks them with."""

import re
from dataclasses import replace

from tonnage_runtime.kube import Object, Resource

GROUP, VERSION = "tonnage.dev", "v1alpha1"
MANAGER = "tonnage-operator"
"""Field manager of every write."""

MODEL_SERVERS = Resource(GROUP, VERSION, "modelservers", "ModelServer")
LORA_ADAPTERS = Resource(GROUP, VERSION, "loraadapters", "LoraAdapter")
MODEL_CACHES = Resource(GROUP, VERSION, "modelcaches", "ModelCache")
GPU_PROFILES = Resource(GROUP, VERSION, "gpuprofiles", "GpuProfile")
CUSTOM = (MODEL_SERVERS, LORA_ADAPTERS, MODEL_CACHES, GPU_PROFILES)

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
SERVICES = Resource("", "v1", "services", "Service")
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_MONITORS = Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
SCALED_OBJECTS = Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")

CHILDREN = (DEPLOYMENTS, DAEMON_SETS, SERVICES, BUDGETS, POLICIES, POD_MONITORS)
"""Kinds that are made for a custom resource and watched by the label `MANAGED`."""
SCALERS = (AUTOSCALERS, SCALED_OBJECTS)
"""Kinds that write replica counts: all of a namespace are looked at, whoever made them."""

MANAGED_LABEL, MANAGED = "app.kubernetes.io/managed-by", MANAGER
SERVER_LABEL = "tonnage.dev/model-server"
CACHE_LABEL = "tonnage.dev/model-cache"
MODEL = "tonnage.dev/model"
PART_LABEL = "tonnage.dev/part"
"""serving, warm or placeholder."""
CLASS_LABEL = "tonnage.dev/gpu-class"
"""On nodes: the catalogue's name of their GPUs."""
DIGEST = "tonnage.dev/applied"
"""Annotation with the digest of what was applied last."""
FINALIZER = "tonnage.dev/release"


def inside(resource: Resource, namespace: str) -> Resource:
    """The resource's collection in one namespace."""
    return replace(resource, namespace=namespace)


def meta(item: Object) -> Object:
    """The object's metadata; empty when it has none."""
    found = item.get("metadata")
    return found if isinstance(found, dict) else {}


def name_of(item: Object) -> str:
    """The object's name."""
    return str(meta(item).get("name") or "")


def namespace_of(item: Object) -> str:
    """The object's namespace; empty for a cluster-scoped one."""
    return str(meta(item).get("namespace") or "")


def key_of(item: Object) -> str:
    """`namespace/name`."""
    return f"{namespace_of(item)}/{name_of(item)}"


def labels_of(item: Object) -> Object:
    """The object's labels."""
    return meta(item).get("labels") or {}


def label_value(text: str) -> str:
    """`text` as a label's value: other characters become `-`, at most 63."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


def owned_by(item: Object, uid: str) -> bool:
    """Whether the object with `uid` is the item's controller."""
    owners = meta(item).get("ownerReferences") or []
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def owner_reference(resource: Resource, item: Object) -> dict[str, object]:
    """A controller's reference to `item`. It does not block the owner's deletion: nothing waits at an uninstall."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": name_of(item),
        "uid": str(meta(item).get("uid") or ""),
        "controller": True,
        "blockOwnerDeletion": False,
    }
