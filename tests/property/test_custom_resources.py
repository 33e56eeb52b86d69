"""Any custom resource, valid or not: the operator follows it or says why not, in a status that its definition takes."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from helm_python.chart import Chart
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.closed_schema import closed
from tonnage_operator.actions import Action, SetStatus
from tonnage_operator.lora_adapter import reconcile as lora
from tonnage_operator.model_cache import reconcile as cache
from tonnage_operator.model_server import reconcile as server

Object = dict[str, Any]
CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
SPECS: dict[str, Object] = {
    "modelservers": {
        "model": {"name": "llama-8b", "uri": "s3://models/llama-3.1-8b", "revision": "9f1c"},
        "engine": {
            "kind": "vllm",
            "version": "0.32.0",
            "image": "i",
            "args": {"max-model-len": 16384, "tensor-parallel-size": 1},
            "env": [{"name": "A", "value": "b"}],
            "loraSlots": 4,
            "resources": {"limits": {"cpu": "4"}},
        },
        "gpu": {"class": "H100-SXM-80GB", "count": 1, "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}]},
        "slo": {"ttftMs": {"p99": 1500}, "tpotMs": {"p99": 50}},
        "scaling": {"min": 1, "max": 16, "warm": 1, "toZero": False, "mode": "keda", "warmKind": "sleeping"},
        "drain": {"timeoutSeconds": 300, "unrouteSeconds": 15},
        "update": {"maxSurge": 1},
        "networkPolicy": {"from": [{"podSelector": {}}]},
        "replicas": 2,
    },
    "loraadapters": {"model": "llama-8b", "uri": "s3://a", "revision": "r", "replicas": 2, "tenants": ["a"]},
    "modelcaches": {"uri": "s3://m", "nodeSelector": {"pool": "gpu"}, "prePullImages": ["x:1"], "pin": True},
}
NOW = "2026-11-29T12:00:00Z"
RECONCILE: dict[str, Callable[[Object], tuple[Action, ...]]] = {
    "modelservers": lambda item: server.reconcile(server.Seen(item, NOW)).actions,
    "loraadapters": lambda item: lora.reconcile(lora.Seen(item, 0.0)).actions,
    "modelcaches": lambda item: cache.reconcile(cache.Seen(item, 0.0)).actions,
}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.sampled_from([10**30, -(10**30), 1.5, float("inf"), "", "\x00", "a" * 300, "s3://b/k", "hf://o/n", "../../x"]),
    st.text(max_size=6),
    st.lists(st.integers(0, 3) | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.none() | st.integers() | st.text(max_size=3), max_size=2),
)


def _schemas() -> dict[str, tuple[Any, Any]]:
    """Validators of `spec` and `status` by plural, closed: what is not declared is refused, as in an apply."""
    with Chart.load(CHART) as chart:
        made = chart.render({"operator": {"enabled": True}}, name="demo", namespace="fleet")
    documents = [d for path, text in made.items() if path.endswith(".yaml") for d in yaml.safe_load_all(text) if d]
    found = {}
    for document in documents:
        if document["kind"] == "CustomResourceDefinition" and document["spec"]["names"]["plural"] in SPECS:
            parts = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
            spec, status = (jsonschema.Draft202012Validator(closed(parts[part])) for part in ("spec", "status"))
            found[document["spec"]["names"]["plural"]] = (spec, status)
    return found


@pytest.fixture(scope="module")
def schemas() -> dict[str, tuple[Any, Any]]:
    return _schemas()


def _change(found: Any, data: st.DataObject) -> Any:
    """One value somewhere inside replaced, added or taken out."""
    keys = sorted(found) if isinstance(found, dict) else list(range(len(found))) if isinstance(found, list) else []
    if not keys or data.draw(st.integers(0, 9)) == 0:
        return data.draw(ODD)
    key = data.draw(st.sampled_from(keys))
    if data.draw(st.integers(0, 9)) == 0:
        del found[key]
    else:
        found[key] = _change(found[key], data)
    return found


@pytest.mark.parametrize("plural", SPECS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_resource_ends_in_a_status_that_its_definition_takes(
    schemas: dict[str, tuple[Any, Any]], plural: str, data: st.DataObject
) -> None:
    spec: Any = copy.deepcopy(SPECS[plural])
    for _ in range(data.draw(st.integers(0, 3))):
        spec = _change(spec, data)
    takes, states = schemas[plural]
    event(f"the definition takes it: {takes.is_valid(spec)}")
    actions = RECONCILE[plural](
        {"metadata": {"name": "x", "namespace": "serving", "uid": "u", "generation": 2}, "spec": spec}
    )
    (told,) = [action for action in actions if isinstance(action, SetStatus)]
    states.validate(dict(told.status))


@pytest.mark.parametrize("plural", SPECS)
def test_the_whole_specification_is_one_that_the_definition_takes(
    schemas: dict[str, tuple[Any, Any]], plural: str
) -> None:
    schemas[plural][0].validate(SPECS[plural])
