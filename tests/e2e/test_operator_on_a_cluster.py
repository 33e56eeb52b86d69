"""The operator's writes against a real API server, named in TONNAGE_TEST_KUBECONFIG, with the chart's definitions
installed (`operator.enabled`). It makes a namespace of its own and deletes it."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tonnage_operator import kinds
from tonnage_operator.actions import Action, Delete, SetScale, Why
from tonnage_operator.actor import Actor
from tonnage_operator.diff import difference
from tonnage_operator.metrics import OperatorMetrics
from tonnage_operator.model_server.pod import Fleet
from tonnage_operator.model_server.reconcile import Seen, reconcile
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.kube import KubeClient, KubeNotFoundError, KubeRejectedError, Resource, configuration

KUBECONFIG = os.environ.get("TONNAGE_TEST_KUBECONFIG", "")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not KUBECONFIG, reason="opt-in: TONNAGE_TEST_KUBECONFIG names no cluster"),
]
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
Body = dict[str, Any]


class Cluster:
    """A namespace of a real cluster."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        metrics = OperatorMetrics(CollectorRegistry())
        nobody: Any = None
        self.actor = Actor(client, nobody, nobody, metrics, SystemClock(), lambda: True)

    def kind(self, resource: Resource) -> Resource:
        return kinds.inside(resource, self.namespace)

    def make(self, name: str, **spec: Any) -> None:
        base = {
            "model": {"name": "m", "uri": "hf://m"},
            "engine": {"version": "0.32.0"},
            "scaling": {"min": 0, "max": 4, "mode": "manual"},
            "replicas": 0,
        }
        body = {"metadata": {"name": name}, "spec": {**base, **spec}}
        self.client.apply(self.kind(kinds.MODEL_SERVERS), name, body, manager="test")

    def look(self, name: str) -> tuple[Action, ...]:
        item = self.client.get(self.kind(kinds.MODEL_SERVERS), name)
        there = {}
        for kind in (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.BUDGETS, kinds.POLICIES, kinds.AUTOSCALERS):
            for one in self.client.list(self.kind(kind))[0]:
                # Items of a list lack kind and version.
                there[(kind.plural, kinds.name_of(one))] = {"kind": kind.kind, **one}
        actions = reconcile(Seen(item, "2026-11-29T12:00:00Z", Fleet(), there)).actions
        for action in actions:
            self.actor.act(action)
        return actions


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    client = KubeClient(configuration(KUBECONFIG))
    name = f"tonnage-test-{uuid.uuid4().hex[:8]}"
    client.create(NAMESPACES, {"metadata": {"name": name}}, manager="test")
    yield Cluster(client, name)
    client.delete(NAMESPACES, name)
    client.close()


def until(seen: Callable[[], bool]) -> None:
    for _ in range(120):
        if seen():
            return
        time.sleep(0.5)
    raise AssertionError("not seen in a minute")


def test_a_model_server_is_made_changed_scaled_and_rests(cluster: Cluster) -> None:
    cluster.make("a")
    assert cluster.look("a")
    cluster.look("a")
    assert cluster.look("a") == ()
    cluster.make("a", engine={"version": "0.33.0"})
    assert cluster.look("a")
    deployment = cluster.client.get(cluster.kind(kinds.DEPLOYMENTS), "a")
    assert "v0.33.0" in str(deployment["spec"])
    servers = cluster.kind(kinds.MODEL_SERVERS)
    cluster.actor.act(SetScale(Why.TARGET, servers, "a", 0))
    scale = cluster.client.get(servers, "a")
    assert scale["spec"]["replicas"] == 0


def test_deleting_it_takes_its_objects_with_it(cluster: Cluster) -> None:
    cluster.make("b")
    cluster.look("b")
    cluster.client.delete(cluster.kind(kinds.MODEL_SERVERS), "b")

    def gone() -> bool:
        try:
            cluster.client.get(cluster.kind(kinds.DEPLOYMENTS), "b")
        except KubeNotFoundError:
            return True
        return False

    until(gone)


@pytest.mark.parametrize(
    "scaling", [{"min": 5, "max": 2}, {"mode": "hpa", "toZero": True}, {"warm": 9, "max": 2}, {"mode": "magic"}]
)
def test_rules_of_the_schema_are_the_servers(cluster: Cluster, scaling: Body) -> None:
    with pytest.raises(KubeRejectedError):
        cluster.make("c", scaling=scaling)


def test_a_policy_that_is_not_wanted_any_more_is_deleted(cluster: Cluster) -> None:
    cluster.make("d", networkPolicy={"from": []})
    cluster.look("d")
    item = cluster.client.get(cluster.kind(kinds.MODEL_SERVERS), "d")
    policy = cluster.client.get(cluster.kind(kinds.POLICIES), "d")
    there = {("networkpolicies", "d"): {"kind": "NetworkPolicy", **policy}}
    (action,) = difference([], there, str(kinds.meta(item)["uid"])).actions
    assert isinstance(action, Delete)
    cluster.actor.act(action)
    with pytest.raises(KubeNotFoundError):
        cluster.client.get(cluster.kind(kinds.POLICIES), "d")
