"""The whole agent against a mock API server: its GPU's profile appears, and the annotation starts a run."""

import asyncio
from pathlib import Path
from typing import Any

from kmock import KubernetesEmulator, ResourceInfo, resource

from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.main import assemble
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_runtime.clock import SystemClock

PROFILES = resource("tonnage.dev/v1alpha1/gpuprofiles")
KUBECONFIG = """
{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: k, cluster: {{server: "{url}"}}}}],
 contexts: [{{name: c, context: {{cluster: k, user: u}}}}], users: [{{name: u, user: {{token: secret}}}}]}}
"""


async def test_the_agents_profile_appears_in_the_cluster_and_its_annotation_is_answered(
    kmock: KubernetesEmulator, tmp_path: Path
) -> None:
    kmock.resources[PROFILES] = ResourceInfo(kind="GpuProfile", namespaced=False)
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(url=str(kmock.url).rstrip("/")))
    settings = AgentSettings(
        node="n1", interval_s=0.02, kubernetes=True, kubeconfig=str(path), profile_interval_s=0.1, kubelet_socket=""
    )
    agent = assemble(settings, FakeDriver([fake_gpu()]), SystemClock())

    async def status(key: str) -> Any:
        async with asyncio.timeout(60):
            for _ in range(6000):
                found = dict(kmock.objects).get((PROFILES, None, "n1-0"))
                if found is not None and key in found.get("status", {}):
                    return found["status"][key]
                await asyncio.sleep(0.01)

    async with agent.app.router.lifespan_context(agent.app):
        assert (await status("verdict"))["status"] == "UNKNOWN"
        asked = {"metadata": {"annotations": {"tonnage.dev/probe": "no"}}}
        async with kmock.request("patch", "/apis/tonnage.dev/v1alpha1/gpuprofiles/n1-0", json=asked) as answer:
            assert answer.status == 200
        assert (await status("probeHandled"))["outcome"] == "refused"
    assert {
        {k.lower(): v for k, v in request.headers.items()}.get("authorization")
        for request in kmock["patch"]
        if request.subresource == "status"
    } == {"Bearer secret"}
