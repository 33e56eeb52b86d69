"""Network policies: everything is denied but the flows that docs/security.md names, and those are what parts need."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
Object = dict[str, Any]
Render = Callable[..., list[Object]]
ON: Object = {
    "networkPolicy": {"enabled": True},
    "operator": {"enabled": True},
    "redis": {"enabled": True},
    "planner": {"keda": {"enabled": True}},
    "agent": {"profiles": {"enabled": True}},
    "router": {"discovery": {"kubernetes": {"enabled": True}}},
    "coldstart": {"peers": {"enabled": True, "tokenSecret": {"name": "t"}}},
}
WITH_WORKERS: Object = ON | {
    "bench": {"enabled": True, "tokenSecret": {"name": "b"}, "workers": {"enabled": True}},
}
ALONE: Object = ON | {"bench": {"enabled": True, "tokenSecret": {"name": "b"}}}
PARTS = ("router", "planner", "agent", "coldstart", "operator", "redis", "test")


def policies(objects: list[Object]) -> list[Object]:
    return [o for o in objects if o["kind"] == "NetworkPolicy"]


def labels_of(objects: list[Object]) -> dict[str, Object]:
    """Labels of the pods of each component."""
    found = {}
    for one in objects:
        pod = one if one["kind"] == "Pod" else one.get("spec", {}).get("template")
        if pod is not None and "metadata" in pod:
            found[pod["metadata"]["labels"]["app.kubernetes.io/component"]] = pod["metadata"]["labels"]
    return found


def selects(selector: Object, labels: Object) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def opens(rule: Object, side: str, other: Object | None, port: int) -> bool:
    """Whether a rule lets a connection with a pod of the release (its labels), or with the outside (None), through."""
    ports = rule.get("ports")
    if ports is not None and port not in [p["port"] for p in ports if p["protocol"] == "TCP"]:
        return False
    peers = rule.get(side)
    if peers is None:
        return True
    if other is None:
        return any("ipBlock" in peer or "namespaceSelector" in peer for peer in peers)
    return any(
        selects(peer.get("podSelector", {}), other)
        for peer in peers
        if "podSelector" in peer and "namespaceSelector" not in peer
    )


def allowed(objects: list[Object], source: str | None, target: str | None, port: int) -> bool:
    """Whether a connection passes: both ends that are pods of the release must let it."""
    labels = labels_of(objects)
    ends = []
    for kind, side, own, other in (("Egress", "to", source, target), ("Ingress", "from", target, source)):
        if own is None:
            continue
        mine = [p for p in policies(objects) if selects(p["spec"]["podSelector"], labels[own])]
        assert any(kind in p["spec"]["policyTypes"] for p in mine), "nothing would be denied"
        rules = [rule for p in mine for rule in p["spec"].get(kind.lower(), [])]
        ends.append(any(opens(rule, side, labels[other] if other else None, port) for rule in rules))
    return all(ends)


def addressed(objects: list[Object]) -> set[tuple[str, str, int]]:
    """(from, to, port) of every URL in a pod's variables and arguments that names a Service of the release."""
    found = set()
    services = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "Service"}
    for one in objects:
        pod = one if one["kind"] == "Pod" else one.get("spec", {}).get("template")
        if pod is None or "metadata" not in pod:
            continue
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for container in pod["spec"]["containers"]:
            texts = [e.get("value") or "" for e in container.get("env", [])] + container.get("args", [])
            for url in (u for text in texts for u in re.findall(r"\b(?:https?|rediss?)://[^\s\"]+", text)):
                parts = urlsplit(url.replace("$(REDIS_PASSWORD)", "x"))
                name = (parts.hostname or "").partition(".")[0]
                if name in services:
                    target = services[name]["selector"]["app.kubernetes.io/component"]
                    found.add((component, target, parts.port or 0))
    return found


def test_every_address_that_a_part_is_given_may_be_reached(render: Render) -> None:
    objects = render(WITH_WORKERS)
    wanted = addressed(objects)
    assert {(a, b) for a, b, _ in wanted} == {
        ("planner", "router"),
        ("planner", "agent"),
        ("planner", "coldstart"),
        ("operator", "planner"),
        ("router", "redis"),
        ("planner", "redis"),
        ("coldstart", "redis"),
        ("test", "router"),
        ("test", "planner"),
        ("test", "operator"),
        ("test", "bench"),
        ("bench", "planner"),
        ("bench", "redis"),
        ("bench-worker", "bench"),
        ("bench-worker", "redis"),
    }
    for source, target, port in wanted:
        assert allowed(objects, source, target, port), (source, target, port)


