"""Every call that the operator makes of the API server, made once: what the chart's Role is held to."""

import asyncio
from collections.abc import Callable
from typing import Any

from tonnage_operator import kinds
from tonnage_operator.nodes import NodeView
from tonnage_operator.uninstall import release
from tonnage_runtime.kube import KubeClient

Make = Callable[..., dict[str, Any]]
OWNED = (*kinds.CHILDREN, *kinds.SCALERS)


def left_over(uid: str) -> dict[str, Any]:
    """A child that an earlier version of the operator, or of the resource, wanted."""
    owner = {"apiVersion": "tonnage.dev/v1alpha1", "kind": "ModelServer", "name": "a", "uid": uid, "controller": True}
    labels = {kinds.MANAGED_LABEL: kinds.MANAGED}
    return {"metadata": {"name": "old", "namespace": "serving", "labels": labels, "ownerReferences": [owner]}}


async def test_every_kind_of_child_is_made_and_one_that_is_left_over_is_deleted(
    fleet: Any, a_model_server: Make, a_pod: Make
) -> None:
    asleep = {"mode": "hpa", "warm": 1, "warmKind": "sleeping"}
    await fleet.server.put(kinds.MODEL_SERVERS, a_model_server("a", scaling=asleep))
    lending = a_model_server("b", replicas=2, scaling={"mode": "keda", "warm": 1})
    await fleet.server.put(kinds.MODEL_SERVERS, lending)
    await fleet.server.put(kinds.PODS, a_pod("w", server="b", part="warm"))
    for kind in OWNED:
        await fleet.server.put(kind, left_over("uid-a"))
    pinned = {"uri": "s3://models/x", "pin": True}
    await fleet.server.put(kinds.MODEL_CACHES, {"metadata": {"name": "x", "namespace": "serving"}, "spec": pinned})
    homeless = {"metadata": {"name": "legal", "namespace": "serving"}, "spec": {"model": "none", "uri": "hf://x"}}
    await fleet.server.put(kinds.LORA_ADAPTERS, homeless)
    await fleet.server.put(kinds.NODES, {"metadata": {"name": "n1"}, "spec": {}, "status": {}})
    cold = {
        "metadata": {"name": "cold", "namespace": "tonnage", "labels": {"app.kubernetes.io/component": "coldstart"}}
    }
    await fleet.server.put(kinds.PODS, a_pod("cold", server="x", **cold))
    url = f"http://{fleet.server.body(kinds.PODS, 'cold', 'tonnage')['status']['podIP']}:8092"
    fleet.coldstart.views[url] = NodeView(url, {})
    await fleet.start(
        leader_election=True,
        lease_s=15.0,
        identity="one",
        keda=True,
        scaler_address="planner:8095",
        tolerance_served=True,
        pod_monitors=True,
    )
    for kind in OWNED:
        await fleet.until(lambda kind=kind: "old" not in fleet.server.names(kind))
    for kind, name in (
        (kinds.AUTOSCALERS, "a"),
        (kinds.POLICIES, "a"),
        (kinds.POD_MONITORS, "a"),
        (kinds.SCALED_OBJECTS, "b"),
    ):
        await fleet.until(lambda kind=kind, name=name: name in fleet.server.names(kind))
    await fleet.until(lambda: "tonnage.dev/model" in fleet.server.body(kinds.PODS, "w")["metadata"]["labels"])
    await fleet.until(lambda: fleet.server.body(kinds.MODEL_CACHES, "x")["metadata"].get("finalizers"))
    await fleet.until(lambda: (fleet.server.body(kinds.LORA_ADAPTERS, "legal") or {}).get("status"))
    await fleet.stop()
    lease = fleet.server.body(kinds.LEASES, "tonnage-operator", "tonnage")
    assert lease["spec"]["holderIdentity"] == ""


async def test_a_deinstallation_reads_again_what_changed_meanwhile(fleet: Any) -> None:
    held = {"metadata": {"name": "a", "namespace": "serving", "finalizers": [kinds.FINALIZER]}, "spec": {}}
    for kind in (kinds.LORA_ADAPTERS, kinds.MODEL_CACHES):
        await fleet.server.put(kind, held)
        fleet.server.script("patch", rf"/{kind.plural}/a$", 409)
    taint = {"key": "tonnage.dev/gpu-failed", "effect": "NoSchedule"}
    await fleet.server.put(kinds.NODES, {"metadata": {"name": "n"}, "spec": {"taints": [taint]}, "status": {}})
    fleet.server.script("patch", r"/nodes/n$", 409)

    def undo() -> Any:
        client = KubeClient(fleet.login())
        done = release(client)
        client.close()
        return done

    done = await asyncio.to_thread(undo)
    assert (done.finalizers, done.nodes, done.failed) == (2, 1, 0)
    assert fleet.server.body(kinds.NODES, "n")["spec"]["taints"] == []
