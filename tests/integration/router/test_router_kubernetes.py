"""The router over a mock cluster: pods come, become ready, drain, are replaced and go."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kmock import KubernetesEmulator, ResourceInfo, resource

from tonnage_core.errors import BadInputError
from tonnage_router.kube_discovery import KubeDiscovery
from tonnage_runtime.kube_reflector import Pace

PODS, SLICES = resource("v1/pods"), resource("discovery.k8s.io/v1/endpointslices")
POOLS = resource("inference.networking.k8s.io/v1/inferencepools")
BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * 500 + b'"}]}'
KUBECONFIG = """
{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: k, cluster: {{server: "{url}"}}}}],
 contexts: [{{name: c, context: {{cluster: k, user: u}}}}], users: [{{name: u, user: {{token: secret}}}}]}}
"""


def pod(name: str, engine: Any, *, ready: bool = True, uid: str = "1") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "serving",
            "uid": f"{name}-{uid}",
            "labels": {"tonnage.dev/model": "m"},
            "finalizers": ["held/by-the-test"],
        },
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": engine.port}]}]},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class Cluster:
    def __init__(self, kmock: KubernetesEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kmock.resources[PODS] = ResourceInfo(kind="Pod", namespaced=True)
        kmock.resources[SLICES] = ResourceInfo(kind="EndpointSlice", namespaced=True)
        kmock.resources[POOLS] = ResourceInfo(kind="InferencePool", namespaced=True)
        self.kmock = kmock
        path = tmp_path / "config"
        path.write_text(KUBECONFIG.format(url=str(kmock.url).rstrip("/")))
        monkeypatch.setattr(KubeDiscovery.__init__, "__defaults__", (Pace(relist_s=60, least_s=0.01, most_s=0.05),))
        self.settings = {
            "discovery": "kubernetes",
            "kubernetes_namespace": "serving",
            "kubeconfig": str(path),
            "endpoints": [],
        }

    async def send(self, method: str, path: str, body: Any = None) -> None:
        async with self.kmock.request(method, path, json=body) as answer:
            assert answer.status in (200, 201), await answer.text()

    async def add(self, made: dict[str, Any]) -> None:
        await self.send("post", "/api/v1/namespaces/serving/pods", made)

    async def patch(self, name: str, change: dict[str, Any]) -> None:
        await self.send("patch", f"/api/v1/namespaces/serving/pods/{name}", change)

    async def delete(self, name: str) -> None:
        await self.send("delete", f"/api/v1/namespaces/serving/pods/{name}")

    async def release(self, name: str) -> None:
        await self.patch(name, {"metadata": {"finalizers": []}})


@pytest.fixture
async def cluster(kmock: KubernetesEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(kmock, tmp_path, monkeypatch)


def taking(router: Any) -> set[str]:
    """Endpoints that get new requests."""
    return {e.id for e in router.gateway.fleet if e.candidate.healthy and not e.candidate.draining}


async def test_pods_join_when_ready_and_leave_when_gone(cluster: Cluster, engines: Any, route: Any) -> None:
    first, second = await engines(2)
    router = await route([], **cluster.settings)
    assert (await router.post(BODY)).status == 404
    await cluster.add(pod("a", first))
    await router.until(lambda: taking(router) == {"a"})
    assert (await router.post(BODY)).status == 200
    await cluster.add(pod("b", second, ready=False))
    await router.until(lambda: len(router.gateway.fleet) == 2)
    assert taking(router) == {"a"}
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await cluster.patch("b", ready)
    await router.until(lambda: taking(router) == {"a", "b"})
    await cluster.delete("a")
    await cluster.release("a")
    await router.until(lambda: [e.id for e in router.gateway.fleet] == ["b"])
    assert ("pods", "list", "ok") in router.gateway.metrics.discovery_calls


async def test_a_terminating_pods_stream_ends_by_itself_and_gets_nothing_new(
    cluster: Cluster, engines: Any, route: Any
) -> None:
    go = asyncio.Event()

    async def slow(call: Any) -> None:
        call.stream_head()
        await call.chunk(b"data: x\n\n")
        await go.wait()
        call.end()

    (old,) = await engines(1, script=slow)
    (new,) = await engines(1)
    await cluster.add(pod("old", old))
    router = await route([], **cluster.settings)
    await router.until(lambda: taking(router) == {"old"})
    client = await router.client()
    client.send(b'{"model":"m","stream":true}')
    await router.until(lambda: len(old.calls) == 1)
    await cluster.add(pod("new", new))
    await cluster.delete("old")  # its finalizer keeps it: terminating
    await router.until(lambda: taking(router) == {"new"})
    assert router.gateway.fleet.by_id["old"].drained_by == {"terminating"}
    for _ in range(5):
        assert (await router.post(BODY)).status == 200
    await cluster.release("old")
    await router.until(lambda: "old" not in router.gateway.fleet.by_id)
    go.set()
    answer = await client.read()
    assert answer.complete and answer.body == b"data: x\n\n"
    assert len(old.calls) == 1


async def test_a_new_pod_at_an_old_address_under_an_old_name_starts_without_prefixes(
    cluster: Cluster, engines: Any, route: Any
) -> None:
    (engine,) = await engines(1)
    await cluster.add(pod("a", engine))
    router = await route([], **cluster.settings)
    await router.until(lambda: taking(router) == {"a"})
    await router.post(BODY)
    before = router.gateway.fleet.by_id["a"]
    assert router.gateway.scheduler.index.memory_bytes > 0
    await cluster.delete("a")
    await cluster.release("a")
    await cluster.add(pod("a", engine, uid="2"))
    await router.until(lambda: taking(router) == {"a"} and router.gateway.fleet.by_id["a"] is not before)
    assert router.gateway.scheduler.index.memory_bytes == 0


async def test_a_pod_that_loses_its_address_leaves(cluster: Cluster, engines: Any, route: Any) -> None:
    (engine,) = await engines(1)
    await cluster.add(pod("a", engine))
    router = await route([], **cluster.settings)
    await router.until(lambda: taking(router) == {"a"})
    await cluster.patch("a", {"status": {"podIP": ""}})
    await router.until(lambda: len(router.gateway.fleet) == 0)
    assert (await router.post(BODY)).status == 503


async def test_an_admins_drain_outlasts_what_the_cluster_says(cluster: Cluster, engines: Any, route: Any) -> None:
    (engine,) = await engines(1)
    await cluster.add(pod("a", engine))
    router = await route([], **cluster.settings)
    await router.until(lambda: taking(router) == {"a"})
    fleet = router.gateway.fleet
    fleet.drain(fleet.by_id["a"])
    await cluster.patch("a", {"metadata": {"labels": {"other": "x"}}})
    await cluster.patch("a", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
    await router.until(lambda: fleet.by_id["a"].drained_by == {"admin", "not_ready"})
    await cluster.patch("a", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    await router.until(lambda: fleet.by_id["a"].drained_by == {"admin"})
    assert taking(router) == set()


async def test_slices_of_a_service_decide_readiness_and_port(cluster: Cluster, engines: Any, route: Any) -> None:
    (engine,) = await engines(1)
    await cluster.add(pod("a", engine))
    router = await route([], **cluster.settings, kubernetes_service="llama")
    where = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
    endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": False}, "targetRef": {"name": "a", "uid": "a-1"}}
    body = {
        "metadata": {"name": "llama-1", "namespace": "serving"},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "http", "port": engine.port}],
    }
    await cluster.send("post", where, body)
    await router.until(lambda: len(router.gateway.fleet) == 1)
    assert taking(router) == set()
    await cluster.send("patch", f"{where}/llama-1", {"endpoints": [endpoint | {"conditions": {"ready": True}}]})
    await router.until(lambda: taking(router) == {"a"})
    assert (await router.post(BODY)).status == 200


def test_a_cluster_without_a_namespace_or_a_kubeconfig_is_refused() -> None:
    from tonnage_router.main import settings_from

    with pytest.raises(BadInputError, match="needs kubernetes_namespace"):
        settings_from({"TONNAGE_ROUTER_DISCOVERY": "kubernetes"})
    with pytest.raises(BadInputError, match="needs endpoints_file"):
        settings_from({"TONNAGE_ROUTER_DISCOVERY": "file"})


async def test_an_inference_pools_pods_follow_its_selector_and_ports(
    cluster: Cluster, engines: Any, route: Any
) -> None:
    first, second, stranger = await engines(3)
    pools = "/apis/inference.networking.k8s.io/v1/namespaces/serving/inferencepools"
    for name, engine, app in (("a", first, "llama"), ("b", second, "llama"), ("c", stranger, "other")):
        made = pod(name, engine)
        made["metadata"]["labels"] = {"app": app}
        await cluster.add(made)
    router = await route([], **cluster.settings, kubernetes_inference_pool="llama")
    await router.until(lambda: ("inferencepools", "list", "ok") in router.gateway.metrics.discovery_calls)
    assert len(router.gateway.fleet) == 0
    spec = {"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": first.port}]}
    await cluster.send("post", pools, {"metadata": {"name": "llama", "namespace": "serving"}, "spec": spec})
    # One address for all pods here: of two at one address and port the newer is meant, by name where they are as old.
    await router.until(lambda: len(taking(router)) == 1)
    assert {e.port for e in router.gateway.fleet} == {first.port}
    assert (await router.post(BODY)).status == 200
    both = {"spec": {"targetPorts": [{"number": first.port}, {"number": second.port}]}}
    await cluster.send("patch", f"{pools}/llama", both)
    await router.until(lambda: {e.port for e in router.gateway.fleet} == {first.port, second.port})
    await router.until(lambda: len(taking(router)) == 2)
    assert all(e.id.endswith(f"-{e.port}") for e in router.gateway.fleet)
    other = {"spec": {"selector": {"matchLabels": {"app": "other"}}, "targetPorts": [{"number": stranger.port}]}}
    await cluster.send("patch", f"{pools}/llama", other)
    await router.until(lambda: taking(router) == {"c"})
    assert (await router.post(BODY)).status == 200
    await cluster.send("delete", f"{pools}/llama")
    await router.until(lambda: len(router.gateway.fleet) == 0)
