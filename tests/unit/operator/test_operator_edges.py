"""Decisions at their edges: who owns a field, what is not known, which replica goes first."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tonnage_operator import kinds
from tonnage_operator.actions import Action, Apply, EngineCall, Merge, PinCall, SetStatus
from tonnage_operator.diff import holds
from tonnage_operator.gpu_profile import reconcile as gpu
from tonnage_operator.gpu_profile.crd import ProfileView
from tonnage_operator.lora_adapter import reconcile as lora
from tonnage_operator.lora_adapter.placement import place
from tonnage_operator.model_cache import reconcile as cache
from tonnage_operator.model_server.pod import Fleet
from tonnage_operator.model_server.reconcile import Seen, reconcile
from tonnage_operator.model_server.target import Advice
from tonnage_operator.nodes import NodeView, Snapshot
from tonnage_operator.pods import EngineView, pod_view
from tonnage_operator.release import hold, let_go

Make = Callable[..., dict[str, Any]]
NOW, NOW_S = "2026-11-29T12:00:00Z", 1_795_953_600.0
URI = "s3://adapters/legal"


def deployment_of(actions: tuple[Action, ...], name: str = "llama-8b") -> dict[str, Any]:
    (found,) = [a.body for a in actions if isinstance(a, Apply) and (a.resource.kind, a.name) == ("Deployment", name)]
    return dict(found["spec"])


def status_of(actions: tuple[Action, ...]) -> dict[str, Any]:
    (found,) = [a.status for a in actions if isinstance(a, SetStatus)]
    return dict(found)


@pytest.mark.parametrize(("owner", "said"), [(kinds.MANAGER, 4), ("kubectl", None)])
def test_a_number_that_a_rogue_holds_is_said_only_where_it_is_ours(a_model_server: Make, owner: str, said: Any) -> None:
    uid = "uid-llama-8b"
    held = {"manager": owner, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    there = {
        "kind": "Deployment",
        "metadata": {
            "name": "llama-8b",
            "ownerReferences": [{"uid": uid, "controller": True}],
            "managedFields": [held],
        },
        "spec": {"replicas": 4},
    }
    rogue = {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "rogue"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "llama-8b"}},
    }
    item = a_model_server(replicas=9)
    actions = reconcile(Seen(item, NOW, there={("deployments", "llama-8b"): there}, scalers=[rogue])).actions
    assert deployment_of(actions).get("replicas") == said, "a field that nobody holds would fall back to 1"


def test_without_keda_its_mode_is_followed_directly_and_looked_at_again(a_model_server: Make) -> None:
    item = a_model_server(scaling={"mode": "keda", "max": 4}, replicas=2)
    fleet = Fleet(keda=False, scaler_address="planner:9091", tolerance_served=True)
    found = reconcile(Seen(item, NOW, fleet, advice=Advice(target=3)))
    assert not [a for a in found.actions if isinstance(a, Apply) and a.resource.kind == "ScaledObject"]
    assert status_of(found.actions)["scalingMode"] == "direct"
    assert found.again_s == 10.0, "nothing else tells of a new target"
    assert reconcile(Seen(a_model_server(replicas=2), NOW)).again_s is None


def test_an_engine_of_unknown_sleep_is_woken_before_it_is_routed_to(a_model_server: Make, a_pod: Make) -> None:
    item = a_model_server(replicas=1, scaling={"warm": 1, "warmKind": "sleeping"})
    warm = pod_view(a_pod("w1", part="warm"), 8000)
    actions = reconcile(Seen(item, NOW, pods=[warm], engines={warm.uid: EngineView()})).actions
    assert [(a.call, a.pod) for a in actions if isinstance(a, EngineCall)] == [("wake", "w1")]
    assert not [a for a in actions if isinstance(a, Merge)]


def test_a_warm_replica_that_serves_goes_on_and_no_other_takes_its_turn(a_model_server: Make, a_pod: Make) -> None:
    pods = [pod_view(a_pod(f"w{number}", part="warm"), 8000) for number in (1, 2)]
    pods[1] = replace(pods[1], routed=True)
    item = a_model_server(replicas=1, scaling={"warm": 2})
    assert not [a for a in reconcile(Seen(item, NOW, pods=pods)).actions if isinstance(a, Merge)]


def test_a_label_holds_for_the_pod_that_was_looked_at(a_model_server: Make, a_pod: Make) -> None:
    warm = replace(pod_view(a_pod("w1", part="warm"), 8000), version="7")
    actions = reconcile(Seen(a_model_server(replicas=1, scaling={"warm": 1}), NOW, pods=[warm])).actions
    (label,) = [a.body["metadata"] for a in actions if isinstance(a, Merge)]
    assert (label["uid"], label["resourceVersion"]) == (warm.uid, "7")


def test_the_warm_pool_is_never_more_than_the_most_replicas(a_model_server: Make) -> None:
    item = a_model_server(scaling={"max": 2, "warmAuto": True})
    actions = reconcile(Seen(item, NOW, advice=Advice(target=1, warm=50))).actions
    assert deployment_of(actions, "llama-8b-warm")["replicas"] == 2


def adapter(**more: Any) -> dict[str, Any]:
    metadata = {"name": "legal", "namespace": "serving", "uid": "a", "finalizers": [kinds.FINALIZER]}
    return {"metadata": {**metadata, **more}, "spec": {"model": "llama-8b", "uri": URI, "revision": "r2"}}


def test_an_adapter_is_neither_unloaded_from_a_pod_that_goes_nor_placed_on_an_unknown_engine(a_pod: Make) -> None:
    going = replace(pod_view(a_pod("p0"), 8000), going=True)
    holds = {going.uid: EngineView(frozenset({"legal"}), frozenset(), 0.0)}
    item = adapter(deletionTimestamp=NOW)
    assert lora.reconcile(lora.Seen(item, NOW_S + 1, {}, 1, [going], holds)).actions == ()
    silent = pod_view(a_pod("p1"), 8000)
    found = lora.reconcile(lora.Seen(adapter(), NOW_S, {}, 1, [silent], {silent.uid: EngineView()}))
    assert status_of(found.actions)["placements"] == []


@pytest.mark.parametrize(("revision", "calls"), [("r1", []), ("r2", ["load"])])
def test_files_of_another_revision_are_not_loaded(a_pod: Make, revision: str, calls: list[str]) -> None:
    pod = pod_view(a_pod("p0"), 8000)
    caches = {"n1": NodeView("http://n1", {URI: Snapshot("k", "/cache/k", revision, False)})}
    engines = {pod.uid: EngineView(frozenset(), frozenset(), 0.0)}
    actions = lora.reconcile(lora.Seen(adapter(), NOW_S, {}, 1, [pod], engines, caches)).actions
    assert [a.call for a in actions if isinstance(a, EngineCall)] == calls
    said = status_of(actions)["placements"][0].get("reason", "")
    assert (said == "the staged revision is r1, not r2") == (not calls)


@pytest.mark.parametrize(("finalizers", "unpins"), [([], 0), ([kinds.FINALIZER], 1)])
def test_a_pin_of_someone_else_is_not_taken_back(finalizers: list[str], unpins: int) -> None:
    metadata = {"name": "m", "namespace": "serving", "uid": "c", "finalizers": finalizers}
    services = {"n1": NodeView("http://n1", {URI: Snapshot("k", "/p", "r", True)})}
    seen = cache.Seen(
        {"metadata": metadata, "spec": {"uri": URI}}, NOW_S, nodes=[{"metadata": {"name": "n1"}}], services=services
    )
    assert len([a for a in cache.reconcile(seen).actions if isinstance(a, PinCall)]) == unpins


def test_nodes_that_are_gone_do_not_widen_the_breaker() -> None:
    profiles = [ProfileView(f"n{i:02}", f"n{i:02}", 0, "H100", "FAIL", ("x",)) for i in range(40)]
    nodes = [{"metadata": {"name": f"n{i:02}"}, "spec": {}} for i in range(10)]
    found = gpu.reconcile(gpu.Seen(NOW_S, gpu.NodeRules("taint", 0.1), profiles, nodes))
    assert len([a for a in found.actions if isinstance(a, Merge) and "spec" in a.body]) == 1
    assert found.notes["refused"] == 9


def test_a_replica_that_was_chosen_before_stays_chosen(a_pod: Make) -> None:
    pods = [pod_view(a_pod(f"p{number}"), 8000) for number in range(2)]
    free = {pod.uid: 1 for pod in pods}
    for pod in pods:
        assert place("legal", 1, pods, frozenset({pod.uid}), free) == [pod]


def test_finalizers_are_written_for_the_version_that_was_read() -> None:
    item: dict[str, Any] = {"metadata": {"name": "m", "resourceVersion": "7", "finalizers": ["x/y"]}}
    (held,) = hold(item, kinds.MODEL_CACHES)
    item["metadata"]["finalizers"] = ["x/y", kinds.FINALIZER]
    (released,) = let_go(item, kinds.MODEL_CACHES)
    assert isinstance(held, Merge)
    assert isinstance(released, Merge)
    assert held.body["metadata"] == {"resourceVersion": "7", "finalizers": ["x/y", kinds.FINALIZER]}
    assert released.body["metadata"] == {"resourceVersion": "7", "finalizers": ["x/y"]}


def test_a_list_with_one_more_item_is_another() -> None:
    assert holds({"a": [1], "b": 2}, {"a": [1]})
    assert not holds({"a": [1, 2]}, {"a": [1]})
