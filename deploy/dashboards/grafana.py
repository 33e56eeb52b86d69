"""Grafana's JSON from short descriptions of boards: stable uids, one layout, the same variables everywhere.

In a query `<C>` stands for the cluster's matcher, `<P>` for cluster and planner pool, `<M>` for cluster and the
router's pool (which is the model's name), `<E>` for cluster and an engine's `model_name`, `<G>` for cluster and GPU
product; `<I>` is the interval of a rate, `<T>` the shown time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SHORTHANDS = {
    "<C>": 'cluster=~"$cluster"',
    "<P>": 'cluster=~"$cluster",pool=~"$pool"',
    "<M>": 'cluster=~"$cluster",pool=~"$model"',
    "<E>": 'cluster=~"$cluster",model_name=~"$model"',
    "<G>": 'cluster=~"$cluster",product=~"$product"',
    "<I>": "$__rate_interval",
    "<T>": "$__range",
}
VARIABLES = {
    "cluster": ("Cluster", "label_values(up, cluster)"),
    "pool": ("Pool", 'label_values(tonnage_planner_desired_replicas{cluster=~"$cluster"}, pool)'),
    "model": ("Model", 'label_values(tonnage_router_queue_requests{cluster=~"$cluster"}, pool)'),
    "product": ("GPU", 'label_values(tonnage_gpu_device_info{cluster=~"$cluster"}, product)'),
}
FULL_WIDTH = 24
COLOURS = {"met": "green", "late": "orange", "slow": "yellow", "failed": "red"}
COLOURS |= {"OK": "green", "WARN": "orange", "FAIL": "red", "UNKNOWN": "text"}


@dataclass(frozen=True)
class Panel:
    """One panel. `queries` maps a query to its legend; `unit` is Grafana's name of it."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    about: str = ""
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stack: bool = False
    thresholds: tuple[tuple[float | None, str], ...] = ()
    top: float | None = None


@dataclass(frozen=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A dashboard; its uid is `tonnage-<name>` for ever."""

    name: str
    title: str
    rows: tuple[Row, ...]
    variables: tuple[str, ...] = ("cluster", "pool", "model")
    about: str = ""


def document(board: Board) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": f"tonnage-{board.name}",
        "title": f"Tonnage / {board.title}",
        "description": board.about,
        "tags": ["tonnage"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [
            {"type": "dashboards", "tags": ["tonnage"], "title": "Tonnage", "asDropdown": True, "includeVars": True}
        ],
        "templating": {"list": [_datasource(), *(_variable(name) for name in board.variables)]},
        "panels": list(_panels(board)),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(name: str) -> dict[str, Any]:
    label, query = VARIABLES[name]
    return {
        "name": name,
        "type": "query",
        "label": label,
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(board: Board) -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for row in board.rows:
        place = {"h": 1, "w": FULL_WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "collapsed": False, "panels": []}
        number, y, x, tallest = number + 1, y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > FULL_WIDTH:
                x, y, tallest = 0, y + tallest, 0
            yield _panel(panel, number, {"h": panel.height, "w": panel.width, "x": x, "y": y})
            number, x, tallest = number + 1, x + panel.width, max(tallest, panel.height)
        y += tallest


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "targets": [_target(panel, index, query) for index, query in enumerate(panel.queries)],
        "options": _options(panel),
    }


def _target(panel: Panel, index: int, query: str) -> dict[str, Any]:
    text = query
    for short, meant in SHORTHANDS.items():
        text = text.replace(short, meant)
    found = {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": text, "legendFormat": panel.queries[query]}
    if panel.kind == "table":
        found |= {"format": "table", "instant": True}
    return found


def _defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.top is not None:
        found["max"] = panel.top
    if panel.kind == "timeseries":
        found["custom"] = {"fillOpacity": 30 if panel.stack else 8, "lineWidth": 1, "showPoints": "never"}
        if panel.stack:
            found["custom"]["stacking"] = {"mode": "normal"}
    if panel.thresholds:
        steps = [{"value": value, "color": colour} for value, colour in panel.thresholds]
        found["thresholds"] = {"mode": "absolute", "steps": steps}
        found["color"] = {"mode": "thresholds"} if panel.kind == "stat" else {"mode": "palette-classic"}
    return found


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Verdicts have the same colour on every board."""
    if not any(legend in ("{{verdict}}", "{{status}}") for legend in panel.queries.values()):
        return []
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in COLOURS.items()
    ]


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
