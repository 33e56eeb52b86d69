"""What is refused, by whom, keeps nothing else waiting, and is said: bad specifications, refused writes, sick nodes."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tonnage_operator import kinds
from tonnage_operator.actions import Action, Apply, SetScale, SetStatus
from tonnage_operator.adapters.http import CallError
from tonnage_operator.adapters.planner_http import HttpPlanner
from tonnage_operator.lora_adapter import reconcile as lora
from tonnage_operator.main import release_all
from tonnage_operator.model_cache import reconcile as cache
from tonnage_operator.model_server.pod import Fleet
from tonnage_operator.model_server.reconcile import Seen, reconcile
from tonnage_operator.model_server.target import Advice
from tonnage_operator.nodes import NodeView, Snapshot
from tonnage_operator.pods import EngineView, pod_view
from tonnage_operator.settings import OperatorSettings
from tonnage_operator.uninstall import release
from tonnage_runtime.kube import KubeClient

Make = Callable[..., dict[str, Any]]
NOW, NOW_S = "2026-11-29T12:00:00Z", 1_795_953_600.0
SERVER = kinds.MODEL_SERVERS
KEDA = Fleet(keda=True, scaler_address="planner:9091", tolerance_served=True)


def condition(actions: tuple[Action, ...], kind: str) -> dict[str, Any]:
    (found,) = [a for a in actions if isinstance(a, SetStatus)]
    told: dict[str, Any] = next(c for c in found.status["conditions"] if c["type"] == kind)
    return told


def condition_of(fleet: Any, kind: Any, name: str, word: str) -> dict[str, Any]:
    status = (fleet.server.body(kind, name) or {}).get("status") or {}
    found: dict[str, Any] = next((c for c in status.get("conditions") or [] if c["type"] == word), {})
    return found


# --- specifications ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"engine": {"env": ["A=b"]}}, "spec.engine.env: each item is a mapping"),
        ({"engine": {"env": [{"value": "b"}]}}, "spec.engine.env: each item has a name"),
        ({"engine": {"env": [{"name": ""}]}}, "spec.engine.env: each item has a name"),
        ({"engine": {"resources": {"limits": ["cpu"]}}}, "spec.engine.resources.limits: a mapping is expected"),
        ({"engine": {"resources": {"requests": {"nvidia.com/gpu": "8"}}}}, "resources.requests: nvidia.com/gpu is 8"),
        ({"engine": {"startTimeoutSeconds": 3 * 10**9}}, "at most 604800"),
        ({"engine": {"loraSlots": 4097}}, "at most 4096"),
        ({"engine": {"args": {"pipeline-parallel-size": 2}}}, "gpu.count is 1; the engine's arguments need 2"),
        ({"engine": {"args": {"data-parallel-size": 2}}}, "gpu.count is 1; the engine's arguments need 2"),
        ({"engine": {"args": {"tensor-parallel-size": "2"}}}, "args.tensor-parallel-size: a whole number"),
        ({"engine": {"args": {"pipeline-parallel-size": 0}}}, "args.pipeline-parallel-size: a whole number"),
        ({"gpu": {"tolerations": ["all"]}}, "spec.gpu.tolerations: each item is a mapping"),
        ({"gpu": {"nodeSelector": {"zone": 1}}}, "spec.gpu.nodeSelector: each value is text"),
        ({"gpu": {"count": 65}}, "at most 64"),
        ({"networkPolicy": {"from": ["all"]}}, "spec.networkPolicy.from: each item is a mapping"),
        ({"scaling": {"max": 10**12}}, "at most 100000"),
        ({"replicas": 10**12}, "at most 100000"),
        ({"drain": {"timeoutSeconds": 86_401}}, "at most 86400"),
        ({"drain": {"unrouteSeconds": 601}}, "at most 600"),
        ({"model": {"uri": "--trust-remote-code"}}, "spec.model.uri"),
        ({"model": {"name": "a\nb"}}, "spec.model.name"),
        ({"model": {"revision": "-x"}}, "spec.model.revision"),
    ],
)
def test_a_value_that_no_object_could_hold_is_refused_by_its_field(
    a_model_server: Make, spec: dict[str, Any], words: str
) -> None:
    actions = reconcile(Seen(a_model_server(**spec), NOW)).actions
    assert [type(action) for action in actions] == [SetStatus]
    told = condition(actions, "SpecValid")
    assert told["status"] == "False"
    assert words in told["message"]


def test_the_layout_of_a_plan_takes_its_gpus(a_model_server: Make) -> None:
    args = {"tensor-parallel-size": 2, "pipeline-parallel-size": 2}
    item = a_model_server(gpu={"count": 4}, engine={"args": args, "resources": {"limits": {"nvidia.com/gpu": 4}}})
    assert condition(reconcile(Seen(item, NOW)).actions, "SpecValid")["status"] == "True"


@pytest.mark.parametrize(("name", "words"), [("a.b", "no dots"), ("a" * 46, "at most 45")])
def test_a_name_that_its_parts_cannot_have_is_refused(a_model_server: Make, name: str, words: str) -> None:
    assert words in condition(reconcile(Seen(a_model_server(name), NOW)).actions, "SpecValid")["message"]
    assert condition(reconcile(Seen(a_model_server("a" * 45), NOW)).actions, "SpecValid")["status"] == "True"


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("c" * 64, {"prePullImages": ["x:1"]}, "at most 63 characters"),
        ("c", {"prePullImages": [1]}, "each item is an image's name"),
        ("c", {"prePullImages": [""]}, "each item is an image's name"),
        ("c", {"uri": "s3://m", "nodeSelector": {"a": 1}}, "spec.nodeSelector: each value is text"),
    ],
)
def test_a_cache_that_cannot_be_made_is_refused(name: str, spec: dict[str, Any], words: str) -> None:
    item = {"metadata": {"name": name, "namespace": "serving", "uid": "c"}, "spec": spec}
    (action,) = cache.reconcile(cache.Seen(item, NOW_S)).actions
    assert isinstance(action, SetStatus)
    assert words in action.status["conditions"][0]["message"]
    fits = {**item, "metadata": {**item["metadata"], "name": "c" * 63}, "spec": {"prePullImages": ["x:1"]}}
    assert isinstance(cache.reconcile(cache.Seen(fits, NOW_S)).actions[0], Apply)


# --- the first number -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scaling", "first"),
    [
        ({"mode": "manual", "min": 2}, 2),
        ({"mode": "keda", "min": 2, "max": 4}, 2),
        ({"mode": "keda", "min": 0, "toZero": True}, 0),
        ({"mode": "hpa", "max": 4}, 1),
        ({"mode": "hpa", "min": 0, "max": 4}, 1),
        ({"mode": "direct", "min": 2, "max": 4}, 2),
    ],
)
def test_the_first_number_is_written_since_without_one_no_scale_is_served(
    a_model_server: Make, scaling: dict[str, Any], first: int
) -> None:
    actions = reconcile(Seen(a_model_server(scaling=scaling), NOW, KEDA)).actions
    assert [action.replicas for action in actions if isinstance(action, SetScale)] == [first]
    (deployment,) = [a.body for a in actions if isinstance(a, Apply) and a.resource.kind == "Deployment"]
    assert deployment["spec"]["replicas"] == first
    again = reconcile(Seen(a_model_server(scaling=scaling, replicas=first), NOW, KEDA)).actions
    assert not [action for action in again if isinstance(action, SetScale)]


async def test_scale_is_readable_in_every_mode(fleet: Any, a_model_server: Make) -> None:
    for mode in ("manual", "hpa", "direct"):
        await fleet.server.put(SERVER, a_model_server(mode, scaling={"mode": mode, "max": 8}))
    await fleet.start()
    for mode in ("manual", "hpa", "direct"):
        await fleet.until(lambda mode=mode: fleet.server.body(SERVER, mode)["spec"].get("replicas") == 1)


# --- refused writes and calls -----------------------------------------------------------------------------------------


def test_what_the_api_server_refused_is_a_condition(a_model_server: Make) -> None:
    seen = Seen(a_model_server(), NOW, refusals={"Deployment llama-8b": "422: no"})
    told = condition(reconcile(seen).actions, "Applied")
    assert (told["status"], told["reason"], told["message"]) == ("False", "Refused", "Deployment llama-8b: 422: no")
    assert condition(reconcile(replace(seen, refusals={})).actions, "Applied")["status"] == "True"


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_a_refused_part_keeps_no_other_waiting_and_is_said_until_it_is_taken(
    fleet: Any, a_model_server: Make, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tonnage_operator.controller.LEAST_S", 0.02)
    fleet.server.script("patch", r"/services/llama-8b$", status, 10_000)
    await fleet.server.put(SERVER, a_model_server())
    await fleet.start()
    await fleet.until(lambda: fleet.server.body(kinds.DEPLOYMENTS, "llama-8b"))
    await fleet.until(
        lambda: "Service llama-8b" in condition_of(fleet, SERVER, "llama-8b", "Applied").get("message", "")
    )
    fleet.server.scripts.clear()
    await fleet.until(lambda: fleet.server.body(kinds.SERVICES, "llama-8b"))
    await fleet.until(lambda: condition_of(fleet, SERVER, "llama-8b", "Applied")["status"] == "True")


async def test_a_node_whose_service_refuses_keeps_no_other_node_waiting(
    fleet: Any, a_pod: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tonnage_operator.controller.LEAST_S", 0.02)
    label = {"app.kubernetes.io/component": "coldstart"}
    sick = []
    for number in range(3):
        name = f"cold-{number}"
        await fleet.server.put(kinds.NODES, {"metadata": {"name": f"n{number}"}, "spec": {}, "status": {}})
        metadata = {"name": name, "namespace": "tonnage", "labels": label}
        pod = a_pod(name, server="x", metadata=metadata, spec={"nodeName": f"n{number}"})
        await fleet.server.put(kinds.PODS, pod)
        url = f"http://{pod['status']['podIP']}:8092"
        fleet.coldstart.views[url] = NodeView(url, {})
        sick.append(url)
    stage = fleet.coldstart.stage

    def refuses(action: Any) -> None:
        if action.url == sick[0]:
            raise CallError("507: no room on the disk", 507)
        stage(action)

    monkeypatch.setattr(fleet.coldstart, "stage", refuses)
    item = {"metadata": {"name": "m", "namespace": "serving"}, "spec": {"uri": "s3://m"}}
    await fleet.server.put(kinds.MODEL_CACHES, item)
    await fleet.start()
    await fleet.until(lambda: sorted(one.node for one in fleet.coldstart.staged) == ["n1", "n2"])
    await fleet.until(lambda: "no room" in condition_of(fleet, kinds.MODEL_CACHES, "m", "Ready").get("message", ""))
    nodes = fleet.server.body(kinds.MODEL_CACHES, "m")["status"]["nodes"]
    assert next(one["state"] for one in nodes) == "Failed"


async def test_an_engine_that_refuses_to_unload_keeps_no_other_waiting(
    fleet: Any, a_model_server: Make, a_pod: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tonnage_operator.controller.LEAST_S", 0.02)
    await fleet.server.put(SERVER, a_model_server())
    for name in ("p0", "p1", "p2"):
        await fleet.server.put(kinds.PODS, a_pod(name))
        url = f"http://{fleet.server.body(kinds.PODS, name)['status']['podIP']}:8000"
        fleet.engines.views[url] = EngineView(frozenset({"legal"}), frozenset(), 0.0)
    fleet.engines.failing["p0"] = "500"
    metadata = {"name": "legal", "namespace": "serving", "finalizers": [kinds.FINALIZER]}
    spec = {"model": "llama-8b", "uri": "hf://legal"}
    await fleet.server.put(kinds.LORA_ADAPTERS, {"metadata": metadata, "spec": spec})
    await fleet.server.remove(kinds.LORA_ADAPTERS, "legal")
    await fleet.start()
    await fleet.until(lambda: {one.pod for one in fleet.engines.calls if one.call == "unload"} == {"p0", "p1", "p2"})
    assert fleet.server.body(kinds.LORA_ADAPTERS, "legal"), "p0 holds it still"
    fleet.engines.failing.clear()
    await fleet.until(lambda: fleet.server.body(kinds.LORA_ADAPTERS, "legal") is None)


# --- deletions --------------------------------------------------------------------------------------------------------


def ending(name: str, spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "serving", "uid": "a", "finalizers": [kinds.FINALIZER]}
    return {"metadata": {**metadata, "deletionTimestamp": NOW}, "spec": spec, "status": status}


def test_an_adapter_waits_for_an_engine_that_is_not_ready_and_may_have_it(a_pod: Make) -> None:
    pod = replace(pod_view(a_pod("p0"), 8000), ready=False)
    had = {"placements": [{"pod": "p0", "uid": pod.uid, "state": "Loaded"}]}
    spec = {"model": "llama-8b", "uri": "hf://x", "releaseTimeoutSeconds": 60}

    def waits(one: Any, status: dict[str, Any], after_s: float = 1.0) -> bool:
        seen = lora.Seen(ending("legal", spec, status), NOW_S + after_s, server={}, slots=1, pods=[one])
        return not lora.reconcile(seen).actions

    assert waits(pod, had)
    assert not waits(pod, {}), "it never had it"
    assert not waits(replace(pod, going=True), had), "it goes, and what it holds with it"
    assert not waits(pod, had, after_s=61.0)


def test_a_cache_waits_for_a_node_whose_service_is_away_and_not_for_one_that_is_gone() -> None:
    status = {"nodes": [{"node": "n1", "state": "Staged"}]}
    item = ending("m", {"uri": "s3://m", "pin": True, "releaseTimeoutSeconds": 60}, status)
    there = [{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}]

    def waits(nodes: list[dict[str, Any]], services: dict[str, NodeView], after_s: float = 1.0) -> bool:
        return not cache.reconcile(cache.Seen(item, NOW_S + after_s, nodes=nodes, services=services)).actions

    empty = {"n1": NodeView("http://n1", {}), "n2": NodeView("http://n2", {"s3://x": Snapshot("k", "/p", "", True)})}
    assert waits(there, {})
    assert not waits(there, empty)
    assert not waits(there[1:], {})
    assert not waits(there, {}, after_s=61.0)


async def test_a_release_holds_a_running_operator_off(fleet: Any, a_model_server: Make, a_pod: Make) -> None:
    await fleet.server.put(SERVER, a_model_server())
    await fleet.server.put(kinds.PODS, a_pod("p0"))
    url = f"http://{fleet.server.body(kinds.PODS, 'p0')['status']['podIP']}:8000"
    fleet.engines.views[url] = EngineView(frozenset(), frozenset(), 0.0)
    spec = {"model": "llama-8b", "uri": "hf://legal"}
    await fleet.server.put(kinds.LORA_ADAPTERS, {"metadata": {"name": "legal", "namespace": "serving"}, "spec": spec})
    operator = await fleet.start(leader_election=True, identity="one", lease_s=3.0)

    def held() -> Any:
        return fleet.server.body(kinds.LORA_ADAPTERS, "legal")["metadata"].get("finalizers")

    await fleet.until(held)
    settings = OperatorSettings(namespace="tonnage", identity="job", lease_s=3.0)
    assert await asyncio.to_thread(release_all, settings, fleet.login) == 0
    assert not operator.leads()
    lease = fleet.server.body(kinds.LEASES, "tonnage-operator", "tonnage")["spec"]
    assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("release-job", 120)
    operator.controller.custom(kinds.LORA_ADAPTERS.plural, fleet.server.body(kinds.LORA_ADAPTERS, "legal"))
    await fleet.server.put(SERVER, a_model_server(replicas=2))
    await asyncio.sleep(0.2)
    assert not held()


async def test_a_kind_that_cannot_be_listed_keeps_no_other_from_its_release(fleet: Any) -> None:
    fleet.server.script("get", r"/modelservers$", 500, 10)
    metadata = {"name": "a", "namespace": "serving", "finalizers": [kinds.FINALIZER]}
    for kind in (kinds.LORA_ADAPTERS, kinds.MODEL_CACHES):
        await fleet.server.put(kind, {"metadata": metadata, "spec": {}})

    def undo() -> Any:
        client = KubeClient(fleet.login())
        done = release(client)
        client.close()
        return done

    done = await asyncio.to_thread(undo)
    assert (done.finalizers, done.failed) == (2, 1)


# --- the planner's figures --------------------------------------------------------------------------------------------


class Said:
    """A caller with one answer."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer

    def json(self, method: str, url: str) -> dict[str, Any]:
        return self.answer


@pytest.mark.parametrize("age", [float("nan"), float("inf"), -1.0, True, None, "1", 61.0])
def test_a_decision_of_unknown_age_is_not_followed(age: Any) -> None:
    planner = HttpPlanner(Said(decided_age_s=age, desired_replicas=7), "http://planner")  # type: ignore[arg-type]
    assert planner.advice("m").target is None
    assert "s old" in planner.advice("m").problem


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -3, True, "2"])
def test_figures_that_are_none_are_not_told(figure: Any) -> None:
    warm = {"replicas": figure, "idle_usd_per_hour": figure, "saved_misses_per_hour": figure}
    said = Said(decided_age_s=1.0, desired_replicas=figure, warm=warm)
    found = HttpPlanner(said, "http://planner").advice("m")  # type: ignore[arg-type]
    assert found == Advice()
