"""Every pod meets the restricted Pod Security Standard, but for exceptions of the agent and the cold-start service that
are listed here, in the chart's README and behind a value each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
SHAPES = ("default", *sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
Object = dict[str, Any]
Render = Callable[..., list[Object]]
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
EXCEPTIONS: dict[str, tuple[Object, set[str]]] = {
    "coldstart.cache.hostPath": (
        {"coldstart": {"cache": {"hostPath": "/x", "chown": False}}},
        {"coldstart: volume cache is a hostPath"},
    ),
    "coldstart.cache.chown": (
        {"coldstart": {"cache": {"hostPath": "/x", "chown": True}}},
        {
            "coldstart: volume cache is a hostPath",
            "coldstart: own-cache may run as root",
            "coldstart: own-cache runs as user 0",
            "coldstart: own-cache adds CHOWN",
        },
    ),
    "agent.stateHostPath": ({"agent": {"stateHostPath": "/x"}}, {"agent: volume state is a hostPath"}),
    "agent.podResources": (
        {"agent": {"podResources": True}},
        {
            "agent: volume pod-resources is a hostPath",
            "agent: agent may run as root",
            "agent: agent runs as user 0",
        },
    ),
    "agent.migMonitor": (
        {"agent": {"migMonitor": True}},
        {"agent: agent may run as root", "agent: agent runs as user 0", "agent: agent adds SYS_ADMIN"},
    ),
    "agent.kernelLog": (
        {"agent": {"kernelLog": True}},
        {
            "agent: volume kernel-log is a hostPath",
            "agent: agent may run as root",
            "agent: agent runs as user 0",
            "agent: agent is privileged",
            "agent: agent may escalate",
            "agent: agent does not drop ALL",
        },
    ),
}
NONE: Object = {"coldstart": {"cache": {"hostPath": ""}}}


def of_the_pod(spec: Object) -> list[str]:
    """What the standard forbids of a pod as a whole (kubernetes.io, "Pod Security Standards": baseline, restricted)."""
    found = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    for volume in spec.get("volumes", []):
        found += [f"volume {volume['name']} is a {kind}" for kind in volume.keys() - VOLUMES - {"name"}]
    context = spec.get("securityContext", {})
    found += ["sysctls are set"] if context.get("sysctls") else []
    found += ["SELinux is set"] if context.get("seLinuxOptions") else []
    return found


def of_a_container(container: Object, pod: Object) -> list[str]:
    """What it forbids of one container; `pod` is the pod's security context, which a container's wins over."""
    own = container.get("securityContext", {})
    merged = {**pod, **own}
    name, capabilities = container["name"], own.get("capabilities", {})
    seccomp = merged.get("seccompProfile", {}).get("type")
    hosts = [p["hostPort"] for p in container.get("ports", []) if p.get("hostPort")]
    actions = [container.get(key, {}) for key in ("livenessProbe", "readinessProbe", "startupProbe")]
    actions += list(container.get("lifecycle", {}).values())
    hosted = [a for one in actions for a in one.values() if isinstance(a, dict) and a.get("host")]
    rules = {
        "is privileged": own.get("privileged", False),
        "may escalate": own.get("allowPrivilegeEscalation") is not False,
        "may run as root": merged.get("runAsNonRoot") is not True,
        "runs as user 0": merged.get("runAsUser") == 0,
        "does not drop ALL": "ALL" not in capabilities.get("drop", []),
        "has no seccomp profile": seccomp not in ("RuntimeDefault", "Localhost"),
        "has a port of the node": bool(hosts),
        "asks another host in a probe": bool(hosted),
        "sees all of /proc": own.get("procMount", "Default") != "Default",
    }
    found = [f"{name} {text}" for text, broken in rules.items() if broken]
    return found + [f"{name} adds {one}" for one in capabilities.get("add", []) if one != "NET_BIND_SERVICE"]


def violations(spec: Object) -> list[str]:
    """What the restricted standard forbids of a pod's specification."""
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    pod = spec.get("securityContext", {})
    return of_the_pod(spec) + [problem for one in containers for problem in of_a_container(one, pod)]


