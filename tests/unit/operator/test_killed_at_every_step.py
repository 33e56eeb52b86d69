"""A process that ends between any two actions: the next one, which knows only the cluster, comes to the same end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tonnage_operator import kinds
from tonnage_operator.actions import Action, Apply, Delete, EngineCall, Merge, PinCall, SetScale, SetStatus, StageCall
from tonnage_operator.gpu_profile import marks as node_marks
from tonnage_operator.gpu_profile import reconcile as gpu
from tonnage_operator.gpu_profile.crd import ProfileView
from tonnage_operator.lora_adapter import reconcile as lora
from tonnage_operator.model_cache import reconcile as cache
from tonnage_operator.model_server import reconcile as server
from tonnage_operator.model_server.pod import Fleet
from tonnage_operator.model_server.target import Advice
from tonnage_operator.nodes import NodeView, Snapshot
from tonnage_operator.pods import EngineView, pod_view

Make = Callable[..., dict[str, Any]]
NOW_S = 1_795_953_600.0
URI = "s3://adapters/legal"
MOST = 40


class World:
    """What outlives a process: one custom resource, its children, engines and nodes."""

    def __init__(self, item: dict[str, Any], pods: list[dict[str, Any]]) -> None:
        self.item: dict[str, Any] | None = item
        self.there: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.engines = {pod["metadata"]["name"]: EngineView(frozenset(), frozenset(), 0.0, True) for pod in pods}
        self.nodes = {f"n{i}": NodeView(f"http://n{i}", {}) for i in range(1, 3)}

    def do(self, action: Action) -> None:
        assert self.item is not None
        if isinstance(action, Apply):
            self.there[(action.resource.plural, action.name)] = {"kind": action.resource.kind, **action.body}
        elif isinstance(action, Delete):
            self.there.pop((action.resource.plural, action.name), None)
        elif isinstance(action, SetStatus):
            self.item = {**self.item, "status": dict(action.status)}
        elif isinstance(action, SetScale):
            self.item = {**self.item, "spec": {**self.item["spec"], "replicas": action.replicas}}
        elif isinstance(action, Merge):
            self.merge(action)
        elif isinstance(action, EngineCall):
            view = self.engines[action.pod]
            held = view.adapters or frozenset()
            change = {"load": held | {action.adapter}, "unload": held - {action.adapter}}
            asleep = {"wake": False, "sleep": True}.get(action.call, view.sleeping)
            self.engines[action.pod] = replace(view, adapters=change.get(action.call, held), sleeping=asleep)
        elif isinstance(action, StageCall | PinCall):
            self.stage(action)

    def stage(self, action: StageCall | PinCall) -> None:
        view = self.nodes[action.node]
        pinned = action.pin if isinstance(action, StageCall) else action.pinned
        self.nodes[action.node] = replace(view, snapshots={URI: Snapshot("k", "/cache/k", "r", pinned)})

    def merge(self, action: Merge) -> None:
        assert self.item is not None
        metadata = action.body["metadata"]
        if "finalizers" in metadata:
            kept = {**self.item["metadata"], "finalizers": metadata["finalizers"]}
            gone = kept.get("deletionTimestamp") and not kept["finalizers"]
            self.item = None if gone else {**self.item, "metadata": kept}
            return
        pod = self.pods[action.name]
        labels = {**pod["metadata"]["labels"], **metadata["labels"]}
        labels = {key: value for key, value in labels.items() if value is not None}
        self.pods[action.name] = {**pod, "metadata": {**pod["metadata"], "labels": labels}}

    def end(self) -> Any:
        return self.item, self.there, self.pods, self.engines, self.nodes


def run(world: World, decide: Callable[[World], tuple[Action, ...]], killed_after: int | None) -> int:
    """Looks until nothing is to be done; the process ends after `killed_after` actions, and a new one goes on."""
    done = 0
    for _ in range(MOST):
        actions = decide(world) if world.item is not None else ()
        if not actions:
            return done
        for action in actions:
            world.do(action)
            done += 1
            if done == killed_after or world.item is None:
                break
    raise AssertionError(f"no rest after {MOST} looks")


def of_server(world: World) -> tuple[Action, ...]:
    views = [pod_view(pod, 8000) for pod in world.pods.values()]
    engines = {view.uid: world.engines[view.name] for view in views}
    assert world.item is not None
    fleet = Fleet(keda=False, pod_monitors=True)
    advice = Advice(target=3)
    seen = server.Seen(world.item, "2026-11-29T12:00:00Z", fleet, world.there, views, engines, (), advice)
    return server.reconcile(seen).actions


def of_adapter(world: World) -> tuple[Action, ...]:
    views = [pod_view(pod, 8000) for pod in world.pods.values()]
    assert world.item is not None
    return lora.reconcile(
        lora.Seen(
            world.item,
            NOW_S,
            server={"spec": {}},
            slots=2,
            pods=views,
            engines={view.uid: world.engines[view.name] for view in views},
            caches=world.nodes,
            adapters=frozenset({"legal"}),
        )
    ).actions


def of_cache(world: World) -> tuple[Action, ...]:
    nodes = [{"metadata": {"name": name}} for name in world.nodes]
    assert world.item is not None
    seen = cache.Seen(world.item, NOW_S, nodes=nodes, services=world.nodes, there=world.there)
    return cache.reconcile(seen).actions


def worlds(a_model_server: Make, a_pod: Make) -> dict[str, tuple[Callable[[], World], Any]]:
    sleeping = {"mode": "direct", "warm": 1, "warmKind": "sleeping"}
    pods = [a_pod("s1"), a_pod("w1", part="warm")]
    named = {"name": "legal", "namespace": "serving", "uid": "a"}
    wanted = {"model": "llama-8b", "uri": URI}
    ending = {"deletionTimestamp": "2026-11-29T12:00:00Z", "finalizers": [kinds.FINALIZER]}

    def loaded() -> World:
        world = World({"metadata": named | ending, "spec": wanted}, [a_pod("p0"), a_pod("p1")])
        world.engines = {name: replace(view, adapters=frozenset({"legal"})) for name, view in world.engines.items()}
        return world

    def pinned() -> World:
        world = World({"metadata": named | ending, "spec": {"uri": URI, "pin": True}}, [])
        held = {URI: Snapshot("k", "/cache/k", "r", True)}
        world.nodes = {name: replace(view, snapshots=held) for name, view in world.nodes.items()}
        return world

    def fresh(spec: dict[str, Any], own: list[dict[str, Any]]) -> Callable[[], World]:
        return lambda: World({"metadata": dict(named), "spec": spec}, own)

    return {
        "server": (lambda: World(a_model_server(scaling=sleeping), pods), of_server),
        "adapter": (fresh(wanted, [a_pod("p0"), a_pod("p1")]), of_adapter),
        "adapter-ends": (loaded, of_adapter),
        "cache": (fresh({"uri": URI, "pin": True, "prePullImages": ["x:1"]}, []), of_cache),
        "cache-ends": (pinned, of_cache),
    }


@pytest.mark.parametrize("name", ["server", "adapter", "adapter-ends", "cache", "cache-ends"])
def test_whatever_the_last_action_was_the_end_is_the_same(name: str, a_model_server: Make, a_pod: Make) -> None:
    make, decide = worlds(a_model_server, a_pod)[name]
    whole = make()
    steps = run(whole, decide, None)
    assert steps >= 3
    for killed_after in range(1, steps + 1):
        world = make()
        run(world, decide, killed_after)
        assert world.end() == whole.end(), killed_after


class Nodes(World):
    """Nodes, one of which had failed and is well again; the other fails now."""

    def __init__(self) -> None:
        super().__init__({"metadata": {"name": "fleet"}}, [])
        taint = {"key": node_marks.TAINT, "effect": "NoSchedule"}
        was = {"labels": {node_marks.HEALTH_LABEL: "fail"}, "annotations": {node_marks.CORDONED: "2026"}}
        self.objects: dict[str, dict[str, Any]] = {
            "n1": {"metadata": {"name": "n1"}, "spec": {}, "status": {}},
            "n2": {"metadata": {"name": "n2", **was}, "spec": {"unschedulable": True, "taints": [taint]}, "status": {}},
        }

    def do(self, action: Action) -> None:
        node = self.objects[action.name] if isinstance(action, Merge | SetStatus) else {}
        if isinstance(action, SetStatus):
            node["status"] = dict(action.status)
        elif isinstance(action, Merge):
            for part, change in action.body.items():
                for name, value in change.items():
                    old = node.setdefault(part, {}).get(name) or {}
                    known = {**old, **value} if isinstance(value, dict) else value
                    kept = {k: v for k, v in known.items() if v is not None} if isinstance(known, dict) else known
                    node[part][name] = kept

    def end(self) -> Any:
        return self.objects


def of_nodes(world: World) -> tuple[Action, ...]:
    assert isinstance(world, Nodes)
    verdicts = {"n1": "FAIL", "n2": "OK"}
    profiles = [ProfileView(f"{n}-0", n, 0, "H100-SXM-80GB", verdict, ("hbm_low",)) for n, verdict in verdicts.items()]
    return gpu.reconcile(gpu.Seen(NOW_S, gpu.NodeRules("cordon", 1.0), profiles, list(world.objects.values()))).actions


def test_node_marks_are_the_same_whatever_the_last_one_was() -> None:
    whole = Nodes()
    steps = run(whole, of_nodes, None)
    assert steps == 4
    assert whole.objects["n1"]["spec"]["unschedulable"] is True
    assert not whole.objects["n2"]["spec"]["taints"]
    for killed_after in range(1, steps + 1):
        world = Nodes()
        run(world, of_nodes, killed_after)
        assert world.end() == whole.end(), killed_after