def test_flows_that_no_address_shows_are_open_too(render: Render) -> None:
    objects = render(ON)
    for source, target, port in (
        ("operator", "coldstart", 8092),
        ("coldstart", "coldstart", 8092),
        ("router", None, 8000),
        ("planner", None, 8000),
        ("operator", None, 6443),
        ("agent", None, 443),
        ("coldstart", None, 443),
        (None, "router", 8000),
        (None, "planner", 8095),
        *((None, part, port) for part, port in (("router", 8001), ("planner", 8090), ("agent", 8091))),
        (None, "coldstart", 8092),
        (None, "operator", 8093),
        *((part, None, 53) for part in PARTS),
    ):
        assert allowed(objects, source, target, port), (source, target, port)


def test_load_comes_from_whoever_makes_the_runs_and_from_nobody_else(render: Render) -> None:
    for values, loading, other in ((ALONE, "bench", None), (WITH_WORKERS, "bench-worker", "bench")):
        objects = render(values)
        assert allowed(objects, loading, "router", 8000)
        assert allowed(objects, loading, None, 8000)
        assert other is None or not allowed(objects, other, "router", 8000)


def test_what_no_flow_names_is_denied(render: Render) -> None:
    objects = render(ON)
    for source, target, port in (
        ("agent", "redis", 6379),
        ("agent", "planner", 8090),
        ("router", "planner", 8090),
        ("router", "operator", 8093),
        ("coldstart", "router", 8001),
        ("test", "redis", 6379),
        ("planner", "router", 8000),
        ("redis", None, 443),
        ("redis", "router", 8000),
        ("router", "agent", 8091),
        (None, "redis", 6379),
        (None, "planner", 9999),
        ("agent", None, 80),
    ):
        assert not allowed(objects, source, target, port), (source, target, port)


def flows(objects: list[Object]) -> set[str]:
    names = {p["metadata"]["name"].removeprefix("demo-tonnage-") for p in policies(objects)}
    return {re.sub(r"-(in|out)$", "", name) for name in names - {"deny"}}


def test_the_security_page_names_exactly_these_flows(render: Render, shape_values: Callable[[str], Object]) -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"^\| `([a-z-]+)` \|", text.partition("## Connections")[2].partition("\n## ")[0], re.M))
    shapes = [WITH_WORKERS, ALONE, *(shape_values(one) for one in ("full", "air-gapped", "external-redis", "no-keda"))]
    assert {flow for values in shapes for flow in flows(render(values))} == named


@pytest.mark.parametrize("part", ["router", "planner", "coldstart", "redis", "operator", "agent"])
def test_a_part_that_is_off_has_no_flow(part: str, render: Render) -> None:
    values = ON | {part: {"enabled": False}}
    if part == "redis":
        values |= {"coldstart": {}}
    assert not [flow for flow in flows(render(values)) if part in flow.split("-to-")]


def test_peers_are_those_of_the_values(render: Render) -> None:
    peer = [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
    values = ON | {"networkPolicy": {"enabled": True, "clients": peer, "engines": peer, "enginePorts": [8000]}}
    by_name = {p["metadata"]["name"]: p["spec"] for p in policies(render(values))}
    (ingress,) = by_name["demo-tonnage-clients-to-router-in"]["ingress"]
    assert ingress == {"from": peer, "ports": [{"protocol": "TCP", "port": 8000}]}
    (egress,) = by_name["demo-tonnage-router-to-engines-out"]["egress"]
    assert egress == {"to": peer, "ports": [{"protocol": "TCP", "port": 8000}]}


def test_names_are_asked_on_the_ports_of_the_values(render: Render) -> None:
    objects = render(ON | {"networkPolicy": {"enabled": True, "dnsPorts": [5353]}})
    assert allowed(objects, "router", None, 5353)
    assert not allowed(objects, "agent", None, 53)


def test_nothing_is_made_unless_asked_for(render: Render) -> None:
    assert policies(render({})) == []


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://c:4318", 4318),
        ("https://c:4318/otel", 4318),
        ("https://c", 443),
        ("http://c", 80),
        ("http://[fd00::1]:9", 9),
    ],
)
def test_the_router_reaches_the_collector_of_its_traces_and_only_then(render: Render, url: str, port: int) -> None:
    closed = {**ON, "networkPolicy": {"enabled": True, "engines": [{"podSelector": {}}], "enginePorts": [8000]}}
    closed["router"] = {}
    assert not allowed(render(closed), "router", None, port)
    traced = {**closed, "router": {"tracing": {"endpoint": url}}}
    assert allowed(render(traced), "router", None, port) and not allowed(render(traced), "planner", None, port)
