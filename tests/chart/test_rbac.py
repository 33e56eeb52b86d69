"""Least rights: what each component's Role allows is what its code calls, no less and no more.

The calls were recorded from the code's own tests against a mock API server (tests/conftest.py): a call that is not on
record fails the test that made it, and a record that nobody calls any more fails the run.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CALLS: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).resolve().parents[1] / "golden" / "chart" / "api_calls.json").read_text()
)
Object = dict[str, Any]
Render = Callable[..., list[Object]]
ALL: Object = {
    "agent": {"profiles": {"enabled": True}},
    "router": {"discovery": {"kubernetes": {"enabled": True, "namespace": "serving", "service": "engines"}}},
    "operator": {"enabled": True, "podMonitors": True},
    "planner": {"keda": {"enabled": True}},
}
POOL: Object = {"router": {"discovery": {"kubernetes": {"enabled": True, "inferencePool": "llama"}}}}
"""What excludes a setting of `ALL`."""
Pairs = set[tuple[str, str]]


def rights(objects: list[Object], component: str) -> Pairs:
    """(resource, verb) of every rule bound to the component's service account."""
    accounts = {
        o["metadata"]["name"]
        for o in objects
        if o["kind"] == "ServiceAccount" and o["metadata"]["labels"]["app.kubernetes.io/component"] == component
    }
    bound = {
        (o["roleRef"]["kind"], o["roleRef"]["name"])
        for o in objects
        if o["kind"] in ("RoleBinding", "ClusterRoleBinding") and {s["name"] for s in o["subjects"]} & accounts
    }
    rules = [rule for o in objects if (o["kind"], o["metadata"]["name"]) in bound for rule in o["rules"]]
    return {
        (f"{group}/{resource}", verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def called(component: str) -> Pairs:
    return {(resource, verb) for resource, verbs in CALLS[component].items() for verb in verbs}


def missing_and_unused(allowed: Pairs, calls: Pairs) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    return sorted(calls - allowed), sorted(allowed - calls)


@pytest.mark.parametrize("component", CALLS)
def test_every_call_is_a_right_and_every_right_is_called(component: str, render: Render) -> None:
    allowed = rights(render(ALL), component) | rights(render(POOL), component)
    missing, unused = missing_and_unused(allowed, called(component))
    assert missing == []
    assert unused == []


def test_a_right_taken_away_is_missed_and_one_added_is_unused() -> None:
    calls = called("agent")
    some = sorted(calls)[0]
    assert missing_and_unused(calls - {some}, calls) == ([some], [])
    assert missing_and_unused(calls | {("/secrets", "get")}, calls) == ([], [("/secrets", "get")])


def test_rights_of_what_is_off_are_not_given(render: Render) -> None:
    plain = rights(render({"operator": {"enabled": True}}), "operator")
    assert rights(render(ALL), "operator") - plain == {
        (resource, verb)
        for resource in ("keda.sh/scaledobjects", "monitoring.coreos.com/podmonitors")
        for verb in CALLS["operator"][resource]
    }
    assert rights(render({}), "router") == rights(render({}), "agent") == set()
    without = {"router": {"discovery": {"kubernetes": {"enabled": True}}}}
    assert rights(render(without), "router") == {("/pods", "list"), ("/pods", "watch")}


def test_no_other_part_has_a_token_or_a_role(render: Render, shape_values: Callable[[str], Object]) -> None:
    for values in (ALL, shape_values("full"), shape_values("no-keda"), shape_values("external-redis")):
        made = render(values)
        for one in made:
            spec = one.get("spec", {}).get("template", {}).get("spec", {}) if one["kind"] != "Pod" else one["spec"]
            component = one["metadata"]["labels"]["app.kubernetes.io/component"]
            if spec.get("automountServiceAccountToken"):
                assert component in CALLS
            if one["kind"] in ("Role", "ClusterRole"):
                assert component in CALLS


def test_no_rule_is_a_wildcard_or_reads_secrets_and_leases_are_the_operators_own(render: Render) -> None:
    roles = [o for o in render(ALL) if o["kind"] in ("Role", "ClusterRole")]
    rules = [rule for role in roles for rule in role["rules"]]
    assert not any("*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"]) for rule in rules)
    assert not any("secrets" in rule["resources"] for rule in rules)
    (own,) = [rule for rule in rules if "leases" in rule["resources"] and "create" not in rule["verbs"]]
    assert own["resourceNames"] == ["demo-tonnage-operator"]


def test_a_watching_routers_rights_are_in_the_engines_namespace_alone(render: Render) -> None:
    (role,) = [o for o in render(ALL) if o["kind"] == "Role" and "router" in o["metadata"]["name"]]
    assert role["metadata"]["namespace"] == "serving"
    assert not [o for o in render(ALL) if o["kind"] == "ClusterRole" and "router" in o["metadata"]["name"]]
