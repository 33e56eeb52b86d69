"""From the chart before this one: nothing that Kubernetes cannot change is another, and nothing goes without a word."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tonnage"
GOLDEN = ROOT / "tests" / "golden" / "chart"
BEFORE = GOLDEN / "tonnage-0.1.0.tgz"
FULL = yaml.safe_load((GOLDEN / "tonnage-0.1.0-full-values.yaml").read_text())
WATCHING = {"agent": {"profiles": {"enabled": True}}, "operator": {"enabled": True}}
VALUES: dict[str, Any] = {"default": {}, "full": FULL, "watching": WATCHING}
IMMUTABLE: dict[str, tuple[str, ...]] = {
    "Deployment": ("spec.selector",),
    "DaemonSet": ("spec.selector",),
    "StatefulSet": (
        "spec.selector",
        "spec.serviceName",
        "spec.podManagementPolicy",
        "spec.volumeClaimTemplates",
    ),
    "Service": ("spec.clusterIP",),
    "PersistentVolumeClaim": ("spec",),
    "RoleBinding": ("roleRef",),
    "ClusterRoleBinding": ("roleRef",),
    "PriorityClass": ("value", "preemptionPolicy"),
    "Secret": ("type",),
    "CustomResourceDefinition": ("spec.group", "spec.scope", "spec.names.kind", "spec.names.plural"),
}
Object = dict[str, Any]
Render = Callable[..., list[Object]]


def keyed(objects: list[Object]) -> dict[str, Object]:
    return {f"{o['kind']} {o['metadata'].get('namespace', '')}/{o['metadata']['name']}": o for o in objects}


def before(values: Object) -> dict[str, Object]:
    with Chart.load_archive(BEFORE.read_bytes()) as chart:
        manifests = chart.render(values, name="demo", namespace="fleet")
    texts = [text for path, text in manifests.items() if path.endswith(".yaml")]
    return keyed([d for text in texts for d in yaml.load_all(text, yaml.CSafeLoader) if d])


def at(one: Any, path: str) -> Any:
    for key in path.split("."):
        one = one.get(key) if isinstance(one, dict) else None
    return one


def changed(old: dict[str, Object], new: dict[str, Object]) -> list[str]:
    """Fields that cannot change and did, in objects that both have."""
    return [
        f"{key}: {path}"
        for key in old.keys() & new.keys()
        for path in IMMUTABLE.get(old[key]["kind"], ())
        if at(old[key], path) != at(new[key], path)
    ]


@pytest.mark.parametrize("shape", VALUES)
def test_what_cannot_change_does_not(shape: str, render: Render) -> None:
    old, new = before(VALUES[shape]), keyed(render(VALUES[shape]))
    assert old
    assert changed(old, new) == []


@pytest.mark.parametrize("shape", VALUES)
def test_what_goes_is_named_in_the_upgrade_notes(shape: str, render: Render) -> None:
    notes = (CHART / "UPGRADE.md").read_text()
    gone = before(VALUES[shape]).keys() - keyed(render(VALUES[shape])).keys()
    for key in gone:
        kind, _, name = key.partition(" ")
        name = name.rpartition("/")[2].removeprefix("demo-")
        assert f"`{kind} …-{name}`" in notes


def properties(schema: Object, path: str = "") -> dict[str, Object]:
    """Every property of a schema by its path."""
    found: dict[str, Object] = {}
    for key, sub in (schema.get("properties") or {}).items():
        found |= {f"{path}/{key}": sub, **properties(sub, f"{path}/{key}")}
    items = schema.get("items")
    return found | (properties(items, f"{path}[]") if isinstance(items, dict) else {})


def test_definitions_serve_what_they_served_and_take_what_they_took(render: Render) -> None:
    old, new = before(VALUES["watching"]), keyed(render(VALUES["watching"]))
    kinds = [key for key in old if key.startswith("CustomResourceDefinition")]
    assert len(kinds) == 4
    for key in kinds:
        versions = {v["name"]: v for v in new[key]["spec"]["versions"]}
        for version in old[key]["spec"]["versions"]:
            now = versions[version["name"]]
            assert now["served"] or not version["served"]
            was, is_ = (properties(v["schema"]["openAPIV3Schema"]) for v in (version, now))
            assert was.keys() <= is_.keys()
            for path, one in was.items():
                assert is_[path].get("type") == one.get("type")
                assert set(is_[path].get("required", [])) <= set(one.get("required", []))
                assert set(one.get("enum", [])) <= set(is_[path].get("enum", []) or one.get("enum", []))
        stored = {v["name"] for v in new[key]["spec"]["versions"] if v["storage"]}
        assert stored == {v["name"] for v in old[key]["spec"]["versions"] if v["storage"]}
        assert new[key]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_every_value_of_before_is_still_one() -> None:
    def names(values: Object, path: str = "") -> set[str]:
        return {f"{path}{k}" for k in values} | {
            name for k, v in values.items() if isinstance(v, dict) for name in names(v, f"{path}{k}.")
        }

    with Chart.load_archive(BEFORE.read_bytes()) as old, Chart.load(CHART) as new:
        assert names(old.values) - names(new.values) == set()
        assert old.version != new.version
        assert f"to {new.version}" in (CHART / "UPGRADE.md").read_text()


def test_the_check_sees_a_changed_selector_and_a_changed_role() -> None:
    old = before(VALUES["full"])
    new = {key: dict(one) for key, one in old.items()}
    new["Deployment fleet/demo-tonnage-router"]["spec"] = {"selector": {"matchLabels": {"a": "b"}}}
    (binding,) = [key for key in old if key.startswith("ClusterRoleBinding") and "agent" in key]
    new[binding]["roleRef"] = {"name": "other"}
    assert sorted(changed(old, new)) == [f"{binding}: roleRef", "Deployment fleet/demo-tonnage-router: spec.selector"]


def test_the_notes_have_a_section_for_each_version_step() -> None:
    text = (CHART / "UPGRADE.md").read_text()
    assert re.search(r"^## From 0\.1\.0 to 0\.2\.0$", text, re.M)
