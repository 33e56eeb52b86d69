"""The Kubernetes client over a mock API server: what is sent, how each refusal is told, and what ends a watch."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kmock import KubernetesEmulator, ResourceInfo, resource
from kubernetes.client import Configuration

from tonnage_runtime.kube import (
    KubeClient,
    KubeConfigError,
    KubeConflictError,
    KubeError,
    KubeForbiddenError,
    KubeGoneError,
    KubeNotFoundError,
    KubeRejectedError,
    KubeThrottledError,
    KubeUnreachableError,
    Resource,
    configuration,
)

PROFILES = Resource("tonnage.dev", "v1alpha1", "gpuprofiles", "GpuProfile")
PATH = "/apis/tonnage.dev/v1alpha1/gpuprofiles"


def direct(url: str) -> Configuration:
    found = Configuration()
    found.host, found.proxy = url.rstrip("/"), None
    return found


@pytest.fixture
def client(kmock: KubernetesEmulator) -> Iterator[KubeClient]:
    kmock.resources[resource("tonnage.dev/v1alpha1/gpuprofiles")] = ResourceInfo(kind="GpuProfile", namespaced=False)
    client = KubeClient(direct(str(kmock.url)), timeout_s=2.0)
    yield client
    client.close()


def item(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **more}


async def test_an_apply_of_status_is_a_forced_server_side_apply_of_the_status_alone(
    kmock: KubernetesEmulator, client: KubeClient
) -> None:
    await asyncio.to_thread(client.create, PROFILES, item("n1-0"), manager="m")
    await asyncio.to_thread(client.apply_status, PROFILES, "n1-0", {"node": "n1"}, manager="tonnage-gpu-agent")
    (request,) = kmock["patch"]
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.params == {"fieldManager": "tonnage-gpu-agent", "force": "true"}
    assert json.loads(request.body) == {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "GpuProfile",
        "metadata": {"name": "n1-0"},
        "status": {"node": "n1"},
    }


async def test_a_created_object_is_found_again(kmock: KubernetesEmulator, client: KubeClient) -> None:
    await asyncio.to_thread(client.create, PROFILES, item("n1-0"), manager="m")
    found = await asyncio.to_thread(client.get, PROFILES, "n1-0")
    assert (found["kind"], found["apiVersion"]) == ("GpuProfile", "tonnage.dev/v1alpha1")
    with pytest.raises(KubeConflictError):
        await asyncio.to_thread(client.create, PROFILES, item("n1-0"), manager="m")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, KubeRejectedError),
        (401, KubeForbiddenError),
        (403, KubeForbiddenError),
        (404, KubeNotFoundError),
        (409, KubeConflictError),
        (410, KubeGoneError),
        (418, KubeError),
        (422, KubeRejectedError),
        (429, KubeThrottledError),
        (500, KubeUnreachableError),
        (503, KubeUnreachableError),
    ],
)
async def test_each_refusal_has_an_error_of_its_own_and_is_asked_once(
    kmock: KubernetesEmulator, client: KubeClient, status: int, error: type[KubeError]
) -> None:
    answer: Any = kmock[f"get {PATH}/x"] << status
    answer << {"Retry-After": "7"} << {"message": "no\nsuch luck"}
    with pytest.raises(error, match=f"GET {PATH}/x: {status} ") as told:
        await asyncio.to_thread(client.get, PROFILES, "x")
    assert type(told.value) is error
    assert "\n" not in str(told.value)
    assert len(kmock["get"]) == 1


async def test_a_server_that_is_not_there_or_cuts_the_answer_is_unreachable(kmock: KubernetesEmulator) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = KubeClient(direct(url), timeout_s=2.0)
    with pytest.raises(KubeUnreachableError):
        await asyncio.to_thread(client.get, PROFILES, "x")
    server.close()
    await server.wait_closed()
    with pytest.raises(KubeUnreachableError):
        await asyncio.to_thread(client.get, PROFILES, "x")
    client.close()


async def test_a_server_that_does_not_answer_is_given_up_after_the_time_out() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    client = KubeClient(direct(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), timeout_s=0.1)
    with pytest.raises(KubeUnreachableError, match="no answer in time"):
        await asyncio.to_thread(client.get, PROFILES, "x")
    client.close()
    server.close()


async def test_a_list_follows_every_page_up_to_the_limit(kmock: KubernetesEmulator, client: KubeClient) -> None:
    pages = iter(range(100))

    def page() -> dict[str, Any]:
        number = next(pages)
        more = {"continue": f"t{number}"} if number % 3 < 2 else {}
        return {"metadata": {"resourceVersion": "5", **more}, "items": [item(f"n{number}")]}

    kmock[f"get {PATH}"] << page
    found, version = await asyncio.to_thread(client.list, PROFILES, "a=b")
    assert ([i["metadata"]["name"] for i in found], version) == (["n0", "n1", "n2"], "5")
    assert [r.params.get("continue") for r in kmock["get"]] == [None, "t0", "t1"]
    assert {r.params["labelSelector"] for r in kmock["get"]} == {"a=b"}
    some, _ = await asyncio.to_thread(client.list, PROFILES, "", 2)
    assert len(some) == 2
    assert list(kmock["get"])[-1].params["limit"] == "2"


async def test_html_from_a_proxy_is_no_answer(kmock: KubernetesEmulator, client: KubeClient) -> None:
    kmock[f"get {PATH}/x"] << b"<html>sign in</html>"
    with pytest.raises(KubeUnreachableError, match="not an answer"):
        await asyncio.to_thread(client.get, PROFILES, "x")


def test_without_a_cluster_the_error_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="run in a pod with a token, or name a kubeconfig"):
        configuration()
    with pytest.raises(KubeConfigError, match="absent"):
        configuration(str(tmp_path / "absent"))


def test_a_kubeconfig_gives_host_and_token(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:6443'}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {token: secret}}]\n"
    )
    found = configuration(str(path))
    assert found.host == "https://127.0.0.1:6443"
    assert found.auth_settings()["BearerToken"]["value"] == "Bearer secret"


@pytest.mark.parametrize("text", ["a: [", "# Title\n\nno: yaml: at all", "[1, 2]", "clusters: 3", "just words", "\x00"])
def test_a_file_that_is_no_kubeconfig_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeConfigError, match="kubeconfig") as caught:
        configuration(str(path))
    assert "\n" not in str(caught.value)


async def test_items_of_a_list_have_the_kind_that_the_server_leaves_out(
    kmock: KubernetesEmulator, client: KubeClient
) -> None:
    kmock[f"get {PATH}"] << {"metadata": {}, "items": [{"metadata": {"name": "n"}}]}
    (found,), _ = await asyncio.to_thread(client.list, PROFILES)
    assert found == {"apiVersion": "tonnage.dev/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "n"}}
