"""Golden renders: the smallest release in full, a digest of every object of each ci file.

To accept a change: TONNAGE_ACCEPT_RENDERS=1 with this file, then read the diff.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tonnage"
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "chart"
DIGESTS = GOLDEN / "renders.json"
MINIMAL = GOLDEN / "minimal.yaml"
SHAPES = ("default", *sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
Object = dict[str, Any]
Render = Callable[..., list[Object]]
Shape = Callable[[str], Object]
ACCEPT = bool(os.environ.get("TONNAGE_ACCEPT_RENDERS"))


def normal(one: Object) -> Object:
    """The object without what has tests of its own: dashboards, rules and definitions' schemas change by themselves."""
    component = one["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    if component == "monitoring" and one["kind"] == "ConfigMap":
        return {**one, "data": sorted(one["data"])}
    if one["kind"] == "PrometheusRule":
        return {**one, "spec": None}
    return one


def digests(objects: list[Object]) -> dict[str, str]:
    made = {}
    for one in objects:
        name = f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}"
        text = json.dumps(normal(one), sort_keys=True)
        made[name] = hashlib.sha256(text.encode()).hexdigest()[:12]
    return dict(sorted(made.items()))


def test_every_shape_renders_as_on_record(render: Render, shape_values: Shape) -> None:
    made = {shape: digests(render(shape_values(shape))) for shape in SHAPES}
    if ACCEPT:
        DIGESTS.write_text(json.dumps(made, indent=1) + "\n")
    recorded = json.loads(DIGESTS.read_text())
    assert made.keys() == recorded.keys()
    for shape in SHAPES:
        assert made[shape] == recorded[shape], shape


def test_the_smallest_release_is_this_text(render: Render, shape_values: Shape) -> None:
    objects = sorted(render(shape_values("minimal")), key=lambda o: (o["kind"], o["metadata"]["name"]))
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    if ACCEPT:
        MINIMAL.write_text(text)
    assert text == MINIMAL.read_text()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_render_is_the_same_twice(shape: str, shape_values: Shape) -> None:
    from helm_python.chart import Chart

    with Chart.load(CHART) as chart:
        one, other = (chart.render(shape_values(shape), name="demo", namespace="fleet") for _ in range(2))
    assert one == other
