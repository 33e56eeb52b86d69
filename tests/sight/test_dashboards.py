"""The dashboards: in step with their source, stable, and asking only for what somebody exports."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.sight.chart_files import FILES, ROOT, dashboard_queries, dashboards, rules
from tests.sight.promql import names, unexplained
from tonnage_coldstart.metrics import ColdstartMetrics
from tonnage_gpu_agent.metrics import AgentMetrics
from tonnage_operator.metrics import OperatorMetrics
from tonnage_planner.metrics import PlannerMetrics
from tonnage_router.metrics import RouterMetrics

NAMES = {"fleet", "router", "planner", "gpus", "coldstart", "autoscaling"}
OF_PROMETHEUS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}


def exported() -> set[str]:
    """Every series name of the services' own registries and of vLLM's page, and what our rules record."""
    registry = CollectorRegistry()
    for metrics in (PlannerMetrics, AgentMetrics, RouterMetrics, ColdstartMetrics, OperatorMetrics):
        metrics(registry)
    own = {f.name + suffix for f in registry.collect() for suffix in SUFFIXES.get(f.type, ("",))}
    families = json.loads((ROOT / "tests" / "golden" / "vllm_0.32_metrics.json").read_text())["families"]
    engine = {name + suffix for name, family in families.items() for suffix in ("", *SUFFIXES.get(family["type"], ()))}
    return own | engine | {rule["record"] for rule in rules("record")} | OF_PROMETHEUS


def test_the_files_are_what_their_source_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To accept a change: `python deploy/dashboards/write.py`."""
    path = ROOT / "deploy" / "dashboards" / "write.py"
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    specification = importlib.util.spec_from_file_location("dashboard_writer", path)
    assert specification is not None and specification.loader is not None
    writer = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(writer)
    texts = writer.texts()
    assert texts == {p.name: p.read_text() for p in (FILES / "dashboards").glob("*.json")}


def test_every_board_is_there_with_a_uid_that_stays() -> None:
    assert {name: board["uid"] for name, board in dashboards().items()} == {name: f"tonnage-{name}" for name in NAMES}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_board_is_well_formed(name: str) -> None:
    board = dashboards()[name]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells


@pytest.mark.parametrize("name", sorted(NAMES))
def test_variables_are_declared_and_used(name: str) -> None:
    board = dashboards()[name]
    declared = {variable["name"] for variable in board["templating"]["list"]} - {"datasource"}
    used = set(re.findall(r"\$(\w+)", json.dumps(board["panels"]))) - {"__rate_interval", "__range"}
    assert "cluster" in declared
    assert used == declared


def test_no_query_makes_a_value_up() -> None:
    told = [*dashboard_queries(), *((rule["record"], rule["expr"]) for rule in rules("record"))]
    assert [where for where, query in told if "vector(" in query or "absent" in query] == []


def everything() -> list[tuple[str, str]]:
    found = list(dashboard_queries())
    for name, board in dashboards().items():
        found += [(f"{name} ${v['name']}", v["query"]) for v in board["templating"]["list"] if v["type"] == "query"]
    return found + [
        (rule.get("alert") or rule["record"], rule["expr"]) for kind in ("alert", "record") for rule in rules(kind)
    ]


def test_every_name_is_exported_by_somebody() -> None:
    known = exported()
    assert {where: names(query) - known for where, query in everything() if names(query) - known} == {}


def test_nothing_in_a_query_escapes_these_tests() -> None:
    told = [(where, query) for where, query in everything() if "label_values" not in query]
    assert len(told) > 120
    assert {where: list(unexplained(query)) for where, query in told if list(unexplained(query))} == {}


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "dashboards").glob("*.py")), ids=lambda path: path.stem)
def test_the_source_is_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_a_wrong_name_would_be_found() -> None:
    query: Any = 'sum(rate(tonnage_router_requets_total{cluster=~"$cluster"}[5m])) / node_load1'
    assert names(query) - exported() == {"tonnage_router_requets_total"}
    assert list(unexplained(query)) == ["node_load1"]
