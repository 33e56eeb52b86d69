"""docs/metrics.md lists every metric the code declares, with its type and labels, and no other."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = (ROOT / "docs" / "metrics.md").read_text()
DECLARED_IN = {
    "router": ("tonnage_router.metrics", "RouterMetrics"),
    "planner": ("tonnage_planner.metrics", "PlannerMetrics"),
    "coldstart": ("tonnage_coldstart.metrics", "ColdstartMetrics"),
    "bench": ("tonnage_bench.metrics", "BenchMetrics"),
    "operator": ("tonnage_operator.metrics", "OperatorMetrics"),
    "gpu": ("tonnage_gpu_agent.metrics", "AgentMetrics"),
}
ROW = re.compile(r"^\|\s*`(tonnage_[a-z0-9_]+)`\s*\|\s*(counter|gauge|histogram|summary|info)\s*\|", re.M)


def declared() -> Iterator[tuple[str, str]]:
    for module, name in DECLARED_IN.values():
        registry = CollectorRegistry()
        getattr(importlib.import_module(module), name)(registry)
        for family in registry.collect():
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            yield family.name + suffix, family.type


def test_every_declared_metric_is_in_the_catalogue_and_no_other() -> None:
    listed = {(name, kind) for name, kind in ROW.findall(CATALOGUE)}
    code = {(name, kind) for name, kind in declared()}
    assert sorted(code - listed) == [], "declared, not in docs/metrics.md"
    assert sorted(listed - code) == [], "in docs/metrics.md, not declared"


def test_metric_names_follow_the_rule() -> None:
    wrong = []
    for name, kind in declared():
        if not name.startswith("tonnage_"):
            wrong.append(name)
        if kind != "counter" and name.endswith("_total"):
            wrong.append(name)
    assert wrong == []
