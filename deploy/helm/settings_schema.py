"""Writes the settings of every part into a chart's schema: `python deploy/helm/settings_schema.py CHART_FOLDER`.

`*.settings` of the values are the fields of the part's settings class: a name that is none, or a value of another type,
is refused by Helm and not by a pod that does not start.
"""

import json
import sys
from pathlib import Path
from types import NoneType
from typing import Any

from tonnage_bench.settings import BenchSettings
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_operator.settings import OperatorSettings
from tonnage_planner.settings import PlannerSettings
from tonnage_router.settings import RouterSettings
from tonnage_runtime.settings import Settings

PARTS: dict[str, type[Settings]] = {
    "agent": AgentSettings,
    "bench": BenchSettings,
    "coldstart": ColdstartSettings,
    "operator": OperatorSettings,
    "planner": PlannerSettings,
    "router": RouterSettings,
}
Schema = dict[str, Any]
DROPPED: dict[str, type] = {"title": object, "default": NoneType}
"""A title says the name again, and a default of null is none: with the type that a value must have to be dropped."""


def plain(node: Any) -> Any:
    """`node` without titles and null: a value of null is taken out by Helm before."""
    if isinstance(node, list):
        return [plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {
        key: {name: plain(sub) for name, sub in value.items()} if key in ("properties", "$defs") else plain(value)
        for key, value in node.items()
        if not isinstance(value, DROPPED.get(key, ()))
    }
    options = [option for option in made.pop("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        return {**options[0], **made}
    return made | ({"anyOf": options} if options else {})


def definitions() -> Schema:
    """A definition of each part's settings, and of what they hold; ValueError when two want one name."""
    found: Schema = {}
    for part, settings in PARTS.items():
        schema = plain(settings.model_json_schema(ref_template="#/definitions/{model}"))
        nested = schema.pop("$defs", {})
        schema.pop("description", None)
        for name, one in {f"{part}Settings": schema, **nested}.items():
            if found.setdefault(name, one) != one:
                raise ValueError(f"two settings classes are called {name}")
    return found


def written(schema: Schema) -> Schema:
    """The chart's schema with the definitions of now; those of before are taken out."""
    own = definitions()
    before = schema.get("x-settings", [])
    kept = {name: one for name, one in schema["definitions"].items() if name not in before and name not in own}
    properties = dict(schema["properties"])
    for part in PARTS:
        inner = {**properties[part]["properties"], "settings": {"$ref": f"#/definitions/{part}Settings"}}
        properties[part] = {**properties[part], "properties": inner}
    return {**schema, "x-settings": sorted(own), "definitions": kept | own, "properties": properties}


def text(chart: Path) -> str:
    """What the schema of the chart in folder `chart` has to be."""
    return json.dumps(written(json.loads((chart / "values.schema.json").read_text())), indent=2) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "values.schema.json").write_text(text(folder))
