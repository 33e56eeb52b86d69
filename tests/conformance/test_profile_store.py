"""One suite over both stores of GpuProfiles: in memory, and a cluster's API (a mock server)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kmock import KubernetesEmulator, ResourceInfo, resource
from kubernetes.client import Configuration

from tonnage_gpu_agent.adapters.profile_kube import KubeProfiles
from tonnage_gpu_agent.profile_object import profile_labels
from tonnage_gpu_agent.profile_store import MemoryProfiles, ProfileStore, ProfileStoreError
from tonnage_runtime.kube import KubeClient
from tonnage_runtime.kube_reflector import Pace

PATH = "/apis/tonnage.dev/v1alpha1/gpuprofiles"
PROFILES = resource("tonnage.dev/v1alpha1/gpuprofiles")
H200 = "NVIDIA H200"


class InMemory:
    def __init__(self) -> None:
        self.store = MemoryProfiles("n1")

    def annotate(self, name: str, request: str) -> None:
        self.store.annotate(name, request)

    def of_another_node(self, name: str, product: str) -> None:
        self.store.put(name, profile_labels("n2", product), {"product": product})


class InKubernetes:
    def __init__(self, server: KubernetesEmulator) -> None:
        server.resources[PROFILES] = ResourceInfo(kind="GpuProfile", namespaced=False)
        found = Configuration()
        found.host, found.proxy = str(server.url).rstrip("/"), None
        self.server, self.calls = server, list[tuple[str, str]]()
        pace = Pace(relist_s=1.0, least_s=0.01, most_s=0.05)
        client = KubeClient(found, timeout_s=5.0)
        self.store = KubeProfiles(client, "n1", lambda call, outcome: self.calls.append((call, outcome)), pace)

    def annotate(self, name: str, request: str) -> None:
        self.server.objects[PROFILES, None, name].patch({"metadata": {"annotations": {"tonnage.dev/probe": request}}})

    def of_another_node(self, name: str, product: str) -> None:
        labels = profile_labels("n2", product)
        self.server.objects[PROFILES, None, name] = {
            "metadata": {"name": name, "labels": labels},
            "status": {"product": product},
        }


Cluster = InMemory | InKubernetes


@pytest.fixture(params=["memory", "kubernetes"])
async def cluster(request: pytest.FixtureRequest, kmock: KubernetesEmulator) -> AsyncIterator[Cluster]:
    made: Cluster = InMemory() if request.param == "memory" else InKubernetes(kmock)
    made.store.start(lambda: None)
    yield made
    await asyncio.to_thread(made.store.stop)


@pytest.fixture
async def kube(kmock: KubernetesEmulator) -> AsyncIterator[InKubernetes]:
    made = InKubernetes(kmock)
    yield made
    await asyncio.to_thread(made.store.stop)


async def until(seen: Callable[[], Any]) -> Any:
    async with asyncio.timeout(30):
        while True:
            try:
                if found := seen():
                    return found
            except ProfileStoreError as error:
                assert error.outcome == "starting"
            await asyncio.sleep(0.01)


def put(store: ProfileStore, name: str, status: dict[str, Any]) -> Any:
    return asyncio.to_thread(store.put, name, profile_labels("n1", H200), status)


async def test_what_is_put_is_seen_and_put_again_is_replaced(cluster: Cluster) -> None:
    await put(cluster.store, "n1-0", {"product": H200, "index": 0})
    await until(lambda: "n1-0" in (own := cluster.store.own()) and own["n1-0"].status == {"product": H200, "index": 0})
    await put(cluster.store, "n1-0", {"product": H200, "index": 1})
    await until(lambda: cluster.store.own()["n1-0"].status["index"] == 1)


async def test_an_annotation_is_seen_and_survives_a_put(cluster: Cluster) -> None:
    await put(cluster.store, "n1-0", {"product": H200})
    assert (await until(lambda: cluster.store.own().get("n1-0"))).request is None
    cluster.annotate("n1-0", "quick")
    await put(cluster.store, "n1-0", {"product": H200, "index": 7})
    await until(lambda: cluster.store.own()["n1-0"].status.get("index") == 7)
    assert cluster.store.own()["n1-0"].request == "quick"


async def test_the_cluster_is_asked_for_other_nodes_gpus_of_the_product(kube: InKubernetes) -> None:
    kube.of_another_node("n2-0", H200)
    found = await asyncio.to_thread(kube.store.fleet, H200)
    assert [status["product"] for status in found] == [H200]
    (asked,) = kube.server["get"]
    label = profile_labels("n1", H200)["tonnage.dev/product"]
    assert asked.params["labelSelector"] == f"tonnage.dev/product={label},tonnage.dev/node!=n1"
    assert asked.params["limit"] == "200"


def test_memory_knows_other_nodes_gpus_of_the_product() -> None:
    cluster = InMemory()
    cluster.of_another_node("n2-0", H200)
    cluster.of_another_node("n2-1", "NVIDIA L40S")
    cluster.store.put("n1-0", profile_labels("n1", H200), {"product": H200})
    assert cluster.store.fleet(H200) == [{"product": H200}]


async def test_a_profile_that_is_not_there_is_created_with_its_labels_and_then_applied(kube: InKubernetes) -> None:
    await put(kube.store, "n1-0", {"product": H200, "index": 0})
    requests = [r for r in kube.server if str(r.method) != "GET"]
    assert [(r.method.value, r.url.path) for r in requests] == [
        ("PATCH", f"{PATH}/n1-0/status"),
        ("POST", PATH),
        ("PATCH", f"{PATH}/n1-0/status"),
    ]
    create, apply = json.loads(requests[1].body), requests[2]
    assert create == {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "GpuProfile",
        "metadata": {"name": "n1-0", "labels": profile_labels("n1", H200)},
    }
    assert apply.headers["Content-Type"] == "application/apply-patch+yaml"
    assert apply.params == {"fieldManager": "tonnage-gpu-agent", "force": "true"}
    body = json.loads(apply.body)
    assert (body["metadata"], body["status"]) == ({"name": "n1-0"}, {"product": H200, "index": 0})
    assert kube.calls == [("apply", "not_found"), ("create", "ok"), ("apply", "ok")]


async def test_a_profile_that_another_agent_created_meanwhile_is_applied(kube: InKubernetes) -> None:
    kube.server[f"post {PATH}"] << 409
    await put(kube.store, "n1-0", {})
    assert kube.calls == [("apply", "not_found"), ("create", "conflict"), ("apply", "ok")]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(403, "forbidden"), (409, "conflict"), (422, "rejected"), (429, "throttled"), (500, "unreachable")],
)
async def test_a_refused_apply_is_told_counted_and_not_repeated(kube: InKubernetes, status: int, outcome: str) -> None:
    kube.server.objects[PROFILES, None, "n1-0"] = {"metadata": {"name": "n1-0"}}
    kube.server[f"patch {PATH}/n1-0/status"] << status
    with pytest.raises(ProfileStoreError) as told:
        await put(kube.store, "n1-0", {})
    assert told.value.outcome == outcome
    assert kube.calls == [("apply", outcome)]


async def test_without_the_crd_the_error_says_so(kube: InKubernetes) -> None:
    kube.server[f"patch {PATH}/n1-0/status"] << 404
    kube.server[f"post {PATH}"] << 404
    with pytest.raises(ProfileStoreError, match="is the chart's CRD installed"):
        await put(kube.store, "n1-0", {})


async def test_nothing_is_known_of_a_cluster_before_the_first_list(kube: InKubernetes) -> None:
    with pytest.raises(ProfileStoreError, match="not listed yet"):
        kube.store.own()