def pods(objects: list[Object]) -> list[tuple[str, Object]]:
    """(component, specification) of every pod that the objects make."""
    found = []
    for one in objects:
        spec = one["spec"] if one["kind"] == "Pod" else one.get("spec", {}).get("template", {}).get("spec")
        if spec is not None:
            found.append((one["metadata"]["labels"]["app.kubernetes.io/component"], spec))
    return found


def broken(objects: list[Object]) -> set[str]:
    return {f"{component}: {problem}" for component, spec in pods(objects) for problem in violations(spec)}


@pytest.mark.parametrize("shape", SHAPES)
def test_only_listed_exceptions_break_the_restricted_standard(
    shape: str, render: Render, shape_values: Callable[[str], Object]
) -> None:
    listed = {problem for _, problems in EXCEPTIONS.values() for problem in problems}
    assert broken(render(shape_values(shape))) <= listed
    assert {problem.partition(":")[0] for problem in listed} == {"agent", "coldstart"}


@pytest.mark.parametrize("value", EXCEPTIONS)
def test_each_exception_is_behind_its_value_and_no_more_than_listed(value: str, render: Render) -> None:
    values, listed = EXCEPTIONS[value]
    assert broken(render(NONE | values)) == listed


def test_without_the_values_every_pod_meets_it_and_each_kind_of_pod_was_looked_at(render: Render) -> None:
    bench = {"enabled": True, "tokenSecret": {"name": "b"}, "workers": {"enabled": True}}
    everything: Object = {"operator": {"enabled": True}, "redis": {"enabled": True}, "bench": bench}
    made = render(NONE | everything)
    assert broken(made) == set()
    parts = {"router", "planner", "agent", "coldstart", "operator", "redis", "bench", "bench-worker", "test"}
    assert {component for component, _ in pods(made)} == parts
    assert {o["kind"] for o in made} >= {"Deployment", "DaemonSet", "StatefulSet", "Job", "Pod"}


def test_every_root_is_read_only(render: Render, shape_values: Callable[[str], Object]) -> None:
    for shape in SHAPES:
        for _, spec in pods(render(shape_values(shape))):
            for one in (*spec.get("initContainers", []), *spec["containers"]):
                assert one["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("value", EXCEPTIONS)
def test_the_readme_lists_the_exception(value: str) -> None:
    assert f"| `{value}` |" in (CHART / "README.md").read_text().partition("## Values")[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hostNetwork": True}, "hostNetwork is set"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "volume x is a hostPath"),
        ({"securityContext": {}}, "c may run as root"),
        ({"securityContext": {"runAsNonRoot": True}}, "c has no seccomp profile"),
    ],
)
def test_the_check_sees_what_a_pod_breaks(change: Object, problem: str) -> None:
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    fine: Object = {"containers": [{"name": "c", "securityContext": context}], "securityContext": pod}
    assert violations(fine) == []
    assert problem in violations(fine | change)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"privileged": True}, "is privileged"),
        ({"allowPrivilegeEscalation": None}, "may escalate"),
        ({"runAsUser": 0}, "runs as user 0"),
        ({"runAsNonRoot": False}, "may run as root"),
        ({"capabilities": {"drop": ["NET_RAW"]}}, "does not drop ALL"),
        ({"capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]}}, "adds SYS_PTRACE"),
        ({"seccompProfile": {"type": "Unconfined"}}, "has no seccomp profile"),
        ({"procMount": "Unmasked"}, "sees all of /proc"),
    ],
)
def test_the_check_sees_what_a_container_breaks(change: Object, problem: str) -> None:
    fine = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert of_a_container({"name": "c", "securityContext": fine}, {}) == []
    assert of_a_container({"name": "c", "securityContext": fine | change}, {}) == [f"c {problem}"]
