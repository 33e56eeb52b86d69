"""Adapters, caches and nodes: pure decisions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from tonnage_operator import kinds
from tonnage_operator.actions import Action, Apply, EngineCall, Merge, PinCall, SetStatus, StageCall, Why
from tonnage_operator.gpu_profile import marks as node_marks
from tonnage_operator.gpu_profile import reconcile as gpu
from tonnage_operator.gpu_profile.crd import ProfileView, read
from tonnage_operator.lora_adapter import reconcile as lora
from tonnage_operator.model_cache import reconcile as cache
from tonnage_operator.nodes import NodeView, Snapshot
from tonnage_operator.pods import EngineView, PodView, pod_view

Make = Callable[..., dict[str, Any]]
NOW_S = 1_795_953_600.0
"""2026-11-29T12:00:00Z"""
URI = "s3://adapters/legal"
HELD = NodeView("http://cold", {URI: Snapshot("k", "/var/cache/tonnage/legal", "r1", False)})


def adapter(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "legal", "namespace": "serving", "uid": "a", "finalizers": [kinds.FINALIZER]}
    return {"metadata": metadata, "spec": {"model": "llama-8b", "uri": URI, "replicas": 1, **spec}}


def status(actions: tuple[Action, ...]) -> dict[str, Any]:
    (found,) = [a for a in actions if isinstance(a, SetStatus)]
    return dict(found.status)


def seen(pods: list[PodView], engines: dict[str, EngineView], **more: Any) -> lora.Seen:
    base = lora.Seen(
        adapter(),
        NOW_S,
        server={"spec": {}},
        slots=2,
        pods=pods,
        engines=engines,
        caches={"n1": HELD},
        adapters=frozenset({"legal", "b", "c"}),
    )
    return replace(base, **more)


@pytest.fixture
def pods(a_pod: Make) -> list[PodView]:
    return [pod_view(a_pod(f"p{index}"), 8000) for index in range(3)]


EMPTY = EngineView(frozenset(), frozenset(), 0.0)


def test_an_adapter_is_staged_and_then_loaded_where_there_is_a_free_slot(pods: list[PodView]) -> None:
    engines = {pods[0].uid: EngineView(frozenset({"b", "c"})), pods[1].uid: EMPTY, pods[2].uid: EngineView()}
    first = lora.reconcile(seen(pods, engines, caches={"n1": NodeView("http://cold", {})})).actions
    (stage,) = [a for a in first if isinstance(a, StageCall)]
    assert (stage.uri, stage.node) == (URI, "n1")
    loads = [a for a in lora.reconcile(seen(pods, engines)).actions if isinstance(a, EngineCall)]
    assert [(a.call, a.pod, a.path) for a in loads] == [("load", "p1", "/var/cache/tonnage/legal")]


def test_the_finalizer_comes_before_the_first_load(pods: list[PodView]) -> None:
    item = adapter()
    item["metadata"].pop("finalizers")
    actions = lora.reconcile(seen(pods, {pod.uid: EMPTY for pod in pods}, item=item)).actions
    assert [type(a).__name__ for a in actions] == ["Merge", "SetStatus"]


def test_placement_stays_when_replicas_come_and_moves_only_with_its_pod(pods: list[PodView]) -> None:
    def chosen(present: list[PodView]) -> list[str]:
        views = {pod.uid: EMPTY for pod in present}
        return [one["pod"] for one in status(lora.reconcile(seen(present, views)).actions)["placements"]]

    (first,) = chosen(pods[:2])
    views = {pod.uid: EMPTY for pod in pods}
    views[next(pod.uid for pod in pods if pod.name == first)] = EngineView(frozenset({"legal"}), frozenset(), 0.0)
    kept = status(lora.reconcile(seen(pods, views)).actions)
    assert [one["pod"] for one in kept["placements"]] == [first]
    assert kept["phase"] == "Loaded"
    rest = [pod for pod in pods if pod.name != first]
    assert chosen(rest) != [first]


def test_an_engine_that_came_back_without_the_adapter_loads_it_again(pods: list[PodView]) -> None:
    placement = {"pod": "p0", "uid": pods[0].uid, "node": "n1", "state": "Loaded"}
    item = adapter() | {"status": {"placements": [placement]}}
    actions = lora.reconcile(seen(pods[:1], {pods[0].uid: EMPTY}, item=item)).actions
    (load,) = [a for a in actions if isinstance(a, EngineCall)]
    assert (load.call, load.why) == ("load", Why.RESTARTED)


def test_a_load_that_fails_is_tried_again_later_and_at_last_the_status_says_failed(pods: list[PodView]) -> None:
    tries = lora.Try()
    pauses = []
    for _ in range(lora.FAILED_AFTER):
        tries = lora.failed(tries, "rank 64 is too high", NOW_S)
        pauses.append(tries.next_s - NOW_S)
    assert pauses == [5, 10, 20, 40, 80]
    actions = lora.reconcile(seen(pods[:1], {pods[0].uid: EMPTY}, tries={pods[0].uid: tries})).actions
    assert not [a for a in actions if isinstance(a, EngineCall)]
    told = status(actions)
    assert told["phase"] == "Failed"
    assert told["conditions"][0]["reason"] == "LoadFailed"
    assert "rank 64 is too high" in told["conditions"][0]["message"]
    due = lora.reconcile(seen(pods[:1], {pods[0].uid: EMPTY}, tries={pods[0].uid: tries}, now_s=NOW_S + 81)).actions
    assert [a.call for a in due if isinstance(a, EngineCall)] == ["load"]


@pytest.mark.parametrize(
    ("busy", "calls"), [(frozenset({"legal"}), []), (None, []), (frozenset({"other"}), ["unload"])]
)
def test_it_is_unloaded_only_when_no_request_is_known_to_use_it(
    pods: list[PodView], busy: frozenset[str] | None, calls: list[str]
) -> None:
    item = adapter()
    item["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    views = {pods[0].uid: EngineView(frozenset({"legal"}), busy, 1.0)}
    actions = lora.reconcile(seen(pods[:1], views, item=item, now_s=NOW_S + 1)).actions
    assert [a.call for a in actions if isinstance(a, EngineCall)] == calls
    assert not [a for a in actions if isinstance(a, Merge)]


def test_a_deletion_ends_when_nobody_holds_it_or_after_its_time(pods: list[PodView]) -> None:
    item = adapter(releaseTimeoutSeconds=60)
    item["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    (gone,) = lora.reconcile(seen(pods, {pod.uid: EMPTY for pod in pods}, item=item)).actions
    assert isinstance(gone, Merge)
    assert gone.body["metadata"]["finalizers"] == []
    silent = {pods[0].uid: EngineView()}
    assert lora.reconcile(seen(pods[:1], silent, item=item, now_s=NOW_S + 59)).actions == ()
    assert lora.reconcile(seen(pods[:1], silent, item=item, now_s=NOW_S + 61)).actions != ()


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"server": None}, "NoServer"), ({"slots": 0}, "NoSlots"), ({}, "NoRoom")],
)
def test_what_keeps_an_adapter_out_is_said(more: dict[str, Any], reason: str) -> None:
    told = status(lora.reconcile(seen([], {}, **more)).actions)
    assert told["conditions"][0]["reason"] == reason


# --- caches -----------------------------------------------------------------------------------------------------------


def model_cache(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "llama", "namespace": "serving", "uid": "c"}
    return {"metadata": metadata, "spec": {"uri": URI, "nodeSelector": {"pool": "gpu"}, **spec}}


NODES = [{"metadata": {"name": f"n{i}", "labels": {"pool": "gpu" if i < 3 else "cpu"}}} for i in range(4)]


def cache_seen(item: dict[str, Any], services: dict[str, NodeView], **more: Any) -> cache.Seen:
    return cache.Seen(item, NOW_S, nodes=NODES, services=services, **more)


def test_a_cache_is_staged_on_each_selected_node_that_does_not_have_it() -> None:
    services = {"n0": HELD, "n1": NodeView("http://n1", {}), "n3": NodeView("http://n3", {})}
    actions = cache.reconcile(cache_seen(model_cache(), services)).actions
    assert [(a.node, a.pin) for a in actions if isinstance(a, StageCall)] == [("n1", False)]
    told = status(actions)
    assert (told["selectedNodes"], told["stagedNodes"]) == (3, 1)
    assert [one["state"] for one in told["nodes"]] == ["Staged", "Staging", "NoService"]


def test_a_running_job_is_not_asked_for_twice_and_a_failed_one_is_said() -> None:
    running = {"n0": NodeView("u", {}, {URI: ("running", "")})}
    assert not [a for a in cache.reconcile(cache_seen(model_cache(), running)).actions if isinstance(a, StageCall)]
    failed = {"n0": NodeView("u", {}, {URI: ("failed", "404: no such model")})}
    told = status(cache.reconcile(cache_seen(model_cache(), failed)).actions)
    assert told["conditions"][0]["reason"] == "StagingFailed"
    assert "no such model" in told["conditions"][0]["message"]


def test_pins_are_taken_back_on_deletion_unless_another_cache_wants_them() -> None:
    item = model_cache(pin=True)
    item["metadata"] |= {"finalizers": ["other/one", kinds.FINALIZER], "deletionTimestamp": "2026-11-29T12:00:00Z"}
    pinned = NodeView("http://n0", {URI: Snapshot("k", "/p", "r1", True)})
    (unpin,) = cache.reconcile(cache_seen(item, {"n0": pinned})).actions
    assert isinstance(unpin, PinCall)
    assert (unpin.key, unpin.pinned) == ("k", False)
    shared = cache.reconcile(cache_seen(item, {"n0": pinned}, pinned_elsewhere=frozenset({URI}))).actions
    (released,) = shared
    assert isinstance(released, Merge)
    assert released.body["metadata"]["finalizers"] == ["other/one"]


def test_a_pin_sets_the_finalizer_first() -> None:
    actions = cache.reconcile(cache_seen(model_cache(pin=True), {"n0": NodeView("u", {})})).actions
    assert [type(a).__name__ for a in actions] == ["Merge", "SetStatus"]


def test_images_are_pulled_by_a_daemon_set() -> None:
    item = model_cache(prePullImages=["vllm/vllm-openai:v0.32.0"], uri="")
    (apply, _) = cache.reconcile(cache_seen(item, {})).actions
    assert isinstance(apply, Apply)
    kubernetes_validate.validate({"apiVersion": "apps/v1", "kind": "DaemonSet", **apply.body}, "1.34", strict=True)
    pod = apply.body["spec"]["template"]["spec"]
    assert [one["image"] for one in pod["initContainers"]] == ["vllm/vllm-openai:v0.32.0"]
    assert pod["nodeSelector"] == {"pool": "gpu"}


# --- nodes ------------------------------------------------------------------------------------------------------------


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "7"}, "spec": {}, **more}


def profile(node_name: str, verdict: str, index: int = 0) -> ProfileView:
    return ProfileView(f"{node_name}-{index}", node_name, index, "H100-SXM-80GB", verdict, ("hbm_low",))


def fleet_of(verdicts: dict[str, str], mode: str, share: float = 0.1, **nodes: dict[str, Any]) -> gpu.Seen:
    return gpu.Seen(
        NOW_S,
        gpu.NodeRules(mode, share),
        [profile(name, verdict) for name, verdict in verdicts.items()],
        [nodes.get(name) or node(name) for name in verdicts],
    )


def merges(seen_: gpu.Seen) -> dict[str, dict[str, Any]]:
    return {a.name: dict(a.body) for a in gpu.reconcile(seen_).actions if isinstance(a, Merge)}


def test_dry_run_writes_nothing_and_counts_what_it_would_do() -> None:
    found = gpu.reconcile(fleet_of({"a": "FAIL", "b": "OK"}, "dry_run"))
    assert found.actions == ()
    assert found.notes["would"] == {"label": 2, "taint": 1, "cordon": 1, "release": 0}


@pytest.mark.parametrize(
    ("mode", "spec"),
    [
        ("label", None),
        ("taint", {"taints": [{"key": node_marks.TAINT, "effect": "NoSchedule"}]}),
        ("cordon", {"taints": [{"key": node_marks.TAINT, "effect": "NoSchedule"}], "unschedulable": True}),
    ],
)
def test_each_mode_does_more_than_the_one_before(mode: str, spec: dict[str, Any] | None) -> None:
    body = merges(fleet_of({"a": "FAIL"}, mode))["a"]
    assert body["metadata"]["labels"] == {
        "tonnage.dev/gpu-health": "fail",
        "tonnage.dev/gpu-class": "H100-SXM-80GB",
    }
    assert body["metadata"]["resourceVersion"] == "7"
    assert body.get("spec") == spec


def test_the_breaker_keeps_a_bad_day_from_emptying_the_cluster() -> None:
    verdicts = {f"n{i:02}": "FAIL" for i in range(20)}
    found = gpu.reconcile(fleet_of(verdicts, "cordon", 0.1))
    tainted = [a for a in found.actions if isinstance(a, Merge) and "spec" in a.body]
    assert len(tainted) == 2
    assert found.notes["refused"] == 18
    marked = node("n19", spec={"unschedulable": True, "taints": [{"key": node_marks.TAINT}]})
    marked["metadata"]["annotations"] = {node_marks.CORDONED: "2026"}
    again = {one.node for one in gpu.plan(fleet_of(verdicts, "cordon", 0.1, n19=marked)) if one.marks.taint}
    assert again == {"n00", "n19"}


def test_every_mark_has_a_way_back_and_marks_of_others_stay() -> None:
    theirs = {"key": "maintenance", "effect": "NoExecute"}
    marked = node("a", spec={"unschedulable": True, "taints": [theirs, {"key": node_marks.TAINT}]})
    marked["metadata"] |= {"annotations": {node_marks.CORDONED: "x"}, "labels": {node_marks.HEALTH_LABEL: "fail"}}
    for seen_ in (fleet_of({"a": "OK"}, "cordon", a=marked), fleet_of({"a": "FAIL"}, "dry_run", a=marked)):
        body = merges(seen_)["a"]
        assert body["spec"] == {"taints": [theirs], "unschedulable": None}
        assert body["metadata"]["annotations"] == {node_marks.CORDONED: None}
    human = node("a", spec={"unschedulable": True})
    assert "unschedulable" not in merges(fleet_of({"a": "FAIL"}, "cordon", a=human))["a"]["spec"]
    (body,) = merges(gpu.Seen(NOW_S, gpu.NodeRules("cordon"), (), (marked,))).values()
    assert body["spec"]["taints"] == [theirs]


def test_a_human_who_uncordons_has_the_last_word() -> None:
    note = node_marks.CORDONED

    def after(found: dict[str, Any], verdict: str) -> dict[str, Any]:
        """The node after one look, as a merge patch leaves it."""
        body = merges(fleet_of({"a": verdict}, "cordon", a=found)).get("a", {})
        metadata = {**found["metadata"], "annotations": {**found["metadata"].get("annotations", {})}}
        metadata["annotations"] |= body.get("metadata", {}).get("annotations", {})
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if v is not None}
        return {"metadata": metadata, "spec": {**found["spec"], **body.get("spec", {})}}

    cordoned = after(node("a"), "FAIL")
    assert cordoned["spec"]["unschedulable"] is True
    undone = after({**cordoned, "spec": {"taints": cordoned["spec"]["taints"]}}, "FAIL")
    assert "unschedulable" not in undone["spec"], "it is not fought over"
    assert undone["metadata"]["annotations"] == {note: node_marks.YIELDED}
    assert after(undone, "FAIL") == undone
    theirs = {**undone, "spec": {**undone["spec"], "unschedulable": True}}
    well = after(theirs, "OK")
    assert well["spec"]["unschedulable"] is True, "this cordon is the human's"
    assert well["metadata"]["annotations"] == {}
    again = after({**well, "spec": {}}, "FAIL")
    assert again["spec"]["unschedulable"] is True, "a new failure is a new reason"
    unseen = after({**cordoned, "spec": {"taints": []}}, "OK")
    assert "unschedulable" not in unseen["spec"]


def test_the_worst_gpu_speaks_for_its_node_and_unknown_is_no_failure() -> None:
    profiles = [profile("a", "OK", 0), profile("a", "FAIL", 1), profile("b", "UNKNOWN", 0)]
    seen_ = gpu.Seen(NOW_S, gpu.NodeRules("cordon", 1.0), profiles, [node("a"), node("b")])
    told = {one.node: one for one in gpu.plan(seen_)}
    assert (told["a"].verdict, told["a"].marks.taint) == ("FAIL", True)
    assert "GPU 1: hbm_low" in told["a"].message
    assert (told["b"].verdict, told["b"].marks.taint) == ("UNKNOWN", False)
    conditions = [a for a in gpu.reconcile(seen_).actions if isinstance(a, SetStatus)]
    words = {a.name: a.status["conditions"][0]["status"] for a in conditions}
    assert words == {"a": "False", "b": "Unknown"}


def test_a_profile_without_a_node_says_nothing_and_an_odd_verdict_is_unknown() -> None:
    assert read({"metadata": {"name": "x"}}) is None
    found = read({"metadata": {"name": "x"}, "status": {"node": "n", "verdict": {"status": "SUPERB"}}})
    assert found is not None
    assert found.verdict == "UNKNOWN"
