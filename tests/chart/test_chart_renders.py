"""The chart under the real Helm engine: lint, schema, objects valid for Kubernetes, nothing for what is off."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError
from pydantic import BaseModel

from tonnage_bench.settings import BenchSettings, WorkerSettings
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_operator.settings import OperatorSettings
from tonnage_planner.settings import PlannerSettings
from tonnage_router.settings import RouterSettings
from tonnage_runtime.settings import load_settings

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
SHAPES = ("default", *sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
PARTS = ("router", "planner", "agent", "coldstart", "operator", "bench", "redis")
SETTINGS: dict[str, type[Any]] = {
    "router": RouterSettings,
    "planner": PlannerSettings,
    "agent": AgentSettings,
    "coldstart": ColdstartSettings,
    "operator": OperatorSettings,
    "bench": BenchSettings,
    "bench-worker": WorkerSettings,
}
OF_THE_RUNTIMES = {
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "NVIDIA_MIG_MONITOR_DEVICES",
}
OF_THE_CHART = {
    "POD_IP",
    "POD_NAME",
    "REDIS_PASSWORD",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_RESOURCE_ATTRIBUTES",
}
CLUSTER_SCOPED = {"APIService", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass"}
Object = dict[str, Any]
Render = Callable[..., list[Object]]
Shape = Callable[[str], Object]
Refusals = Callable[[Object, str], list[str]]


def pod_specs(objects: list[Object]) -> dict[str, Object]:
    workloads = ("Deployment", "DaemonSet", "StatefulSet")
    return {
        o["metadata"]["name"].removeprefix("demo-tonnage-"): o["spec"]["template"]["spec"]
        for o in objects
        if o["kind"] in workloads
    }


def newest_minors(count: int) -> list[str]:
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    found = {tuple(map(int, m.groups())) for p in folder.iterdir() if (m := re.match(r"v(\d+)\.(\d+)", p.name))}
    return [f"{major}.{minor}" for major, minor in sorted(found)[-count:]]


@pytest.mark.parametrize("shape", SHAPES)
def test_lint_is_strictly_clean(shape: str, shape_values: Shape) -> None:
    report = lint(CHART, shape_values(shape), strict=True)
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize("minor", newest_minors(3))
def test_every_object_is_valid_for_the_newest_kubernetes(
    minor: str, render: Render, shape_values: Shape, refusals: Refusals
) -> None:
    for shape in SHAPES:
        made = render(shape_values(shape))
        assert made
        assert [problem for one in made for problem in refusals(one, minor)] == []


@pytest.mark.parametrize("shape", SHAPES)
def test_no_object_is_made_twice(shape: str, render: Render, shape_values: Shape) -> None:
    """The second of one name would be refused by the API server, and the installation with it."""
    made = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in render(shape_values(shape))]
    assert sorted(made, key=str) == sorted(set(made), key=str)


def test_the_check_refuses_a_field_that_is_none(render: Render, shape_values: Shape, refusals: Refusals) -> None:
    for one in render(shape_values("full")):
        if "spec" in one:
            assert refusals({**one, "spec": {**one["spec"], "nosuch": 1}}, newest_minors(1)[0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"routr": {}}, "additional properties 'routr' not allowed"),
        ({"router": {"replica": 2}}, "'/router': additional properties 'replica' not allowed"),
        ({"router": {"replicas": "two"}}, "'/router/replicas': got string, want integer"),
        ({"planner": {"policy": {"max_replica": 3}}}, "'/planner/policy': additional properties 'max_replica'"),
        ({"planner": {"pools": {"p": {"target_kv_usage": 2}}}}, "'/planner/pools/p/target_kv_usage': maximum"),
        ({"endpoints": [{"url": "http://a"}]}, "'/endpoints/0': missing property 'model'"),
        ({"endpoints": [{"url": "a:80", "model": "m"}]}, "'/endpoints/0/url': 'a:80' does not match"),
        ({"metrics": {"interval": "15"}}, "'/metrics/interval': '15' does not match"),
        (
            {"router": {"settings": {"port": 9}}},
            "router.settings.port is written by the chart: set router.port instead",
        ),
        ({"agent": {"settings": {"node": "x"}}}, "agent.settings.node is written by the chart: remove it"),
    ],
)
def test_a_wrong_value_is_refused_and_named(values: Object, message: str, render: Render) -> None:
    with pytest.raises(HelmError, match=re.escape(message)):
        render(values)


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_rendered_for_a_part_that_is_off(part: str, render: Render, shape_values: Shape) -> None:
    values = shape_values("full") | {part: {"enabled": False}}
    if part == "redis":
        values |= {"coldstart": {"peers": {"enabled": False}}, "bench": {"enabled": False}}
    objects = render(values)
    left = [
        f"{o['kind']} {o['metadata']['name']}"
        for o in objects
        if o["metadata"]["labels"]["app.kubernetes.io/component"] == part
    ]
    assert left == []
    gone = {"redis": {"redis", "bench", "bench-worker"}, "bench": {"bench", "bench-worker"}}
    assert pod_specs(objects).keys() == {*PARTS, "bench-worker"} - gone.get(part, {part})


def test_nothing_is_rendered_when_everything_is_off(render: Render) -> None:
    assert render({part: {"enabled": False} for part in PARTS}) == []


@pytest.mark.parametrize("shape", ["default", "minimal"])
def test_cluster_features_are_off_by_default(shape: str, render: Render, shape_values: Shape) -> None:
    kinds = {o["kind"] for o in render(shape_values(shape))}
    assert kinds <= {"ConfigMap", "DaemonSet", "Deployment", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount"}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_variable_is_a_setting_of_its_service_with_a_value_it_takes(
    shape: str, tmp_path: Path, render: Render, shape_values: Shape
) -> None:
    for part, spec in pod_specs(render(shape_values(shape))).items():
        if part == "redis":
            continue
        prefix = part.upper().replace("-", "_")
        environ = {e["name"]: e.get("value", "n1") for e in spec["containers"][0]["env"]}
        own = {name for name in environ if name.startswith("TONNAGE_")}
        assert all(name.startswith(f"TONNAGE_{prefix}_") for name in own)
        said = {e["name"] for e in shape_values(shape).get(part, {}).get("extraEnv", [])}
        assert environ.keys() - own <= OF_THE_RUNTIMES | OF_THE_CHART | said
        settings: BaseModel = load_settings(SETTINGS[part], prefix, environ)
        fields = {n.removeprefix(f"TONNAGE_{prefix}_").lower(): environ[n] for n in own}
        # An empty text may stand for the default.
        assert {name for name, value in fields.items() if value} <= settings.model_fields_set <= fields.keys()


def test_the_planners_file_holds_settings_it_takes(tmp_path: Path, render: Render, shape_values: Shape) -> None:
    objects = render(shape_values("full"))
    (text,) = (o["data"]["planner.yaml"] for o in objects if "planner.yaml" in o.get("data", {}))
    path = tmp_path / "planner.yaml"
    path.write_text(text)
    settings = load_settings(PlannerSettings, "planner", {}, path)
    policy = settings.policy_of("llama-8b")
    assert (policy.max_replicas, policy.target_kv_usage, policy.scale_down_after_s) == (8, 0.7, 600)


@pytest.mark.parametrize("shape", SHAPES)
def test_probes_ask_health_and_readiness_on_a_port_of_the_container(
    shape: str, render: Render, shape_values: Shape
) -> None:
    for part, spec in pod_specs(render(shape_values(shape))).items():
        if part == "bench-worker":
            continue
        container = spec["containers"][0]
        ports = {port["name"] for port in container["ports"]}
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            action = container[probe].get("httpGet") or container[probe]["tcpSocket"]
            assert action["port"] in ports
            assert part == "redis" or action["path"] == path


def test_services_select_their_pods_and_name_a_port_of_them(render: Render, shape_values: Shape) -> None:
    objects = render(shape_values("full"))
    pods = [o["spec"]["template"] for o in objects if o["kind"] in ("Deployment", "DaemonSet", "StatefulSet")]
    for service in (o for o in objects if o["kind"] == "Service"):
        wanted = service["spec"]["selector"].items()
        (pod,) = [p for p in pods if wanted <= p["metadata"]["labels"].items()]
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_the_admin_port_is_never_on_the_public_service(render: Render, shape_values: Shape) -> None:
    objects = render(shape_values("full"))
    public = [o for o in objects if o["kind"] == "Service" and o["spec"].get("type") == "LoadBalancer"]
    assert [p["targetPort"] for o in public for p in o["spec"]["ports"]] == ["http"]


def test_the_only_root_by_default_is_the_cache_folders_chown(render: Render) -> None:
    specs = pod_specs(render({}))
    (init,) = specs["coldstart"]["initContainers"]
    assert init["securityContext"]["runAsUser"] == 0
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    without = pod_specs(render({"coldstart": {"cache": {"chown": False}}}))
    assert "initContainers" not in without["coldstart"]


def test_no_pod_gets_variables_from_the_clusters_services(render: Render, shape_values: Shape) -> None:
    """A Service of release `tonnage` would set TONNAGE_ROUTER_SERVICE_HOST, which the router refuses as unknown."""
    assert {spec["enableServiceLinks"] for spec in pod_specs(render(shape_values("full"))).values()} == {False}


def test_folders_of_the_node_are_mounted_only_where_a_value_names_one(render: Render) -> None:
    def folders(values: Object) -> set[str]:
        specs = pod_specs(render(values)).values()
        return {volume["hostPath"]["path"] for spec in specs for volume in spec["volumes"] if "hostPath" in volume}

    assert folders({}) == {"/var/lib/tonnage/cache"}
    assert folders({"coldstart": {"cache": {"hostPath": ""}}}) == set()
    both = {"agent": {"stateHostPath": "/a"}, "coldstart": {"cache": {"hostPath": "/c"}}}
    assert folders(both) == {"/a", "/c"}


def test_only_the_parts_that_watch_the_cluster_have_roles_and_a_token(render: Render, shape_values: Shape) -> None:
    # The operator has two roles: its own in the cluster, and one for its lease.
    for shape, having, roles in (("default", [], 0), ("minimal", [], 0), ("full", ["agent", "operator", "router"], 4)):
        values = shape_values(shape)
        objects = render(values)
        assert len([o for o in objects if "Role" in o["kind"]]) == 2 * roles
        assert all(o["automountServiceAccountToken"] is False for o in objects if o["kind"] == "ServiceAccount")
        assert sorted(n for n, spec in pod_specs(objects).items() if spec["automountServiceAccountToken"]) == having


def test_a_planner_policy_change_restarts_it_and_an_endpoint_change_does_not(render: Render) -> None:
    def checksum(values: Object) -> str:
        (planner,) = (o for o in render(values) if o["metadata"]["name"] == "demo-tonnage-planner" and "spec" in o
                      and "template" in o["spec"])  # fmt: skip
        found: str = planner["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return found

    plain = checksum({})
    assert checksum({"planner": {"policy": {"max_replicas": 3}}}) != plain
    assert checksum({"endpoints": [{"url": "http://a", "model": "m"}]}) == plain


def test_the_grace_period_is_longer_than_the_drain_and_the_wait_before_it(render: Render) -> None:
    for drain in (1, 30, 600):
        spec = pod_specs(render({"router": {"drainSeconds": drain}}))["router"]
        wait = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert spec["terminationGracePeriodSeconds"] > drain + wait


def test_every_object_has_the_recommended_labels_and_the_namespace(render: Render, shape_values: Shape) -> None:
    for one in render(shape_values("full")):
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "tonnage"
        assert labels["team"] == "inference"
        where = "serving" if one["kind"] == "ScaledObject" else "fleet"
        assert one["metadata"].get("namespace") == (None if one["kind"] in CLUSTER_SCOPED else where)


def test_selectors_hold_no_version(render: Render) -> None:
    for one in render({}):
        selector = one.get("spec", {}).get("selector", {})
        flat = selector.get("matchLabels", selector)
        assert not any("version" in key or "chart" in key for key in flat)


def test_the_notes_name_what_is_installed_and_what_is_missing(render: Render, shape_values: Shape) -> None:
    def notes(values: Object) -> str:
        with Chart.load(CHART) as chart:
            return chart.render(values, name="demo", namespace="fleet")["tonnage/templates/NOTES.txt"]

    assert "svc/demo-tonnage-router 8000" in notes({})
    assert "No engine is known yet" in notes({})
    assert "No engine is known yet" not in notes(shape_values("full"))
    assert "svc/demo-tonnage-router" not in notes(shape_values("minimal"))
