"""The chart's documents: values explained, README current, schema complete."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tonnage"
WRITER = ROOT / "deploy" / "helm" / "chart_readme.py"


def keys(values: dict[str, Any], path: str = "") -> set[str]:
    """Dotted names of every mapping key, down to values the schema leaves open."""
    return {f"{path}{key}" for key in values} | {
        name for key, value in values.items() if isinstance(value, dict) for name in keys(value, f"{path}{key}.")
    }


def schema_keys(schema: dict[str, Any], path: str = "") -> set[str]:
    return {f"{path}{key}" for key in schema.get("properties", {})} | {
        name for key, sub in schema.get("properties", {}).items() for name in schema_keys(sub, f"{path}{key}.")
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
    """To accept a change: `python deploy/helm/chart_readme.py deploy/helm/tonnage`."""
    specification = importlib.util.spec_from_file_location("chart_readme", WRITER)
    assert specification is not None and specification.loader is not None
    writer = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(writer)
    assert (CHART / "README.md").read_text() == writer.readme(CHART)


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
    open_ended = ("metrics.dashboards.labels.", "metrics.serviceMonitor.labels.")
    named = {key for key in keys(values) if not key.startswith(open_ended)}
    assert schema_keys(schema) - {"global"} == named


def test_the_schema_is_closed() -> None:
    assert objects(json.loads((CHART / "values.schema.json").read_text())) == []
