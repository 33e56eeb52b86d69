"""GpuProfiles in the chart: the definition takes the agent's documents, the rights are the calls it makes, no more."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helm_python.chart import Chart
from yaml import CSafeLoader, load_all

from tests.closed_schema import closed
from tonnage_gpu_agent.adapters.profile_kube import PROFILES
from tonnage_gpu_agent.profile_object import ProbeHandled, profile_status

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tonnage"
ON = {"agent": {"profiles": {"enabled": True}}}
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*-h200-probe-full*.json"))
Object = dict[str, Any]


def render(values: Object) -> dict[str, Object]:
    with Chart.load(CHART) as chart:
        manifests = chart.render(values, name="demo", namespace="fleet")
    texts = [text for path, text in manifests.items() if path.endswith(".yaml")]
    documents = [d for text in texts for d in load_all(text, Loader=CSafeLoader) if d]
    return {f"{d['kind']} {d['metadata']['name'].rpartition('-')[2]}": d for d in documents}


def definition() -> Object:
    return render(ON)["CustomResourceDefinition gpuprofiles.tonnage.dev"]


def status_schema() -> Object:
    (version,) = definition()["spec"]["versions"]
    found: Object = closed(version["schema"]["openAPIV3Schema"]["properties"]["status"])
    return found


def identity(gpu: Object) -> Object:
    return {key: gpu[key] for key in ("node", "index", "uuid", "name", "product", "memory_bytes")}


def test_the_definition_is_of_the_resource_the_agent_writes_and_stays_when_the_release_goes() -> None:
    crd = definition()
    (version,) = crd["spec"]["versions"]
    assert (crd["spec"]["group"], version["name"]) == (PROFILES.group, PROFILES.version)
    assert (crd["spec"]["names"]["plural"], crd["spec"]["names"]["kind"]) == (PROFILES.plural, PROFILES.kind)
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert version["subresources"] == {"status": {}}
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert [name for name in columns if name != "Measured"] == ["Node", "Product", "Verdict", "HBM", "Age"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_definition_takes_every_measured_profile_whole(path: Path) -> None:
    for gpu in json.loads(path.read_text())["gpus"]:
        handled = ProbeHandled("full", "done", "2026-11-29T12:00:00Z")
        status = profile_status(identity(gpu), gpu, gpu["verdict"], handled, "0.1.0")
        assert status["ceilings"]
        jsonschema.validate(status, status_schema())


def test_the_definition_takes_a_gpu_that_was_never_measured_and_refuses_a_verdict_that_is_none() -> None:
    plain = {"node": "n1", "index": 0, "uuid": "GPU-0", "name": "x", "product": "x", "memory_bytes": None}
    jsonschema.validate(profile_status(plain, None, {"status": "UNKNOWN", "reasons": []}, None, "1"), status_schema())
    with pytest.raises(jsonschema.ValidationError, match="FINE"):
        jsonschema.validate(profile_status(plain, None, {"status": "FINE"}, None, "1"), status_schema())


def test_the_role_is_reading_creating_and_the_status_alone() -> None:
    objects = render(ON)
    assert objects["ClusterRole agent"]["rules"] == [
        {"apiGroups": ["tonnage.dev"], "resources": ["gpuprofiles"], "verbs": ["list", "watch", "create"]},
        {"apiGroups": ["tonnage.dev"], "resources": ["gpuprofiles/status"], "verbs": ["patch"]},
    ]
    binding = objects["ClusterRoleBinding agent"]
    assert binding["roleRef"]["name"] == objects["ClusterRole agent"]["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "demo-tonnage-agent", "namespace": "fleet"}]


def test_without_profiles_or_the_agent_there_is_no_definition_and_no_role() -> None:
    for values in ({}, {"agent": {"enabled": False, "profiles": {"enabled": True}}}):
        assert not {kind for kind in (key.split()[0] for key in render(values)) if "Role" in kind or "Custom" in kind}
    kept = render({**ON, "crds": {"enabled": False}})
    assert "ClusterRole agent" in kept
    assert not any(key.startswith("Custom") for key in kept)


def agent_pod(agent: Object) -> Object:
    found: Object = render({"agent": agent})["DaemonSet agent"]["spec"]["template"]["spec"]
    return found


def test_the_kubelets_socket_and_the_kernel_log_are_mounted_only_when_asked_for_and_read_only() -> None:
    def paths(agent: Object) -> dict[str, bool]:
        pod = agent_pod(agent)
        of_node = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
        mounts = pod["containers"][0]["volumeMounts"]
        return {mount["mountPath"]: mount.get("readOnly", False) for mount in mounts if mount["name"] in of_node}

    assert paths({}) == {}
    assert paths({"podResources": True}) == {"/var/lib/kubelet/pod-resources": True}
    assert paths({"kernelLog": True}) == {"/dev/kmsg": True}


def test_root_and_privilege_come_with_their_values_alone() -> None:
    def rights(agent: Object) -> tuple[Any, Any, Any]:
        context = agent_pod(agent)["containers"][0]["securityContext"]
        return context.get("runAsUser"), context.get("privileged"), context.get("capabilities")

    assert rights({}) == (None, None, {"drop": ["ALL"]})
    assert rights({"podResources": True}) == (0, None, {"drop": ["ALL"]})
    assert rights({"kernelLog": True}) == (0, True, None)


def test_compile_caches_and_the_lease_are_in_the_state_volume() -> None:
    for variant in ("", "cuda"):
        environ = {e["name"]: e.get("value") for e in agent_pod({"imageVariant": variant})["containers"][0]["env"]}
        assert str(environ["TONNAGE_AGENT_LEASE_PATH"]).startswith("/var/lib/tonnage-agent/")
        caches = [environ.get(name) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")]
        assert all(str(c).startswith("/var/lib/tonnage-agent/") for c in caches) if variant else caches == [None, None]
