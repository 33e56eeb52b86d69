"""Resources that tests of several parts start from."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.merge_patch import merge

Body = dict[str, Any]


def model_server(name: str = "llama-8b", namespace: str = "serving", **spec: Any) -> Body:
    """A ModelServer as in the contract, without a scaling object."""
    base: Body = {
        "model": {"name": "llama-8b", "uri": "s3://models/llama-3.1-8b", "revision": "9f1c"},
        "engine": {"kind": "vllm", "version": "0.32.0", "args": {"max-model-len": 16384}, "loraSlots": 4},
        "gpu": {"class": "H100-SXM-80GB", "count": 1},
        "slo": {"ttftMs": {"p99": 1500}, "tpotMs": {"p99": 50}},
        "scaling": {"min": 1, "max": 16, "warm": 0, "toZero": False, "mode": "manual"},
        "drain": {"timeoutSeconds": 300},
    }
    return {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelServer",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1},
        "spec": merge(base, spec),
    }


@pytest.fixture
def a_model_server() -> Callable[..., Body]:
    return model_server


def engine_pod(name: str, server: str = "llama-8b", part: str = "serving", **more: Any) -> Body:
    """A ready pod of a ModelServer."""
    labels = {
        "tonnage.dev/model-server": server,
        "tonnage.dev/part": part,
        "app.kubernetes.io/managed-by": "tonnage-operator",
    }
    if part == "serving":
        labels["tonnage.dev/model"] = server
    base: Body = {
        "metadata": {"name": name, "namespace": "serving", "uid": f"uid-{name}", "labels": labels},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": f"10.0.0.{sum(name.encode()) % 250 + 1}",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    found: Body = merge(base, more)
    return found


@pytest.fixture
def a_pod() -> Callable[..., Body]:
    return engine_pod
