"""A ModelServer as objects and conditions: pure, from what is there to actions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from tonnage_operator import kinds
from tonnage_operator.actions import Action, Apply, Delete, EngineCall, Merge, SetScale, SetStatus, Why
from tonnage_operator.model_server.crd import Drain, read
from tonnage_operator.model_server.drain import EXIT_S, DrainTimes, drain_times
from tonnage_operator.model_server.pod import Fleet, template
from tonnage_operator.model_server.reconcile import Seen, reconcile
from tonnage_operator.model_server.target import Advice
from tonnage_operator.pods import EngineView, PodView, pod_view
from tonnage_operator.reading import SpecError

Make = Callable[..., dict[str, Any]]
NOW = "2026-11-29T12:00:00Z"
KEDA = Fleet(keda=True, scaler_address="planner:9091", tolerance_served=True)


def applies(actions: tuple[Action, ...]) -> dict[str, dict[str, Any]]:
    return {f"{a.resource.kind} {a.name}": dict(a.body) for a in actions if isinstance(a, Apply)}


def status(actions: tuple[Action, ...]) -> dict[str, Any]:
    (found,) = [a for a in actions if isinstance(a, SetStatus)]
    return dict(found.status)


def condition(actions: tuple[Action, ...], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in status(actions)["conditions"] if c["type"] == kind)
    return found


def settled(item: dict[str, Any], fleet: Fleet | None = None, **more: Any) -> Seen:
    """What there is after every action was done once."""
    seen = Seen(item, NOW, fleet or Fleet(), **more)
    there = {}
    for action in reconcile(seen).actions:
        if isinstance(action, Apply):
            there[(action.resource.plural, action.name)] = {"kind": action.resource.kind, **action.body}
    return replace(seen, there=there)


def test_every_object_is_valid_for_kubernetes(a_model_server: Make) -> None:
    item = a_model_server(scaling={"warm": 2, "warmKind": "sleeping"}, networkPolicy={"from": []})
    made = applies(reconcile(Seen(item, NOW, Fleet(placeholder_class="hold"))).actions)
    holding = a_model_server(scaling={"warm": 2, "warmKind": "placeholder"})
    made |= applies(reconcile(Seen(holding, NOW, Fleet(placeholder_class="hold"))).actions)
    made |= applies(reconcile(Seen(a_model_server(scaling={"mode": "hpa", "max": 8}), NOW)).actions)
    versions = {kind.kind: kind.api_version for kind in (*kinds.CHILDREN, *kinds.SCALERS)}
    assert {name.split()[0] for name in made} == {
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "Deployment",
        "HorizontalPodAutoscaler",
    }
    for name, body in made.items():
        kind = name.split()[0]
        kubernetes_validate.validate({"apiVersion": versions[kind], "kind": kind, **body}, "1.34", strict=True)


def test_the_pod_is_of_the_restricted_profile(a_model_server: Make) -> None:
    pod = template(read(a_model_server()), Fleet(), "serving")["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    assert pod["automountServiceAccountToken"] is False


def test_the_engine_gets_the_flags_of_the_specification_and_of_the_plan(a_model_server: Make) -> None:
    item = a_model_server(
        gpu={"count": 2},
        engine={"args": {"tensor-parallel-size": 2, "enable-lora": True, "max-loras": 4, "enforce-eager": False}},
    )
    command = template(read(item), Fleet(), "serving")["spec"]["containers"][0]["command"]
    line = " ".join(command)
    assert line.startswith("vllm serve /model/weights --host 0.0.0.0 --port 8000 --served-model-name llama-8b")
    assert "--shutdown-timeout 300" in line
    assert line.count("--enable-lora") == line.count("--max-loras") == line.count("--tensor-parallel-size") == 1
    assert "--max-model-len 16384" in line
    assert "--no-enforce-eager" in line
    plain = template(read(a_model_server(gpu={"count": 4}, engine={"loraSlots": 0})), Fleet(), "serving")
    assert "--tensor-parallel-size 4" in " ".join(plain["spec"]["containers"][0]["command"])


def test_a_hugging_face_model_is_left_to_the_engine(a_model_server: Make) -> None:
    item = a_model_server(model={"uri": "hf://meta-llama/Llama-3.1-8B", "revision": "main"})
    pod = template(read(item), Fleet(), "serving")["spec"]
    assert "initContainers" not in pod
    assert "meta-llama/Llama-3.1-8B" in pod["containers"][0]["command"]
    assert "--revision main" in " ".join(pod["containers"][0]["command"])


@pytest.mark.parametrize(("timeout", "unroute"), [(1, 1), (300, 15), (3600, 120)])
def test_the_times_of_a_pods_end_fit_strictly(a_model_server: Make, timeout: int, unroute: int) -> None:
    item = a_model_server(drain={"timeoutSeconds": timeout, "unrouteSeconds": unroute})
    pod = template(read(item), Fleet(), "serving")["spec"]
    engine = pod["containers"][0]
    (wait,) = [int(engine["lifecycle"]["preStop"]["exec"]["command"][-1])]
    command = engine["command"]
    of_engine = int(command[command.index("--shutdown-timeout") + 1])
    assert (wait, of_engine) == (unroute, timeout)
    assert wait + of_engine < pod["terminationGracePeriodSeconds"]


def test_times_that_do_not_fit_are_refused() -> None:
    good = drain_times(Drain(30, 5))
    with pytest.raises(SpecError, match="grace period of 49 s"):
        DrainTimes(good.pre_stop_s, good.engine_s, good.grace_s - 1).check()
    for pre_stop, engine in ((0, 30), (5, 0)):
        with pytest.raises(SpecError, match="drain"):
            DrainTimes(pre_stop, engine, 3600).check()
    assert good.grace_s == 35 + EXIT_S


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"scaling": {"min": 5, "max": 2}}, "min 5 is more than max 2"),
        ({"scaling": {"mode": "hpa", "toZero": True}}, "HPA keeps at least one"),
        ({"engine": {"args": {"port": 1}}}, "args.port: other fields say this"),
        ({"engine": {"args": {"max-loras": 9}}}, "args.max-loras"),
        ({"engine": {"args": {"tensor-parallel-size": 2}}}, "gpu.count is 1; the engine's arguments need 2"),
        ({"engine": {"kind": "sglang"}}, "one of vllm is expected"),
        ({"gpu": {"count": 0}}, "at least 1"),
        ({"model": None}, "spec.model.name"),
    ],
)
def test_a_specification_that_cannot_work_is_refused_and_nothing_is_touched(
    a_model_server: Make, spec: dict[str, Any], words: str
) -> None:
    item = a_model_server(**spec) | {"status": {"readyReplicas": 3}}
    (action,) = reconcile(Seen(item, NOW)).actions
    assert isinstance(action, SetStatus)
    assert action.status["readyReplicas"] == 3
    refused = next(c for c in action.status["conditions"] if c["type"] == "SpecValid")
    assert refused["status"] == "False"
    assert words in refused["message"]


def test_a_stored_object_of_an_older_kind_is_followed_with_defaults() -> None:
    item = {
        "metadata": {"name": "old", "namespace": "serving", "uid": "u"},
        "spec": {"model": {"name": "m", "uri": "hf://m"}, "engine": {"version": "0.19.0"}, "future": {"x": 1}},
    }
    made = applies(reconcile(Seen(item, NOW)).actions)
    assert made["Deployment old"]["spec"]["replicas"] == 1


def test_what_was_done_is_not_done_again_and_a_change_is(a_model_server: Make) -> None:
    seen = settled(a_model_server())
    assert not [a for a in reconcile(seen).actions if isinstance(a, Apply)]
    changed = replace(seen, item=a_model_server(engine={"version": "0.33.0"}))
    (action,) = [a for a in reconcile(changed).actions if isinstance(a, Apply)]
    assert (action.why, action.name) == (Why.CHANGED, "llama-8b")
    deployment = dict(seen.there[("deployments", "llama-8b")])
    deployment["spec"] = {**deployment["spec"], "progressDeadlineSeconds": 1}
    drifted = replace(seen, there={**seen.there, ("deployments", "llama-8b"): deployment})
    (action,) = [a for a in reconcile(drifted).actions if isinstance(a, Apply)]
    assert action.why is Why.DRIFTED


def test_an_object_of_someone_else_is_not_taken_over(a_model_server: Make) -> None:
    stranger = {"kind": "Service", "metadata": {"name": "llama-8b", "namespace": "serving", "uid": "x"}}
    actions = reconcile(Seen(a_model_server(), NOW, there={("services", "llama-8b"): stranger})).actions
    assert "Service llama-8b" not in applies(actions)
    assert "Service llama-8b is not ours" in condition(actions, "NamesFree")["message"]


def test_a_scaling_object_of_the_old_way_goes_before_the_new_one_comes(a_model_server: Make) -> None:
    seen = settled(a_model_server(scaling={"mode": "keda"}), KEDA)
    assert ("scaledobjects", "llama-8b") in seen.there
    actions = reconcile(replace(seen, item=a_model_server(scaling={"mode": "hpa"}))).actions
    kinds_in_order = [(type(a).__name__, a.resource.kind) for a in actions if isinstance(a, Apply | Delete)]
    assert kinds_in_order == [("Delete", "ScaledObject"), ("Apply", "HorizontalPodAutoscaler")]


def test_the_scaling_object_carries_the_target_to_the_model_server(a_model_server: Make) -> None:
    body = applies(reconcile(Seen(a_model_server(scaling={"mode": "keda"}), NOW, KEDA)).actions)
    scaled = body["ScaledObject llama-8b"]["spec"]
    assert scaled["scaleTargetRef"] == {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelServer",
        "name": "llama-8b",
    }
    behaviour = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour["scaleDown"]["stabilizationWindowSeconds"] == 0
    assert behaviour["scaleDown"]["tolerance"] == "0"
    direct = reconcile(Seen(a_model_server(scaling={"mode": "keda"}), NOW, replace(KEDA, tolerance_served=False)))
    assert "ScaledObject llama-8b" not in applies(direct.actions)
    assert status(direct.actions)["scalingMode"] == "direct"


def test_scaling_starts_at_the_minimum_and_keeps_to_its_bounds(a_model_server: Make) -> None:
    def replicas(written: int | None, **scaling: Any) -> int:
        spec: dict[str, Any] = {"scaling": {"mode": "keda", "min": 2, "max": 5, **scaling}}
        if written is not None:
            spec["replicas"] = written
        made = applies(reconcile(Seen(a_model_server(**spec), NOW, KEDA)).actions)
        return int(made["Deployment llama-8b"]["spec"]["replicas"])

    assert [replicas(None), replicas(0), replicas(4), replicas(99)] == [2, 2, 4, 5]
    assert replicas(0, min=0, toZero=True) == 0


def test_in_direct_mode_the_planners_target_is_written_and_an_unknown_one_holds(a_model_server: Make) -> None:
    item = a_model_server(scaling={"mode": "direct"}, replicas=3)
    actions = reconcile(Seen(item, NOW, advice=Advice(target=5))).actions
    (scale,) = [a for a in actions if isinstance(a, SetScale)]
    assert (scale.replicas, scale.why) == (5, Why.TARGET)
    assert applies(actions)["Deployment llama-8b"]["spec"]["replicas"] == 5
    unknown = reconcile(Seen(item, NOW, advice=Advice(problem="refused"))).actions
    assert not [a for a in unknown if isinstance(a, SetScale)]
    assert applies(unknown)["Deployment llama-8b"]["spec"]["replicas"] == 3
    assert condition(unknown, "ScalingActive")["status"] == "Unknown"
    assert "refused" in condition(unknown, "ScalingActive")["message"]


def written_by(deployment: dict[str, Any], manager: str, replicas: int) -> dict[str, Any]:
    entry = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    metadata = {**deployment["metadata"], "managedFields": [entry]}
    return {**deployment, "metadata": metadata, "spec": {**deployment["spec"], "replicas": replicas}}


def test_a_human_who_scales_the_deployment_is_reported_and_not_fought(a_model_server: Make) -> None:
    seen = settled(a_model_server())
    deployment = written_by(dict(seen.there[("deployments", "llama-8b")]), "kubectl", 7)
    found = replace(seen, there={**seen.there, ("deployments", "llama-8b"): deployment})
    actions = reconcile(found).actions
    assert "replicas" not in applies(actions)["Deployment llama-8b"]["spec"]
    told = condition(actions, "ScaleConflict")
    assert told["status"] == "True"
    assert "kubectl set replicas of Deployment llama-8b to 7" in told["message"]
    given_back = written_by(dict(deployment), "kubectl", 1)
    again = reconcile(replace(seen, there={**seen.there, ("deployments", "llama-8b"): given_back})).actions
    assert condition(again, "ScaleConflict")["status"] == "False"


def test_a_rogue_hpa_on_the_deployment_holds_the_number_that_is_there(a_model_server: Make) -> None:
    seen = settled(a_model_server(replicas=4))
    rogue = {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "rogue", "namespace": "serving"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "llama-8b"}},
    }
    found = replace(seen, item=a_model_server(replicas=9), scalers=[rogue])
    actions = reconcile(found).actions
    assert condition(actions, "ScaleConflict")["reason"] == "OtherWriter"
    assert "HorizontalPodAutoscaler rogue" in condition(actions, "ScaleConflict")["message"]
    assert status(actions)["desiredReplicas"] == 4


def test_another_writer_of_the_model_servers_scale_stops_direct_writes(a_model_server: Make) -> None:
    item = a_model_server(scaling={"mode": "direct"}, replicas=2) | {"status": {"writtenReplicas": 5}}
    entry = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    item["metadata"]["managedFields"] = [entry]
    actions = reconcile(Seen(item, NOW, advice=Advice(target=6))).actions
    assert not [a for a in actions if isinstance(a, SetScale)]
    assert condition(actions, "ScaleConflict")["status"] == "True"
    item["metadata"]["managedFields"] = [{**entry, "manager": kinds.MANAGER}]
    assert [a for a in reconcile(Seen(item, NOW, advice=Advice(target=6))).actions if isinstance(a, SetScale)]


def test_kedas_hpa_without_our_metric_is_deleted_so_that_keda_makes_it_anew(a_model_server: Make) -> None:
    mine = {"kind": "ScaledObject", "metadata": {"name": "llama-8b", "namespace": "serving", "uid": "so"}}
    bad = {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": "keda-hpa-llama-8b",
            "uid": "h",
            "ownerReferences": [{"uid": "so", "kind": "ScaledObject"}],
        },
        "spec": {"metrics": [{"type": "Resource"}]},
    }
    seen = Seen(a_model_server(scaling={"mode": "keda"}), NOW, KEDA, scalers=[mine, bad])
    assert [a.name for a in reconcile(seen).actions if isinstance(a, Delete)] == ["keda-hpa-llama-8b"]
    good = {**bad, "spec": {"metrics": [{"type": "External"}]}}
    assert not [a for a in reconcile(replace(seen, scalers=[mine, good])).actions if isinstance(a, Delete)]


def warm_pod(a_pod: Make, name: str, **more: Any) -> PodView:
    return pod_view(a_pod(name, part="warm", **more), 8000)


def test_warm_replicas_serve_while_cold_ones_start_and_go_back(a_model_server: Make, a_pod: Make) -> None:
    item = a_model_server(replicas=2, scaling={"warm": 1})
    serving, warm = pod_view(a_pod("s1"), 8000), warm_pod(a_pod, "w1")
    lent = reconcile(Seen(item, NOW, pods=[serving, warm])).actions
    (action,) = [a for a in lent if isinstance(a, Merge)]
    assert (action.why, action.body["metadata"]["labels"]) == (Why.PROMOTE, {kinds.MODEL: "llama-8b"})
    assert status(lent)["warm"]["lentReplicas"] == 1
    back = reconcile(Seen(item, NOW, pods=[serving, pod_view(a_pod("s2"), 8000), replace(warm, routed=True)])).actions
    (action,) = [a for a in back if isinstance(a, Merge)]
    assert (action.why, action.body["metadata"]["labels"]) == (Why.DEMOTE, {kinds.MODEL: None})


def test_a_sleeping_replica_wakes_before_it_is_routed_to_and_sleeps_only_when_idle(
    a_model_server: Make, a_pod: Make
) -> None:
    item = a_model_server(replicas=1, scaling={"warm": 1, "warmKind": "sleeping"})
    warm = warm_pod(a_pod, "w1")

    def done(pods: list[PodView], view: EngineView) -> list[tuple[str, str]]:
        actions = reconcile(Seen(item, NOW, pods=pods, engines={warm.uid: view})).actions
        calls = [("call", a.call) for a in actions if isinstance(a, EngineCall)]
        return calls + [("label", str(a.why)) for a in actions if isinstance(a, Merge)]

    assert done([warm], EngineView(sleeping=True)) == [("call", "wake")]
    assert done([warm], EngineView(sleeping=False)) == [("label", "promote")]
    serving = pod_view(a_pod("s1"), 8000)
    assert done([serving, replace(warm, routed=True)], EngineView(sleeping=False, requests=2)) == [("label", "demote")]
    assert done([serving, warm], EngineView(sleeping=False, requests=2)) == []
    assert done([serving, warm], EngineView(sleeping=False, requests=None)) == []
    assert done([serving, warm], EngineView(sleeping=False, requests=0)) == [("call", "sleep")]


def test_control_calls_come_with_a_network_policy(a_model_server: Make) -> None:
    sleeping = applies(reconcile(Seen(a_model_server(scaling={"warm": 1, "warmKind": "sleeping"}), NOW)).actions)
    assert sleeping["NetworkPolicy llama-8b"]["spec"]["policyTypes"] == ["Ingress"]
    engine = sleeping["Deployment llama-8b"]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "VLLM_SERVER_DEV_MODE", "value": "1"} in engine["env"]
    plain = applies(reconcile(Seen(a_model_server(scaling={"warm": 1}), NOW)).actions)
    assert "NetworkPolicy llama-8b" not in plain
    text = str(plain["Deployment llama-8b"])
    assert "VLLM_SERVER_DEV_MODE" not in text
    assert "--enable-sleep-mode" not in text


def test_the_warm_pools_size_and_price_are_the_planners_where_it_says_them(a_model_server: Make) -> None:
    advice = Advice(target=2, warm=3, idle_usd_per_hour=8.7, saved_misses_per_hour=41.0)
    auto = status(reconcile(Seen(a_model_server(scaling={"warmAuto": True}), NOW, advice=advice)).actions)["warm"]
    assert (auto["replicas"], auto["idleUsdPerHour"], auto["savedMissesPerHour"]) == (3, 8.7, 41.0)
    fixed = status(reconcile(Seen(a_model_server(scaling={"warm": 1}), NOW)).actions)["warm"]
    assert fixed["replicas"] == 1
    assert "idleUsdPerHour" not in fixed


def test_a_placeholder_holds_gpus_at_the_lowest_priority(a_model_server: Make) -> None:
    item = a_model_server(scaling={"warm": 2, "warmKind": "placeholder"}, gpu={"count": 2})
    made = applies(reconcile(Seen(item, NOW, Fleet(placeholder_class="tonnage-hold"))).actions)
    pod = made["Deployment llama-8b-hold"]["spec"]["template"]["spec"]
    assert (pod["priorityClassName"], pod["terminationGracePeriodSeconds"]) == ("tonnage-hold", 0)
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_a_pod_without_a_place_is_said(a_model_server: Make, a_pod: Make) -> None:
    stuck = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
    pod = pod_view(a_pod("s1", status={"podIP": "", "conditions": [stuck]}), 8000)
    told = condition(reconcile(Seen(a_model_server(), NOW, pods=[pod])).actions, "Schedulable")
    assert (told["status"], told["message"]) == ("False", "0/3 nodes: no GPU")


def test_a_model_server_that_is_being_deleted_needs_nothing(a_model_server: Make) -> None:
    item = a_model_server()
    item["metadata"]["deletionTimestamp"] = NOW
    assert reconcile(Seen(item, NOW)).actions == ()


def test_the_time_of_a_condition_moves_only_with_its_status(a_model_server: Make) -> None:
    first = status(reconcile(Seen(a_model_server(), NOW)).actions)
    item = a_model_server() | {"status": first}
    seen = settled(item)
    assert not [a for a in reconcile(replace(seen, now="2026-11-29T13:00:00Z")).actions if isinstance(a, SetStatus)]
