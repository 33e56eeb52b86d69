"""The router in the chart: what it may read of a cluster, only when it is asked to watch one."""

import re
from pathlib import Path
from typing import Any

import pytest
from helm_python.chart import Chart
from yaml import CSafeLoader, load_all

from tonnage_core.scheduling.profile import POLICIES
from tonnage_router.main import settings_from

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tonnage"
Object = dict[str, Any]


def render(values: Object) -> dict[str, Object]:
    with Chart.load(CHART) as chart:
        manifests = chart.render(values, name="demo", namespace="fleet")
    texts = [text for path, text in manifests.items() if path.endswith(".yaml")]
    documents = [d for text in texts for d in load_all(text, Loader=CSafeLoader) if d]
    return {f"{d['kind']} {d['metadata']['name'].rpartition('-')[2]}": d for d in documents}


def watching(**fields: Any) -> Object:
    return {"router": {"discovery": {"kubernetes": {"enabled": True, **fields}}}}


def environ(objects: dict[str, Object]) -> dict[str, str]:
    pod = objects["Deployment router"]["spec"]["template"]["spec"]
    return {e["name"]: e["value"] for e in pod["containers"][0]["env"]}


def test_by_default_the_router_has_no_token_and_no_role() -> None:
    objects = render({})
    assert not any("Role" in name for name in objects)
    assert objects["Deployment router"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert "TONNAGE_ROUTER_DISCOVERY" not in environ(objects)


def test_a_watching_router_may_list_and_watch_pods_of_the_engines_namespace_and_nothing_else() -> None:
    objects = render(watching(namespace="serving"))
    assert objects["Role router"]["metadata"]["namespace"] == "serving"
    assert objects["Role router"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    binding = objects["RoleBinding router"]
    assert binding["metadata"]["namespace"] == "serving"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "demo-tonnage-router", "namespace": "fleet"}]
    assert objects["Deployment router"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert environ(objects)["TONNAGE_ROUTER_KUBERNETES_NAMESPACE"] == "serving"


def test_slices_are_readable_only_where_a_service_is_named() -> None:
    objects = render(watching(service="engines", port=8000))
    assert [rule["resources"] for rule in objects["Role router"]["rules"]] == [["pods"], ["endpointslices"]]
    assert objects["Role router"]["metadata"]["namespace"] == "fleet"
    settings = environ(objects)
    assert (settings["TONNAGE_ROUTER_KUBERNETES_SERVICE"], settings["TONNAGE_ROUTER_KUBERNETES_PORT"]) == (
        "engines",
        "8000",
    )


def test_an_inference_pool_is_followed_in_place_of_a_service() -> None:
    objects = render(watching(service="engines", inferencePool="llama"))
    assert [rule["resources"] for rule in objects["Role router"]["rules"]] == [["pods"], ["inferencepools"]]
    settings = environ(objects)
    assert settings["TONNAGE_ROUTER_KUBERNETES_INFERENCE_POOL"] == "llama"
    assert not settings.get("TONNAGE_ROUTER_KUBERNETES_SERVICE")


def test_the_chart_sets_only_what_the_router_takes() -> None:
    from tonnage_router.main import settings_from

    objects = render(watching(service="engines"))
    env = {name: value for name, value in environ(objects).items() if not name.endswith("ENDPOINTS_FILE")}
    assert settings_from(env).kubernetes_namespace == "fleet"


def test_a_policy_is_one_of_the_routers_or_a_profile_of_the_values() -> None:
    with pytest.raises(Exception, match=r"router\.policy mine is none: take ([a-z_, ]+), or a name of") as refused:
        render({"router": {"policy": "mine"}})
    named = re.search(r"take ([a-z_, ]+), or", str(refused.value))
    assert named is not None and set(named[1].split(", ")) == POLICIES.keys()
    profile = {"filters": ["healthy"], "scorers": {"load": 1}}
    objects = render({"router": {"policy": "mine", "settings": {"profiles": {"mine": profile}}}})
    assert environ(objects)["TONNAGE_ROUTER_POLICY"] == "mine"


def test_discovery_is_no_further_setting() -> None:
    with pytest.raises(Exception, match=r"router\.settings\.discovery is written by the chart"):
        render({"router": {"settings": {"discovery": "kubernetes"}}})


def test_replicas_share_through_the_charts_redis_under_the_releases_own_name() -> None:
    assert "TONNAGE_ROUTER_SHARED_STORE" not in environ(render({}))
    objects = render({"redis": {"enabled": True, "port": 6400}})
    settings = environ(objects)
    assert settings["TONNAGE_ROUTER_SHARED_STORE"] == "redis://demo-tonnage-redis:6400/0"
    assert settings["TONNAGE_ROUTER_FLEET"] == "fleet/demo-tonnage"
    assert objects["Service redis"]["spec"]["ports"][0]["port"] == 6400
    own = {"redis": {"enabled": True}, "router": {"settings": {"shared_store": "rediss://elsewhere:6379/1"}}}
    assert environ(render(own))["TONNAGE_ROUTER_SHARED_STORE"] == "rediss://elsewhere:6379/1"


def test_traces_go_nowhere_by_default_and_with_a_collector_under_the_pods_name() -> None:
    assert not any("OTLP" in name or "OTEL" in name for name in environ(render({})))
    tracing = {"endpoint": "https://collector:4318", "ratio": 0.25, "caSecret": {"name": "ca"}}
    objects = render({"router": {"tracing": {**tracing, "headersSecret": {"name": "traces"}}}})
    pod = objects["Deployment router"]["spec"]["template"]["spec"]
    named = {one["name"]: one for one in pod["containers"][0]["env"]}
    settings = settings_from(
        {name: one["value"] for name, one in named.items() if name.startswith("OTEL") and "value" in one} | told(named)
    )
    assert (settings.otlp_endpoint, settings.trace_ratio) == ("https://collector:4318", 0.25)
    assert settings.trace_sampler == "parentbased_always_on"
    assert settings.trace_resource == "k8s.namespace.name=fleet,k8s.pod.name=$(POD_NAME)"
    assert named["OTEL_EXPORTER_OTLP_HEADERS"]["valueFrom"] == {"secretKeyRef": {"name": "traces", "key": "headers"}}
    (mounted,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "collector-ca"]
    assert settings.otlp_ca_file == Path(mounted["mountPath"]) / "ca.crt"
    (volume,) = [v for v in pod["volumes"] if v["name"] == "collector-ca"]
    assert volume["secret"] == {"secretName": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def told(named: Object) -> dict[str, str]:
    """The tracing settings among a container's variables."""
    prefixes = ("TONNAGE_ROUTER_OTLP_", "TONNAGE_ROUTER_TRACE_")
    return {name: one["value"] for name, one in named.items() if name.startswith(prefixes) and "value" in one}


@pytest.mark.parametrize(
    "url", ["collector:4318", "http://user:pass@collector", "http://collector/?key=k", "grpc://c:1"]
)
def test_what_is_no_collector_is_refused(url: str) -> None:
    with pytest.raises(Exception, match="endpoint"):
        render({"router": {"tracing": {"endpoint": url}}})
