"""The chart's dashboards, rules and alerts, as the tests of this folder read them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy" / "helm" / "tonnage" / "files"
RUNBOOKS = ROOT / "docs" / "runbooks"
RUNBOOK_URL = "https://tonnage.dev/runbooks/"


def dashboards() -> dict[str, dict[str, Any]]:
    """Dashboards by file stem."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((FILES / "dashboards").glob("*.json"))}


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Where a query stands and its text."""
    for name, board in dashboards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield f"{name}: {panel['title']}", target["expr"]


def rules(kind: str) -> list[dict[str, Any]]:
    """Every rule that has `kind`: `alert` or `record`."""
    documents = [yaml.safe_load(path.read_text()) for path in sorted((FILES / "rules").glob("*.yaml"))]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"] if kind in rule]
