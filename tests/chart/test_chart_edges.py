"""The chart at its edges: values taken back with null, odd names, labels said twice, values that contradict."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart
from helm_python.errors import HelmError

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
FULL: dict[str, Any] = yaml.safe_load((CHART / "ci" / "full-values.yaml").read_text())
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
Object = dict[str, Any]
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class OnceLoader(Loader):  # type: ignore[misc,valid-type]
    """Refuses a key said twice in one mapping, as strict readers of manifests do."""


def _once(loader: OnceLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    names = [loader.construct_object(key, deep=True) for key, _ in node.value]
    assert len(names) == len(set(names)), f"said twice in one mapping: {sorted(names)}"
    made: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return made


OnceLoader.add_constructor("tag:yaml.org,2002:map", _once)


def render(values: Object, name: str = "demo", namespace: str = "fleet") -> list[Object]:
    with Chart.load(CHART) as chart:
        manifests = chart.render(values, name=name, namespace=namespace)
    texts = [text for path, text in manifests.items() if path.endswith(".yaml")]
    return [document for text in texts for document in yaml.load_all(text, OnceLoader) if document]


def nested(path: str, value: object) -> Object:
    made: Any = value
    for key in reversed(path.split(".")):
        made = {key: made}
    found: Object = made
    return found


def templates(objects: list[Object]) -> dict[str, Object]:
    """Pod templates by component."""
    return {
        o["metadata"]["labels"]["app.kubernetes.io/component"]: o["spec"]["template"]
        for o in objects
        if o["kind"] in ("Deployment", "DaemonSet", "StatefulSet")
    }


@pytest.mark.parametrize(
    "path",
    [
        "endpoints",
        "commonLabels",
        "image.tag",
        "image.registry",
        "router.settings",
        "router.podLabels",
        "planner.policy",
        "planner.pools",
        "planner.podAnnotations",
        "agent.tolerations",
        "agent.settings",
        "coldstart.cache.hostPath",
        "redis.external.url",
        "metrics.dashboards.labels",
    ],
)
def test_null_takes_an_optional_value_back_to_empty(path: str) -> None:
    objects = render(nested(path, None) | {"metrics": {"dashboards": {"enabled": True, "labels": None}}})
    assert templates(objects).keys() == {"router", "planner", "agent", "coldstart"}
    texts = [text for o in objects for text in o.get("data", {}).values() if "null" in text and "endpoints" in text]
    assert not any("\n  null" in text for text in texts)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("redis", "at '': missing property 'redis'"),
        ("logLevel", "at '': missing property 'logLevel'"),
        ("router.port", "at '/router': missing property 'port'"),
        ("agent.profiles", "at '/agent': missing property 'profiles'"),
        ("coldstart.enabled", "at '/coldstart': missing property 'enabled'"),
        ("metrics.serviceMonitor", "at '/metrics': missing property 'serviceMonitor'"),
    ],
)
def test_null_for_a_value_that_is_needed_is_refused_by_its_name(path: str, message: str) -> None:
    with pytest.raises(HelmError, match=re.escape(message)):
        render(nested(path, None))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"router": {"port": 9, "adminPort": 9}}, "router.port and router.adminPort are both 9"),
        (
            {"planner": {"policy": {"min_replicas": 3, "max_replicas": 2}}},
            "planner.policy: min_replicas 3 is more than max_replicas 2",
        ),
        (
            {"planner": {"policy": {"max_replicas": 2}, "pools": {"p": {"min_replicas": 3}}}},
            "planner.pools.p: min_replicas 3 is more than max_replicas 2",
        ),
        ({"nameOverride": "My_Name"}, "'/nameOverride': 'My_Name' does not match"),
        ({"fullnameOverride": "a name"}, "'/fullnameOverride': 'a name' does not match"),
        ({"endpoints": [{"url": "http://user:word@a", "model": "m"}]}, "'/endpoints/0/url'"),
        (
            {"endpoints": [{"url": "http://a:1/", "model": "m"}, {"url": "https://b:1", "model": "m"}]},
            "endpoints[1].url https://b:1: the router reads http://host:port alone",
        ),
        ({"endpoints": [{"url": "http://a:1/v1", "model": "m"}]}, "endpoints[0].url http://a:1/v1: the router reads"),
        ({"endpoints": [{"url": "http://a", "model": "m", "api_key": "k"}]}, "additional properties 'api_key'"),
    ],
)
def test_values_that_cannot_work_are_refused_before_anything_is_installed(values: Object, message: str) -> None:
    with pytest.raises(HelmError, match=re.escape(message)):
        render(values)


def test_a_release_whose_name_no_service_can_have_is_refused_with_the_way_out() -> None:
    with pytest.raises(HelmError, match=r"resources cannot be called 1prod-tonnage.*set fullnameOverride"):
        render({}, name="1prod")
    assert render({"fullnameOverride": "prod"}, name="1prod")


@pytest.mark.parametrize("name", ["demo", "a.b", "r" * 53, "r" * 38 + "-" + "x" * 14, "tonnage"])
def test_every_service_and_pod_has_a_name_that_dns_takes(name: str) -> None:
    for one in render(FULL, name=name):
        if one["kind"] in ("Service", "Deployment", "DaemonSet", "ServiceAccount"):
            assert DNS_LABEL.fullmatch(one["metadata"]["name"])


@pytest.mark.parametrize("name", ["r" * 46, "r" * 47, "r" * 48, "r" * 53])
def test_a_name_that_pods_carry_as_a_label_fits_into_one(name: str) -> None:
    """A Job's pods have its name as a label, a StatefulSet's its name and a hash of up to ten digits; 63 at most."""
    most = {"Job": 63, "StatefulSet": 52}
    made = [o for o in render(FULL | {"fullnameOverride": name}) if o["kind"] in most]
    assert {o["kind"] for o in made} == most.keys()
    for one in made:
        assert len(one["metadata"]["name"]) <= most[one["kind"]]
        assert one["metadata"]["name"].startswith(name[:39])


@pytest.mark.parametrize(("one", "other"), [("tonnage", "tonnage-b"), ("x" * 52 + "a", "x" * 52 + "b")])
def test_two_releases_of_one_namespace_share_no_object_but_the_definition(one: str, other: str) -> None:
    def names(release: str) -> set[tuple[str, str]]:
        # What another's workload is scaled by is named by the values, not by the release.
        scaled = {"planner": FULL["planner"] | {"scaling": {"targets": []}}}
        return {(o["kind"], o["metadata"]["name"]) for o in render(FULL | scaled, name=release)}

    kinds = ("gpuprofiles", "loraadapters", "modelcaches", "modelservers")
    assert names(one) & names(other) == {("CustomResourceDefinition", f"{kind}.tonnage.dev") for kind in kinds}


def test_a_namespace_and_overrides_that_look_like_numbers_stay_text() -> None:
    for one in render(FULL | {"fullnameOverride": "fleet"}, name="123", namespace="456"):
        labels = one["metadata"]["labels"]
        assert labels.get("app.kubernetes.io/instance") == (
            None if one["metadata"]["name"].endswith("extra") else "123"
        )
        assert one["metadata"].get("namespace", "456") == ("serving" if one["kind"] == "ScaledObject" else "456")


def test_a_label_said_twice_is_written_once_and_the_charts_own_stays() -> None:
    said = {"team": "other", "release": "mine", "app.kubernetes.io/component": "x"}
    values = FULL | {"commonLabels": said, "router": {"podLabels": {"team": "front", "app.kubernetes.io/name": "y"}}}
    objects = render(values)
    monitor = next(o for o in objects if o["kind"] == "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    router = templates(objects)["router"]["metadata"]["labels"]
    assert (router["team"], router["release"]) == ("front", "mine")
    for one in objects:
        if one["kind"] in ("Deployment", "DaemonSet", "StatefulSet"):
            selector = one["spec"]["selector"]["matchLabels"].items()
            assert selector <= one["spec"]["template"]["metadata"]["labels"].items()


def test_the_planners_checksum_cannot_be_replaced_by_an_annotation() -> None:
    values = {"planner": {"podAnnotations": {"checksum/config": "mine", "other": "kept"}}}
    annotations = templates(render(values))["planner"]["metadata"]["annotations"]
    assert re.fullmatch(r"[0-9a-f]{64}", annotations["checksum/config"])
    assert annotations["other"] == "kept"


@pytest.mark.parametrize(("part", "by_default"), [("planner", 30), ("coldstart", 30)])
def test_a_longer_drain_lengthens_the_grace_period(part: str, by_default: int) -> None:
    def grace(settings: Object) -> int:
        found: int = templates(render({part: {"settings": settings}}))[part]["spec"]["terminationGracePeriodSeconds"]
        return found

    assert grace({}) == by_default
    assert grace({"drain_timeout_s": 5}) == by_default
    assert grace({"drain_timeout_s": 59.5}) == 75


def test_engines_are_scraped_at_the_scheme_and_path_of_their_url() -> None:
    endpoints = [{"url": "https://a.example/base/", "model": "m"}, {"url": "http://b:8000", "model": "n"}]
    alone = {"router": {"enabled": False}, "metrics": {"scrapeConfig": {"enabled": True}}}
    objects = render({"endpoints": endpoints, **alone})
    (text,) = (o["data"]["prometheus-scrape.yaml"] for o in objects if "prometheus-scrape.yaml" in o.get("data", {}))
    (job,) = (j for j in yaml.safe_load(text)["scrape_configs"] if j["job_name"] == "tonnage-engines")
    places = [(c["targets"], c["labels"]["__scheme__"], c["labels"]["__metrics_path__"]) for c in job["static_configs"]]
    assert places == [(["a.example"], "https", "/base/metrics"), (["b:8000"], "http", "/metrics")]


def test_only_the_own_cache_container_and_no_other_runs_as_root_in_a_full_install() -> None:
    for template in templates(render(FULL)).values():
        for container in (*template["spec"].get("initContainers", ()), *template["spec"]["containers"]):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            assert (context.get("runAsUser") == 0) == (container["name"] == "own-cache")


def test_the_notes_ask_for_no_endpoints_when_nothing_reads_them() -> None:
    off: Object = {part: {"enabled": False} for part in ("router", "planner")}
    with Chart.load(CHART) as chart:
        assert (
            "No engine is known" not in chart.render(off, name="demo", namespace="fleet")["tonnage/templates/NOTES.txt"]
        )
