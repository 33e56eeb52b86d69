"""Two writers of one number, replayed look by look against a cluster that remembers who owns the field."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tonnage_operator import kinds
from tonnage_operator.actions import Apply, Delete, SetScale, SetStatus
from tonnage_operator.model_server.pod import Fleet
from tonnage_operator.model_server.reconcile import Seen, reconcile
from tonnage_operator.model_server.target import Advice

Make = Callable[..., dict[str, Any]]
HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"


@dataclass
class Cluster:
    """A ModelServer with its children, the scaling objects of its namespace, and the owners of `spec.replicas`."""

    item: dict[str, Any]
    there: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    scalers: list[dict[str, Any]] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    """Ours, through `scale`."""
    deleted: list[str] = field(default_factory=list)

    def write(self, manager: str, replicas: int, operation: str = "Update") -> None:
        """Someone sets the ModelServer's number and owns it from then on."""
        self.item["spec"]["replicas"] = replicas
        self.item["metadata"]["managedFields"] = [owner(manager, operation)]

    def look(self, target: int | None, fleet: Fleet | None = None) -> dict[str, dict[str, Any]]:
        """One look of an operator whose planner says `target`; its conditions."""
        advice = Advice(target=target) if target is not None else Advice(problem="refused")
        scalers = [*self.scalers, *(one for key, one in self.there.items() if key[0] in ("scaledobjects",))]
        seen = Seen(self.item, "2026-11-29T12:00:00Z", fleet or Fleet(), self.there, scalers=scalers, advice=advice)
        for action in reconcile(seen).actions:
            if isinstance(action, Apply):
                body = {"kind": action.resource.kind, **action.body}
                if "replicas" in body.get("spec", {}):
                    body["metadata"] = {**body["metadata"], "managedFields": [owner(kinds.MANAGER, "Apply")]}
                elif (old := self.there.get((action.resource.plural, action.name))) is not None:
                    body["metadata"] = {**body["metadata"], "managedFields": old["metadata"].get("managedFields", [])}
                    body["spec"] = {**body["spec"], "replicas": old["spec"].get("replicas")}
                self.there[(action.resource.plural, action.name)] = body
            elif isinstance(action, SetScale):
                self.writes.append(action.replicas)
                self.write(kinds.MANAGER, action.replicas)
            elif isinstance(action, SetStatus):
                self.item["status"] = dict(action.status)
            elif isinstance(action, Delete):
                self.deleted.append(action.name)
                self.scalers = [one for one in self.scalers if one["metadata"]["name"] != action.name]
        return {one["type"]: one for one in self.item["status"]["conditions"]}

    @property
    def replicas(self) -> int:
        """Of the Deployment."""
        found: int = self.there[("deployments", "llama-8b")]["spec"]["replicas"]
        return found


def owner(manager: str, operation: str) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {"f:replicas": {}}}}


def scaler(kind: str, target: str, name: str = "rogue") -> dict[str, Any]:
    spec = {"scaleTargetRef": {"kind": target, "name": "llama-8b"}, "metrics": [{"type": "Resource"}]}
    return {"kind": kind, "metadata": {"name": name, "namespace": "serving", "uid": f"uid-{name}"}, "spec": spec}


@pytest.fixture
def cluster(a_model_server: Make) -> Cluster:
    """At rest at the planner's 4."""
    made = Cluster(a_model_server(scaling={"mode": "direct", "min": 1, "max": 30}))
    for _ in range(3):
        made.look(4)
    assert (made.writes, made.replicas) == ([4], 4)
    return made


def run(cluster: Cluster, targets: Sequence[int], theirs: Callable[[], None]) -> list[int]:
    """Looks with another writer between them; the Deployment's numbers."""
    seen = []
    for target in targets:
        theirs()
        cluster.look(target)
        seen.append(cluster.replicas)
    return seen


def test_a_rogue_hpa_is_reported_not_fought_and_followed_by_the_planner_again_once_it_is_gone(cluster: Cluster) -> None:
    cluster.scalers = [scaler(HPA, "ModelServer")]
    seen = run(cluster, [6, 7, 5, 8], lambda: cluster.write("kube-controller-manager", 2))
    assert seen == [2, 2, 2, 2], "its number stands: nobody pulls it back and forth"
    assert cluster.writes == [4]
    told = cluster.look(8)["ScaleConflict"]
    assert (told["status"], "HorizontalPodAutoscaler rogue" in told["message"]) == ("True", True)
    cluster.scalers = []
    assert cluster.look(8)["ScaleConflict"]["status"] == "False"
    cluster.look(8)
    assert (cluster.writes, cluster.replicas) == ([4, 8], 8)


