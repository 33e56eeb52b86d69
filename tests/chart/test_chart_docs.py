"""The chart's documents: values explained, README current, schema complete."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tonnage_planner.settings import PolicySettings
from tonnage_router.settings import EndpointSpec, RouterSettings
from tonnage_runtime.setting_table import rows

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tonnage"
WRITER = ROOT / "deploy" / "helm" / "chart_readme.py"
SETTINGS_WRITER = ROOT / "deploy" / "helm" / "settings_schema.py"
PAGE_WRITER = ROOT / "deploy" / "helm" / "settings_page.py"


def keys(values: dict[str, Any], path: str = "") -> set[str]:
    """Dotted names of every mapping key, down to values the schema leaves open."""
    return {f"{path}{key}" for key in values} | {
        name for key, value in values.items() if isinstance(value, dict) for name in keys(value, f"{path}{key}.")
    }


def schema_keys(schema: dict[str, Any], path: str = "", root: dict[str, Any] | None = None) -> set[str]:
    """Dotted names of the schema's values; what Kubernetes, a label or a part's settings may hold is not followed."""
    root = root or schema
    target = schema.get("$ref", "").removeprefix("#/definitions/")
    if target and not target.endswith("Settings"):
        schema = root["definitions"][target]
    return {f"{path}{key}" for key in schema.get("properties", {})} | {
        name for key, sub in schema.get("properties", {}).items() for name in schema_keys(sub, f"{path}{key}.", root)
    }


def objects(schema: Any, path: str = "") -> list[str]:
    """Where the schema leaves an object with named properties open."""
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item, path)]
    if not isinstance(schema, dict):
        return []
    own = [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
    return own + [found for key, sub in schema.items() for found in objects(sub, f"{path}/{key}")]


def test_the_readme_is_current(tmp_path: Path) -> None:
    """To accept a change: `make chart`."""
    assert (CHART / "README.md").read_text() == loaded(WRITER).readme(CHART)


def test_a_value_without_a_comment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "about.md").write_text("About.\n")
    (tmp_path / "Chart.yaml").write_text((CHART / "Chart.yaml").read_text())
    (tmp_path / "values.yaml").write_text("# -- Told.\na: 1\nb: 2\n")
    run = subprocess.run([sys.executable, WRITER, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "values.yaml line 3: b has no `# --` comment" in run.stderr


def test_the_schema_names_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    open_ended = ("metrics.dashboards.labels.", "router.autoscaling.behavior.", "planner.policy.")
    named = {key for key in keys(values) if not key.startswith(open_ended)}
    of_kubernetes = {
        "resources.requests",
        "resources.limits",
        "resources.claims",
        "router.autoscaling.behavior.scaleUp",
    }
    asked = {
        key for key in schema_keys(schema) if not key.startswith(open_ended) and not key.endswith(tuple(of_kubernetes))
    }
    assert asked - {"global"} == named


def loaded(path: Path) -> Any:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_schema_has_the_settings_of_every_part() -> None:
    """To accept a change of a settings class: `make chart`."""
    assert (CHART / "values.schema.json").read_text() == loaded(SETTINGS_WRITER).text(CHART)


def test_the_page_of_the_routers_settings_is_current() -> None:
    """To accept a change of the router's settings class: `make chart`."""
    assert (ROOT / "docs" / "router_settings.md").read_text() == loaded(PAGE_WRITER).page()


def test_every_setting_of_the_router_is_described() -> None:
    classes = [RouterSettings, *(holds for _, holds in loaded(PAGE_WRITER).nested(RouterSettings))]
    assert [f"{cls.__name__}.{row.name}" for cls in classes for row in rows(cls) if not row.meaning] == []


def test_the_schema_says_what_a_setting_is_when_it_is_not_set() -> None:
    fields = json.loads((CHART / "values.schema.json").read_text())["definitions"]["routerSettings"]["properties"]
    assert fields["retries"]["default"] == RouterSettings().retries
    assert "default" not in fields["tenants_file"]


def test_the_schema_has_the_fields_of_policies_and_endpoints() -> None:
    definitions = json.loads((CHART / "values.schema.json").read_text())["definitions"]
    assert definitions["policy"]["properties"].keys() == PolicySettings.model_fields.keys()
    # A key would stand in a ConfigMap; the others are what discovery knows.
    left_out = {"api_key", "uid", "data_parallel_rank"}
    assert definitions["endpoint"]["properties"].keys() == EndpointSpec.model_fields.keys() - left_out


def test_the_schema_is_closed() -> None:
    assert objects(json.loads((CHART / "values.schema.json").read_text())) == []
