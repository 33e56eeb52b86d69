"""The whole operator against a mock cluster: every kind made, changed, scaled and deleted; refusals; cut watches."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tonnage_operator import kinds
from tonnage_operator.kinds import MANAGER
from tonnage_operator.model_server.target import Advice
from tonnage_operator.nodes import NodeView
from tonnage_operator.pods import EngineView
from tonnage_operator.uninstall import release
from tonnage_runtime.kube import KubeClient

Make = Callable[..., dict[str, Any]]
SERVER = kinds.MODEL_SERVERS


def status_of(fleet: Any, kind: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (fleet.server.body(kind, name) or {}).get("status") or {}
    return found


async def test_a_model_server_becomes_its_objects_by_server_side_apply(fleet: Any, a_model_server: Make) -> None:
    await fleet.server.put(SERVER, a_model_server())
    await fleet.start()
    await fleet.until(lambda: status_of(fleet, SERVER, "llama-8b"))
    for plural in ("services", "poddisruptionbudgets", "deployments"):
        (call,) = fleet.server.applied(plural)
        assert (call.content_type, call.manager, call.force) == ("application/apply-patch+yaml", MANAGER, "true")
        assert call.body["metadata"]["ownerReferences"][0]["uid"] == "uid-llama-8b"
        assert call.body["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] is False
    written = fleet.server.applied("modelservers", subresource="status")
    assert {call.manager for call in written} == {MANAGER}
    assert {key for call in written for key in call.body} == {"apiVersion", "kind", "metadata", "status"}
    assert all(one.body["status"] != two.body["status"] for one, two in pairwise(written)), "nothing new, yet written"
    deployment = fleet.server.body(kinds.DEPLOYMENTS, "llama-8b")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    told = status_of(fleet, SERVER, "llama-8b")
    assert (told["replicas"], told["desiredReplicas"]) == (0, 1)
    assert told["selector"] == "tonnage.dev/model-server=llama-8b,tonnage.dev/part=serving"
    assert "finalizers" not in fleet.server.body(SERVER, "llama-8b")["metadata"]
    assert "annotations" not in fleet.server.body(SERVER, "llama-8b")["metadata"]


async def test_a_change_a_scale_and_ready_pods_are_followed(fleet: Any, a_model_server: Make, a_pod: Make) -> None:
    await fleet.server.put(SERVER, a_model_server())
    await fleet.start()
    await fleet.until(lambda: fleet.server.body(kinds.DEPLOYMENTS, "llama-8b"))
    await fleet.server.put(SERVER, {"metadata": {"name": "llama-8b"}, "spec": {"replicas": 3}})
    await fleet.until(lambda: fleet.server.body(kinds.DEPLOYMENTS, "llama-8b")["spec"]["replicas"] == 3)
    for number in range(3):
        await fleet.server.put(kinds.PODS, a_pod(f"p{number}"))
    await fleet.until(lambda: status_of(fleet, SERVER, "llama-8b").get("readyReplicas") == 3)
    ready = next(c for c in status_of(fleet, SERVER, "llama-8b")["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "True"
    await fleet.server.put(SERVER, {"metadata": {"name": "llama-8b"}, "spec": {"engine": {"version": "0.33.0"}}})
    await fleet.until(lambda: "v0.33.0" in str(fleet.server.body(kinds.DEPLOYMENTS, "llama-8b")))


async def test_direct_mode_writes_scale_and_a_lost_child_is_made_again(fleet: Any, a_model_server: Make) -> None:
    fleet.planner.pools["llama-8b"] = Advice(target=4)
    await fleet.server.put(SERVER, a_model_server(scaling={"mode": "direct"}))
    await fleet.start()
    await fleet.until(lambda: (fleet.server.body(SERVER, "llama-8b")["spec"].get("replicas")) == 4)
    (scale,) = [call for call in fleet.server.calls if call.subresource == "scale"]
    assert (scale.content_type, scale.manager) == ("application/merge-patch+json", MANAGER)
    assert scale.body["spec"] == {"replicas": 4}
    assert scale.body["metadata"]["resourceVersion"], "whoever wrote since would be seen first"
    await fleet.server.remove(kinds.SERVICES, "llama-8b")
    await fleet.until(lambda: fleet.server.body(kinds.SERVICES, "llama-8b"))


@pytest.mark.parametrize(
    ("status", "headers"), [(409, {}), (410, {}), (429, {"Retry_After": "1"}), (500, {}), (503, {})]
)
async def test_a_refused_write_is_done_in_the_end(
    fleet: Any, a_model_server: Make, status: int, headers: dict[str, str]
) -> None:
    fleet.server.script("patch", r"/deployments/llama-8b$", status, 2, **headers)
    await fleet.server.put(SERVER, a_model_server())
    operator = await fleet.start()
    await fleet.until(lambda: fleet.server.body(kinds.DEPLOYMENTS, "llama-8b"))
    counted = [
        sample.value
        for metric in operator.metrics.reconciles.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["outcome"] != "ok"
    ]
    assert sum(counted) == 2


def of_kind(kind: Any) -> tuple[dict[str, Any], str, Callable[[Any], bool]]:
    """A resource, the path of a write that it needs, and when all is done."""
    metadata = {"name": "legal", "namespace": "serving"}
    if kind is kinds.LORA_ADAPTERS:
        spec: dict[str, Any] = {"model": "llama-8b", "uri": "hf://legal"}
        done = lambda fleet: status_of(fleet, kind, "legal").get("phase") == "Loaded"  # noqa: E731
        return {"metadata": metadata, "spec": spec}, r"/loraadapters/legal(/status)?$", done
    if kind is kinds.MODEL_CACHES:
        spec = {"uri": "s3://models/x", "prePullImages": ["x:1"]}
        done = lambda fleet: bool(status_of(fleet, kind, "legal"))  # noqa: E731
        return {"metadata": metadata, "spec": spec}, r"/(daemonsets|modelcaches)/[^/]+(/status)?$", done
    profile = {"node": "n1", "index": 0, "name": "H100-SXM-80GB", "verdict": {"status": "FAIL", "reasons": ["hbm_low"]}}
    done = lambda fleet: bool(  # noqa: E731
        fleet.server.body(kinds.NODES, "n1")["spec"].get("taints")
        and fleet.server.body(kinds.NODES, "n1")["status"].get("conditions")
    )
    return {"metadata": {"name": "n1-0"}, "status": profile}, r"/nodes/n1(/status)?$", done


@pytest.mark.parametrize(
    "kind", [kinds.LORA_ADAPTERS, kinds.MODEL_CACHES, kinds.GPU_PROFILES], ids=lambda one: one.kind
)
async def test_every_kind_is_done_in_the_end_whatever_the_api_server_answers_meanwhile(
    fleet: Any, a_model_server: Make, a_pod: Make, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tonnage_operator.controller.LEAST_S", 0.02)
    body, path, done = of_kind(kind)
    for status in (409, 410, 429, 500):
        fleet.server.script("patch", path, status)
    for plural in ("pods", "nodes"):
        fleet.server.script("get", rf"/{plural}$", 410, 1)
        fleet.server.script("get", rf"/{plural}$", 500, 1)
    await fleet.server.put(SERVER, a_model_server())
    await fleet.server.put(kinds.NODES, {"metadata": {"name": "n1"}, "spec": {}, "status": {}})
    await fleet.server.put(kinds.PODS, a_pod("p0"))
    url = f"http://{fleet.server.body(kinds.PODS, 'p0')['status']['podIP']}:8000"
    fleet.engines.views[url] = EngineView(frozenset(), frozenset(), 0.0)
    await fleet.server.put(kind, body)
    await fleet.start(node_mode="taint")
    await fleet.until(lambda: done(fleet))
    assert all(script.times == 0 for script in fleet.server.scripts if script.method == "patch")


async def test_watches_that_are_refused_or_cut_are_opened_again(fleet: Any, a_model_server: Make) -> None:
    for plural in ("pods", "deployments"):
        fleet.server.script("get", rf"/{plural}$", 500, 2)
        fleet.server.script("get", rf"/{plural}$", 410, 2)
        fleet.server.script("get", rf"/{plural}$", 429, 1)
    await fleet.server.put(SERVER, a_model_server())
    await fleet.start()
    await fleet.until(lambda: fleet.server.body(kinds.DEPLOYMENTS, "llama-8b"))


async def test_a_strangers_object_is_left_alone_and_said(fleet: Any, a_model_server: Make) -> None:
    stranger = {"metadata": {"name": "llama-8b", "namespace": "serving"}, "spec": {"type": "ExternalName"}}
    await fleet.server.put(kinds.SERVICES, stranger)
    await fleet.server.put(SERVER, a_model_server())
    await fleet.start()
    await fleet.until(lambda: fleet.server.body(kinds.DEPLOYMENTS, "llama-8b"))
    await fleet.until(lambda: "Service llama-8b" in str(status_of(fleet, SERVER, "llama-8b").get("conditions")))
    assert fleet.server.body(kinds.SERVICES, "llama-8b")["spec"] == {"type": "ExternalName"}


async def test_an_adapter_follows_its_pods_and_is_unloaded_at_its_end(
    fleet: Any, a_model_server: Make, a_pod: Make
) -> None:
    uri = "s3://adapters/legal"
    await fleet.server.put(SERVER, a_model_server())
    cold = {
        "metadata": {"name": "cold", "namespace": "tonnage", "labels": {"app.kubernetes.io/component": "coldstart"}}
    }
    await fleet.server.put(kinds.PODS, a_pod("cold", server="x", **cold))
    cold_url = f"http://{fleet.server.body(kinds.PODS, 'cold', 'tonnage')['status']['podIP']}:8092"
    fleet.coldstart.views[cold_url] = NodeView(cold_url, {})
    spec = {"model": "llama-8b", "uri": uri, "replicas": 1}
    await fleet.server.put(kinds.LORA_ADAPTERS, {"metadata": {"name": "legal", "namespace": "serving"}, "spec": spec})

    def url(name: str) -> str:
        return f"http://{fleet.server.body(kinds.PODS, name)['status']['podIP']}:8000"

    await fleet.server.put(kinds.PODS, a_pod("p0"))
    fleet.engines.views[url("p0")] = EngineView(frozenset(), frozenset(), 0.0)
    fleet.engines.failing["p0"] = "the adapter's rank is too high"
    await fleet.start(cache_host_path="/var/lib/tonnage/cache")
    await fleet.until(lambda: "rank is too high" in str(status_of(fleet, kinds.LORA_ADAPTERS, "legal")))
    fleet.engines.failing.clear()
    await fleet.until(lambda: status_of(fleet, kinds.LORA_ADAPTERS, "legal").get("phase") == "Loaded")
    assert fleet.coldstart.staged[0].uri == uri
    assert kinds.FINALIZER in fleet.server.body(kinds.LORA_ADAPTERS, "legal")["metadata"]["finalizers"]
    await fleet.server.remove(kinds.PODS, "p0")
    await fleet.server.put(kinds.PODS, a_pod("q0"))
    fleet.engines.views[url("q0")] = EngineView(frozenset(), frozenset(), 0.0)
    await fleet.until(lambda: "legal" in (fleet.engines.views[url("q0")].adapters or ()))
    await fleet.server.remove(kinds.LORA_ADAPTERS, "legal")
    await fleet.until(lambda: fleet.server.body(kinds.LORA_ADAPTERS, "legal") is None)
    assert [call.call for call in fleet.engines.calls][-1] == "unload"


async def test_a_failed_gpu_marks_its_node_and_a_deinstallation_takes_everything_back(fleet: Any) -> None:
    for number in range(2):
        await fleet.server.put(kinds.NODES, {"metadata": {"name": f"n{number}"}, "spec": {}, "status": {}})
        verdict = {"status": "FAIL" if number else "OK", "reasons": ["hbm_low"]}
        profile = {"node": f"n{number}", "index": 0, "name": "H100-SXM-80GB", "verdict": verdict}
        await fleet.server.put(kinds.GPU_PROFILES, {"metadata": {"name": f"n{number}-0"}, "status": profile})
    await fleet.start(node_mode="cordon")
    await fleet.until(lambda: fleet.server.body(kinds.NODES, "n1")["spec"].get("unschedulable"))
    for name in ("n0", "n1"):
        await fleet.until(lambda name=name: "TonnageGpuHealthy" in str(fleet.server.body(kinds.NODES, name)["status"]))
    conditions = fleet.server.body(kinds.NODES, "n1")["status"]["conditions"]
    assert [(c["type"], c["status"]) for c in conditions] == [("TonnageGpuHealthy", "False")]
    await fleet.stop()
    held = {"metadata": {"name": "a", "namespace": "serving", "finalizers": [kinds.FINALIZER, "x/y"]}, "spec": {}}
    await fleet.server.put(kinds.LORA_ADAPTERS, held)

    def undo() -> Any:
        client = KubeClient(fleet.login())
        done = release(client)
        client.close()
        return done

    done = await asyncio.to_thread(undo)
    assert (done.finalizers, done.nodes, done.failed) == (1, 2, 0)
    node = fleet.server.body(kinds.NODES, "n1")
    assert (node["spec"].get("taints"), node["spec"].get("unschedulable")) == ([], None)
    assert node["status"]["conditions"] == []
    assert fleet.server.body(kinds.LORA_ADAPTERS, "a")["metadata"]["finalizers"] == ["x/y"]