def test_a_rogue_hpa_on_the_deployment_keeps_its_number_until_it_is_gone(cluster: Cluster) -> None:
    cluster.scalers = [scaler(HPA, "Deployment")]
    deployment = ("deployments", "llama-8b")

    def theirs() -> None:
        body = cluster.there[deployment]
        entry = [owner("kube-controller-manager", "Update")]
        metadata = {**body["metadata"], "managedFields": entry}
        cluster.there[deployment] = {**body, "metadata": metadata, "spec": {**body["spec"], "replicas": 2}}

    assert run(cluster, [6, 7, 8], theirs) == [2, 2, 2]
    cluster.scalers = []
    cluster.look(8)
    cluster.look(8)
    assert cluster.replicas == 8


@pytest.mark.parametrize(
    ("manager", "operation"), [("argocd-controller", "Apply"), ("kubectl", "Update"), ("another-install", "Update")]
)
def test_gitops_a_human_or_another_installation_is_named_and_keeps_the_number(
    cluster: Cluster, manager: str, operation: str
) -> None:
    seen = run(cluster, [6, 7, 5], lambda: cluster.write(manager, 3, operation))
    assert (seen, cluster.writes) == ([3, 3, 3], [4])
    assert cluster.look(5)["ScaleConflict"]["status"] == "True"
    cluster.write(manager, 4, "Update")
    cluster.look(5)
    cluster.look(5)
    assert cluster.writes == [4, 5], "the number last asked for was written back: it goes on from there"


def test_gitops_that_applies_the_number_under_a_scaling_object_is_named_too(a_model_server: Make) -> None:
    cluster = Cluster(a_model_server(scaling={"mode": "hpa", "min": 1, "max": 5}, replicas=2))
    cluster.look(3)
    cluster.write("flux", 2, "Apply")
    told = cluster.look(3)["ScaleConflict"]
    assert (told["status"], "flux applies replicas" in told["message"]) == ("True", True)


def test_a_scaled_object_that_was_there_before_the_scaler_gets_its_hpa_made_anew(a_model_server: Make) -> None:
    keda = Fleet(keda=True, scaler_address="planner:9090")
    cluster = Cluster(a_model_server(scaling={"mode": "keda", "min": 1, "max": 5}))
    cluster.look(None, keda)
    cluster.there[("scaledobjects", "llama-8b")]["metadata"]["uid"] = "so"
    made = scaler(HPA, "ModelServer", "keda-hpa-llama-8b")
    made["metadata"]["ownerReferences"] = [{"kind": SCALED_OBJECT, "name": "llama-8b", "uid": "so"}]
    cluster.scalers = [made]
    cluster.look(None, keda)
    assert cluster.deleted == ["keda-hpa-llama-8b"], "it follows CPU, because the scaler was not there when it was made"
    good = {**made, "spec": {**made["spec"], "metrics": [{"type": "External"}]}}
    cluster.scalers = [good]
    told = cluster.look(None, keda)
    assert cluster.deleted == ["keda-hpa-llama-8b"]
    assert told["ScaleConflict"]["status"] == "False", "KEDA's HPA for our own object is no other writer"


def test_two_controllers_that_disagree_by_one_do_not_flap(cluster: Cluster) -> None:
    """A second process takes the lead and asks another planner, which is one replica off: one step each, no more."""
    for lead, target in [(1, 5), (1, 5), (2, 6), (2, 6), (2, 6), (1, 5)]:
        cluster.look(target)
        assert cluster.item["metadata"]["managedFields"] == [owner(kinds.MANAGER, "Update")], lead
    assert cluster.writes == [4, 5, 6, 5]
    assert cluster.look(None)["ScalingActive"]["status"] == "Unknown"
    assert (cluster.replicas, cluster.writes) == (5, [4, 5, 6, 5]), "a planner that is silent moves nothing"
