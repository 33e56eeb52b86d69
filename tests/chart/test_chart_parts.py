"""What the chart makes around the parts: stores, scalers, routes, certificates, `helm test`, further objects."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from helm_python.errors import HelmError

from tonnage_core.autoscaling.hook_objects import ScaledPool, horizontal_pod_autoscaler, scaled_object
from tonnage_planner.hooks.external_metrics import GROUP, VERSION
from tonnage_runtime.ports import free_port

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
Object = dict[str, Any]
Render = Callable[..., list[Object]]
CA = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
HPA: Object = {"externalMetrics": {"enabled": True, "clientCa": CA}}
TARGET: Object = {"pool": "m", "target": {"name": "m", "namespace": "serving"}, "min": 0, "max": 8}


def by_kind(objects: list[Object], kind: str) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def container(objects: list[Object], part: str) -> Object:
    found: Object = next(
        o["spec"]["template"]["spec"]["containers"][0]
        for o in objects
        if o["kind"] in ("Deployment", "DaemonSet") and o["metadata"]["name"] == f"demo-tonnage-{part}"
    )
    return found


def env(objects: list[Object], part: str) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container(objects, part)["env"]}


STORES = {
    "router": "TONNAGE_ROUTER_SHARED_STORE",
    "planner": "TONNAGE_PLANNER_STORE_URL",
    "coldstart": "TONNAGE_COLDSTART_STORE_URL",
}
PEERS: Object = {"coldstart": {"peers": {"enabled": True, "tokenSecret": {"name": "peers"}}}}


@pytest.mark.parametrize("part", STORES)
def test_a_password_comes_from_a_secret_and_stands_nowhere(part: str, render: Render) -> None:
    own = render(PEERS | {"redis": {"enabled": True, "auth": {"secretName": "r"}}})
    assert env(own, part)["REDIS_PASSWORD"] == {"secretKeyRef": {"name": "r", "key": "password"}}
    assert env(own, part)[STORES[part]] == "redis://:$(REDIS_PASSWORD)@demo-tonnage-redis:6379/0"
    external = render(PEERS | {"redis": {"external": {"urlSecret": {"name": "u", "key": "k"}}}})
    assert env(external, part)[STORES[part]] == {"secretKeyRef": {"name": "u", "key": "k"}}


@pytest.mark.parametrize("part", STORES)
def test_tls_to_an_external_store_is_checked_against_the_ca_of_a_secret(part: str, render: Render) -> None:
    redis = {"external": {"url": "rediss://h:6380/1", "caSecret": {"name": "ca", "key": "x.pem"}}}
    objects = render(PEERS | {"redis": redis})
    assert env(objects, part)[STORES[part]] == "rediss://h:6380/1?ssl_ca_certs=/etc/tonnage/redis-ca/ca.crt"
    mounts = {m["name"]: m["mountPath"] for m in container(objects, part)["volumeMounts"]}
    assert mounts["redis-ca"] == "/etc/tonnage/redis-ca"


def test_a_password_variable_comes_before_the_url_that_names_it(render: Render) -> None:
    objects = render(PEERS | {"redis": {"enabled": True, "auth": {"secretName": "r"}}})
    for part, name in STORES.items():
        names = [e["name"] for e in container(objects, part)["env"]]
        assert names.index("REDIS_PASSWORD") < names.index(name)
    assert container(objects, "redis")["args"][-2:] == ["--requirepass", "$(REDIS_PASSWORD)"]


def test_the_store_of_ones_own_settings_wins(render: Render) -> None:
    values = {"redis": {"enabled": True}, "planner": {"settings": {"store_url": "redis://mine"}}}
    assert env(render(values), "planner")["TONNAGE_PLANNER_STORE_URL"] == "redis://mine"


def test_cold_start_peers_know_themselves_and_their_token(render: Render) -> None:
    peers = {"enabled": True, "tokenSecret": {"name": "peers"}, "placeLabel": "topology.kubernetes.io/zone"}
    made = env(render({"redis": {"enabled": True}, "coldstart": {"peers": peers}}), "coldstart")
    assert made["TONNAGE_COLDSTART_ADVERTISE_URL"] == "http://$(POD_IP):8092"
    assert made["TONNAGE_COLDSTART_NODE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert made["TONNAGE_COLDSTART_PEER_TOKEN"] == "@/etc/tonnage/peers/token"
    label = "metadata.labels['topology.kubernetes.io/zone']"
    assert made["TONNAGE_COLDSTART_PLACE"] == {"fieldRef": {"fieldPath": label}}
    assert "TONNAGE_COLDSTART_STORE_URL" not in env(render({"redis": {"enabled": True}}), "coldstart")


@pytest.mark.parametrize("tolerance", [True, False])
def test_scalers_are_those_the_planners_core_writes(tolerance: bool, render: Render) -> None:
    scaling = {"toleranceServed": tolerance}
    pool = ScaledPool("m", "serving", 0, 8, "demo-tonnage-planner.fleet.svc:8095")
    keda = {"keda": {"enabled": True}, "scaling": scaling | {"targets": [TARGET | {"by": "keda"}]}}
    (made,) = by_kind(render({"planner": keda}), "ScaledObject")
    wanted = scaled_object(pool, tolerance_served=tolerance)
    assert (made["apiVersion"], made["spec"]) == (wanted["apiVersion"], wanted["spec"])
    assert made["metadata"]["labels"]["tonnage.dev/pool"] == "m"
    hpa = HPA | {"scaling": scaling | {"targets": [TARGET | {"by": "hpa"}]}}
    (made,) = by_kind(render({"planner": hpa}), "HorizontalPodAutoscaler")
    wanted = horizontal_pod_autoscaler(pool, tolerance_served=tolerance)
    assert (made["apiVersion"], made["spec"]) == (wanted["apiVersion"], wanted["spec"])


def test_a_pool_with_a_slash_is_asked_for_whole_and_labelled_without_it(render: Render) -> None:
    target = {"pool": "meta-llama/Llama-3.1-8B", "by": "keda", "target": {"name": "llama"}, "min": 1, "max": 4}
    (made,) = by_kind(
        render({"planner": {"keda": {"enabled": True}, "scaling": {"targets": [target]}}}), "ScaledObject"
    )
    assert made["spec"]["triggers"][0]["metadata"]["pool"] == "meta-llama/Llama-3.1-8B"
    assert made["metadata"]["labels"]["tonnage.dev/pool"] == "meta-llama-Llama-3.1-8B"


@pytest.mark.parametrize("source", ["certManager", "secret", "generated"])
def test_the_external_metrics_api_is_registered_with_a_certificate(source: str, render: Render) -> None:
    certificate = {"from": source, "secretName": "mine", "caBundle": CA}
    external = HPA["externalMetrics"] | {"certificate": certificate}
    objects = render({"planner": {"externalMetrics": external}})
    (service,) = by_kind(objects, "APIService")
    assert service["metadata"]["name"] == f"{VERSION}.{GROUP}"
    assert service["spec"]["service"] == {"name": "demo-tonnage-planner", "namespace": "fleet", "port": 443}
    assert ("caBundle" in service["spec"]) == (source != "certManager")
    assert "insecureSkipTLSVerify" not in service["spec"]
    pod = next(o for o in by_kind(objects, "Deployment") if o["metadata"]["name"] == "demo-tonnage-planner")
    secrets = [v["secret"]["secretName"] for v in pod["spec"]["template"]["spec"]["volumes"] if "secret" in v]
    named = "mine" if source == "secret" else "demo-tonnage-planner-external-metrics"
    assert secrets == [named]
    made = [*by_kind(objects, "Certificate"), *by_kind(objects, "Secret")]
    assert [o["metadata"]["name"] for o in made] == ([] if source == "secret" else [named])


def test_cert_manager_signs_for_the_services_name_and_fills_the_ca_in(render: Render) -> None:
    objects = render({"planner": HPA})
    (certificate,) = by_kind(objects, "Certificate")
    (issuer,) = by_kind(objects, "Issuer")
    (service,) = by_kind(objects, "APIService")
    assert certificate["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
    assert "demo-tonnage-planner.fleet.svc" in certificate["spec"]["dnsNames"]
    injected = service["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"fleet/{certificate['metadata']['name']}"


def test_routes_reach_the_api_and_never_the_admin_port(render: Render, shape_values: Callable[[str], Object]) -> None:
    objects = render(shape_values("full"))
    (ingress,), (route,) = by_kind(objects, "Ingress"), by_kind(objects, "HTTPRoute")
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "demo-tonnage-router", "port": {"name": "http"}}
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "demo-tonnage-router", "port": 8000}]
    assert rule["timeouts"] == {"request": "0s"}
    (service,) = [o for o in by_kind(objects, "Service") if o["metadata"]["name"] == "demo-tonnage-router"]
    assert [port["name"] for port in service["spec"]["ports"]] == ["http"]


def test_an_autoscaled_router_has_no_replicas_of_its_own(render: Render) -> None:
    values = {"router": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": "1"}}}}
    objects = render(values)
    (deployment,) = [o for o in by_kind(objects, "Deployment") if o["metadata"]["name"].endswith("router")]
    assert "replicas" not in deployment["spec"]
    (scaler,) = by_kind(objects, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_budgets_and_spread_select_the_pods_of_their_part(render: Render) -> None:
    objects = render({"operator": {"enabled": True}})
    pods = {o["metadata"]["name"]: o["spec"]["template"] for o in by_kind(objects, "Deployment")}
    budgets = by_kind(objects, "PodDisruptionBudget")
    assert {b["metadata"]["name"] for b in budgets} == {"demo-tonnage-router", "demo-tonnage-operator"}
    for budget in budgets:
        labels = pods[budget["metadata"]["name"]]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
        for spread in pods[budget["metadata"]["name"]]["spec"]["topologySpreadConstraints"]:
            assert spread["labelSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (PEERS, "coldstart.peers.enabled needs a store"),
        (
            {"coldstart": {"peers": {"enabled": True}}, "redis": {"enabled": True}},
            "set coldstart.peers.tokenSecret.name",
        ),
        (
            PEERS | {"redis": {"enabled": True, "external": {"url": "redis://a"}}},
            "redis.external names another: keep one",
        ),
        ({"bench": {"enabled": True}}, "set bench.tokenSecret.name"),
        ({"bench": {"enabled": True, "tokenSecret": {"name": "b"}, "workers": {"enabled": True}}}, "needs a queue"),
        ({"redis": {"external": {"url": "redis://a", "urlSecret": {"name": "b"}}}}, "are both set: keep one"),
        ({"redis": {"external": {"url": "redis://:word@a"}}}, "'/redis/external/url'"),
        (
            {"redis": {"external": {"url": "rediss://h:6380/1"}}, "networkPolicy": {"enabled": True}},
            "is on port 6380 and networkPolicy.redisPort is 6379",
        ),
        ({"router": {"httpRoute": {"enabled": True}}}, "set router.httpRoute.parentRefs"),
        ({"router": {"autoscaling": {"enabled": True}}}, "set router.resources.requests.cpu"),
        ({"planner": {"externalMetrics": {"enabled": True}}}, "clientCa is empty and cannot be looked up"),
        ({"planner": HPA | {"keda": {"enabled": True}}}, "KEDA owns the cluster's external metrics API"),
        ({"planner": {"scaling": {"targets": [TARGET | {"by": "keda"}]}}}, "set planner.keda.enabled"),
        ({"planner": {"keda": {"enabled": True, "tls": True}}}, "set access.tlsSecretName"),
        ({"planner": HPA | {"scaling": {"targets": [TARGET | {"by": "hpa", "max": 12}]}}}, "within an HPA's 10 %"),
        (
            {"planner": {"keda": {"enabled": True}, "scaling": {"targets": [TARGET | {"by": "keda"}] * 2}}},
            "serving/m is scaled twice: keep one entry",
        ),
        ({"router": {"resources": {"requests": {"cpu": "lots"}}}}, "'/router/resources/requests/cpu': 'lots' does not"),
        ({"router": {"resources": {"limits": {"cpu": -1}}}}, "'/router/resources/limits/cpu': minimum: got -1"),
        ({"coldstart": {"cache": {"sizeLimit": "big"}}}, "'/coldstart/cache/sizeLimit': 'big' does not match"),
        ({"commonLabels": {"x": "y" * 64}}, "'/commonLabels/x': '"),
        ({"router": {"podLabels": {"not so": "v"}}}, "'/router/podLabels': additional properties 'not so' not allowed"),
        ({"image": {"tag": "a b"}}, "'/image/tag': 'a b' does not match"),
        ({"networkPolicy": {"clients": [{}]}}, "'/networkPolicy/clients/0': minProperties"),
        ({"router": {"settings": {"retires": 3}}}, "'/router/settings': additional properties 'retires' not allowed"),
        ({"agent": {"settings": {"interval_s": "soon"}}}, "'/agent/settings/interval_s': got string, want number"),
        (
            {"router": {"podDisruptionBudget": {"maxUnavailable": "many"}}},
            "'/router/podDisruptionBudget/maxUnavailable'",
        ),
    ],
)
def test_what_contradicts_is_refused_with_the_way_out(values: Object, message: str, render: Render) -> None:
    with pytest.raises(HelmError, match=re.escape(message)):
        render(values)


def test_further_objects_are_templates_as_mappings_and_as_text(render: Render) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-text\n"
    mapping = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-map"}}
    names = {o["metadata"]["name"] for o in by_kind(render({"extraManifests": [text, mapping]}), "ConfigMap")}
    assert names >= {"demo-text", "demo-map"}


def test_no_image_and_no_address_of_an_air_gapped_release_is_outside(
    render: Render, shape_values: Callable[[str], Object]
) -> None:
    objects = render(shape_values("air-gapped"))
    specs = [o["spec"]["template"]["spec"] for o in objects if "template" in o.get("spec", {})]
    specs += [o["spec"] for o in by_kind(objects, "Pod")]
    images = {c["image"] for spec in specs for c in (*spec.get("initContainers", []), *spec["containers"])}
    images |= {env(objects, "operator")[f"TONNAGE_OPERATOR_{name}_IMAGE"] for name in ("STAGE", "PLACEHOLDER")}
    assert images
    assert all(image.startswith("registry.internal.example/") for image in images)
    values = [str(e.get("value", "")) for spec in specs for c in spec["containers"] for e in c.get("env", [])]
    hosts = {host for value in values for host in re.findall(r"://([^/:\s\"]+)", value)}
    assert all(host.endswith((".svc", ".internal.example", "redis")) for host in hosts)


def test_a_slice_watching_agent_asks_the_runtime_for_mig_devices(render: Render) -> None:
    assert env(render({"agent": {"migMonitor": True}}), "agent")["NVIDIA_MIG_MONITOR_DEVICES"] == "all"
    assert "NVIDIA_MIG_MONITOR_DEVICES" not in env(render({}), "agent")


def test_the_benchs_tokens_come_from_its_secret_and_workers_know_theirs_alone(render: Render) -> None:
    bench = {"enabled": True, "tokenSecret": {"name": "b"}, "workers": {"enabled": True}}
    objects = render({"redis": {"enabled": True}, "bench": bench})
    (service,) = by_kind(objects, "StatefulSet")
    (worker,) = (o for o in by_kind(objects, "Deployment") if o["metadata"]["name"].endswith("bench-worker"))
    of_service = {e["name"]: e.get("value") for e in service["spec"]["template"]["spec"]["containers"][0]["env"]}
    folder = "@/etc/tonnage/bench-tokens"
    assert of_service["TONNAGE_BENCH_TOKEN"] == f"{folder}/token"
    assert of_service["TONNAGE_BENCH_WORKER_TOKEN"] == f"{folder}/worker-token"
    of_worker = env(objects, "bench-worker")
    assert of_worker["TONNAGE_BENCH_WORKER_TOKEN"] == f"{folder}/worker-token"
    for owner, keys in ((service, {"token", "worker-token"}), (worker, {"worker-token"})):
        volumes = owner["spec"]["template"]["spec"]["volumes"]
        (secret,) = (one["secret"] for one in volumes if one["name"] == "tokens")
        assert secret["secretName"] == "b"
        assert {item["path"] for item in secret["items"]} == keys
    assert of_worker["TONNAGE_BENCH_WORKER_SERVICE_URL"] == "http://demo-tonnage-bench.fleet.svc:8094"
    assert of_worker["TONNAGE_BENCH_WORKER_QUEUE_URL"] == "redis://demo-tonnage-redis:6379/0"
    assert service["spec"]["serviceName"] in {o["metadata"]["name"] for o in by_kind(objects, "Service")}


def test_a_metric_keeps_the_labels_that_it_brings(render: Render) -> None:
    """The Prometheus operator labels targets too: without this every engine would be the endpoint `metrics`."""
    (monitor,) = by_kind(render({"metrics": {"serviceMonitor": {"enabled": True}}}), "ServiceMonitor")
    assert [endpoint["honorLabels"] for endpoint in monitor["spec"]["endpoints"]] == [True]


def test_the_bench_shows_the_planner_the_token_between_parts(render: Render) -> None:
    def of(values: Object) -> tuple[list[str], list[Object]]:
        (service,) = by_kind(render(values), "StatefulSet")
        pod = service["spec"]["template"]["spec"]
        names = [e["value"] for e in pod["containers"][0]["env"] if e["name"] == "TONNAGE_BENCH_API_TOKEN_FILE"]
        return names, [v["secret"] for v in pod["volumes"] if v["name"] == "access"]

    bench = {"bench": {"enabled": True, "tokenSecret": {"name": "b"}}}
    wanted = {"secretName": "s", "items": [{"key": "t", "path": "token"}]}
    asked = bench | {"access": {"secretName": "s", "tokenKey": "t"}}
    assert of(asked) == (["/etc/tonnage/access/token"], [wanted])
    assert of(asked | {"planner": {"enabled": False}}) == of(bench) == ([], [])


def test_agents_and_nodes_of_another_release_may_be_named_where_this_one_has_none(render: Render) -> None:
    urls = ["http://nodes-agent.other.svc:8091"]
    planner = {"settings": {"agent_urls": urls}}
    made = env(render({"agent": {"enabled": False}, "planner": planner}), "planner")
    assert made["TONNAGE_PLANNER_AGENT_URLS"] == '["http://nodes-agent.other.svc:8091"]'
    with pytest.raises(HelmError, match=r"planner\.settings\.agent_urls is written by the chart"):
        render({"planner": planner})


def test_tokens_between_parts_come_from_one_secret_and_each_part_has_what_it_needs(render: Render) -> None:
    objects = render({"operator": {"enabled": True}, "access": {"secretName": "s", "tokenKey": "t"}})
    needed = {
        "router": {"hashes"},
        "agent": {"hashes"},
        "coldstart": {"hashes"},
        "planner": {"hashes", "token"},
        "operator": {"token"},
    }
    settings = {"hashes": "ACCESS_FILE", "token": "API_TOKEN_FILE"}
    for part, keys in needed.items():
        made = env(objects, part)
        for key, name in settings.items():
            path = f"/etc/tonnage/access/{key}" if key in keys else None
            assert made.get(f"TONNAGE_{part.upper()}_{name}") == path
        (pod,) = (
            o["spec"]["template"]["spec"]
            for o in objects
            if o["metadata"]["name"] == f"demo-tonnage-{part}" and "template" in o.get("spec", {})
        )
        (volume,) = (v["secret"] for v in pod["volumes"] if v["name"] == "access")
        assert {item["path"] for item in volume["items"]} == keys
        # A file of a subPath would not follow the Secret.
        assert not any("subPath" in mount for mount in pod["containers"][0]["volumeMounts"])
    assert not any("ACCESS" in name for name in env(render({}), "planner"))


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"not ready: no endpoint")

    def log_message(self, *_: object) -> None: ...


def test_helm_test_says_who_is_ready_and_fails_for_one_that_is_not(render: Render) -> None:
    (pod,) = by_kind(render({"operator": {"enabled": True}}), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    script, seconds, *urls = pod["spec"]["containers"][0]["args"]
    assert (pod["spec"]["containers"][0]["command"], seconds) == (["python", "-c"], "120")
    assert [url.split("//")[1].partition(".")[0] for url in urls] == [
        "demo-tonnage-operator",
        "demo-tonnage-planner",
        "demo-tonnage-router-admin",
    ]
    port = free_port()
    server = HTTPServer(("127.0.0.1", port), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def asked(*paths: str) -> "subprocess.CompletedProcess[str]":
        urls = [f"http://127.0.0.1:{port}{path}" for path in paths]
        return subprocess.run([sys.executable, "-c", script, "0.1", *urls], capture_output=True, text=True, check=False)

    try:
        fine, broken = asked("/readyz"), asked("/readyz", "/other")
    finally:
        server.shutdown()
        server.server_close()
    assert (fine.returncode, fine.stdout.split(": ")[1]) == (0, "ready\n")
    assert broken.returncode == 1
    assert "503 not ready: no endpoint" in broken.stdout


def test_without_parts_that_answer_there_is_no_test(render: Render) -> None:
    off = {part: {"enabled": False} for part in ("router", "planner")}
    assert by_kind(render(off), "Pod") == by_kind(render({"helmTest": {"enabled": False}}), "Pod") == []
