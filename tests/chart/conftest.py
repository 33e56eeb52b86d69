"""What the chart's tests share: renders by the real Helm engine, each kept for the session."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_python.chart import Chart
from referencing import Registry, Resource

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "chart"
Object = dict[str, Any]
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def _manifests(values: str, name: str, namespace: str) -> dict[str, str]:
    with Chart.load(CHART) as chart:
        return chart.render(json.loads(values), name=name, namespace=namespace)


@pytest.fixture(scope="session")
def manifests() -> Callable[..., dict[str, str]]:
    """The text of each template for some values."""

    def made(values: Object, name: str = "demo", namespace: str = "fleet") -> dict[str, str]:
        return _manifests(json.dumps(values, sort_keys=True), name, namespace)

    return made


@pytest.fixture(scope="session")
def render(manifests: Callable[..., dict[str, str]]) -> Callable[..., list[Object]]:
    """Every object for some values: those of the release and those of its hooks."""

    def made(values: Object, **release: str) -> list[Object]:
        texts = [text for path, text in manifests(values, **release).items() if path.endswith(".yaml")]
        return [document for text in texts for document in yaml.load_all(text, Loader) if document]

    return made


@pytest.fixture(scope="session")
def shape_values() -> Callable[[str], Object]:
    """The values of `ci/NAME-values.yaml`; `default` has none."""

    def read(name: str) -> Object:
        if name == "default":
            return {}
        found: Object = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
        return found

    return read


@cache
def _definitions(folder: Path) -> Registry[Any]:
    contents = json.loads((folder / "_definitions.json").read_text())
    return (Resource.from_contents(contents) @ Registry()).crawl()


@cache
def _validator(minor: str, api_version: str, kind: str) -> Any:
    # rbac.authorization.k8s.io/v1 is in rbac-v1; the folder is the newest patch of the minor.
    group, _, version = api_version.rpartition("/")
    name = "-".join(filter(None, [kind.lower(), group.partition(".")[0], version]))
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    folder = max(schemas.glob(f"v{minor}.*-local-strict"))
    schema = json.loads((folder / f"{name}.json").read_text())
    return jsonschema.Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(folder))


@cache
def _third_party() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((GOLDEN / "third_party_kinds.yaml").read_text())
    made: dict[str, Any] = found["kinds"]
    return made | {"": found["definitions"]}


@pytest.fixture(scope="session")
def refusals() -> Callable[[Object, str], list[str]]:
    """Why an API server of a minor would refuse an object; kinds that are not Kubernetes' own by what they document."""

    def problems(one: Object, minor: str) -> list[str]:
        kinds = _third_party()
        key = f"{one['apiVersion']} {one['kind']}"
        if key in kinds:
            validator = jsonschema.Draft202012Validator({**kinds[key], "definitions": kinds[""]})
        else:
            validator = _validator(minor, one["apiVersion"], one["kind"])
        return [f"{key} {one['metadata']['name']}: {error.message[:200]}" for error in validator.iter_errors(one)]

    return problems
