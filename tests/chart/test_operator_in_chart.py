"""The operator in the chart: definitions take what is asked for and what the operator writes; rights are its calls."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from helm_python.chart import Chart

from tests.closed_schema import closed
from tonnage_operator import kinds
from tonnage_operator.actions import Action, SetStatus
from tonnage_operator.lora_adapter import reconcile as lora
from tonnage_operator.model_cache import reconcile as cache
from tonnage_operator.model_server import reconcile as server

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
Object = dict[str, Any]
SERVER = {
    "model": {"name": "llama-8b", "uri": "s3://models/llama-3.1-8b", "revision": "9f1c"},
    "engine": {"kind": "vllm", "version": "0.32.0", "args": {"max-model-len": 16384}, "loraSlots": 4},
    "gpu": {"class": "H100-SXM-80GB", "count": 1},
    "slo": {"ttftMs": {"p99": 1500}, "tpotMs": {"p99": 50}},
    "scaling": {"min": 1, "max": 16, "warm": 1, "toZero": False, "mode": "keda"},
    "drain": {"timeoutSeconds": 300},
}
ADAPTER = {"model": "llama-8b", "uri": "s3://a", "revision": "r", "replicas": 2, "tenants": ["a"]}
CACHE = {"uri": "s3://m", "nodeSelector": {"pool": "gpu"}, "prePullImages": ["x:1"], "pin": True}


def render(**operator: Any) -> dict[str, Object]:
    with Chart.load(CHART) as chart:
        made = chart.render({"operator": {"enabled": True, **operator}}, name="demo", namespace="fleet")
    texts = [text for path, text in made.items() if path.endswith(".yaml")]
    documents = [d for text in texts for d in yaml.load_all(text, yaml.CSafeLoader) if d]
    return {f"{d['kind']} {d['metadata']['name']}": d for d in documents}


def schema(plural: str, part: str) -> Object:
    (version,) = render()[f"CustomResourceDefinition {plural}.tonnage.dev"]["spec"]["versions"]
    found: Object = closed(version["schema"]["openAPIV3Schema"]["properties"][part])
    return found


def item(spec: Object) -> Object:
    return {"metadata": {"name": "x", "namespace": "serving", "uid": "u", "generation": 2}, "spec": spec}


def status(actions: tuple[Action, ...]) -> Object:
    (found,) = [a for a in actions if isinstance(a, SetStatus)]
    return dict(found.status)


def statuses() -> dict[str, list[Object]]:
    made = server.Seen(item(SERVER), "2026-11-29T12:00:00Z")
    bad = server.Seen(item({**SERVER, "engine": {}}), "2026-11-29T12:00:00Z")
    return {
        "modelservers": [status(server.reconcile(one).actions) for one in (made, bad)],
        "loraadapters": [status(lora.reconcile(lora.Seen(item(spec), 0.0)).actions) for spec in (ADAPTER, {})],
        "modelcaches": [status(cache.reconcile(cache.Seen(item(spec), 0.0)).actions) for spec in (CACHE, {})],
    }


@pytest.mark.parametrize(
    ("plural", "spec"), [("modelservers", SERVER), ("loraadapters", ADAPTER), ("modelcaches", CACHE)]
)
def test_each_definition_takes_its_specification_and_every_status_of_the_operator(plural: str, spec: Object) -> None:
    jsonschema.validate(spec, schema(plural, "spec"))
    for one in statuses()[plural]:
        jsonschema.validate(one, schema(plural, "status"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**spec, "unknownField": 1}, schema(plural, "spec"))


def test_definitions_stay_and_the_model_server_scales() -> None:
    made = render()
    for kind in (kinds.MODEL_SERVERS, kinds.LORA_ADAPTERS, kinds.MODEL_CACHES):
        crd = made[f"CustomResourceDefinition {kind.plural}.{kind.group}"]
        (version,) = crd["spec"]["versions"]
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert (crd["spec"]["names"]["kind"], version["name"]) == (kind.kind, kind.version)
        assert version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["conditions"][
            "x-kubernetes-list-map-keys"
        ] == ["type"]
    (version,) = made["CustomResourceDefinition modelservers.tonnage.dev"]["spec"]["versions"]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_marks_and_finalizers_go_before_the_release_does() -> None:
    job = render()["Job demo-tonnage-operator-release"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["--release"]
    assert "Job demo-tonnage-operator-release" not in render(releaseOnUninstall=False)


def test_without_the_operator_there_is_nothing_of_it() -> None:
    with Chart.load(CHART) as chart:
        made = chart.render({}, name="demo", namespace="fleet")
    assert not [text for path, text in made.items() if "/operator/" in path and text.strip()]
